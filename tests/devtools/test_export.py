"""Recorded sessions exported as tests, which pytest then runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.devtools.export import to_case, to_test
from graph_agent.evaluation import read_cases
from graph_agent.testing import RecordedSession, call, export_test, read_recording, reply, result
from tests.support.agents import echo
from tests.support.recorded_sessions import SESSIONS
from tests.support.warm_process import ONLY_OUR_PLUGIN, warm_python


async def _export(folder: Path, name: str) -> int:
    """Write two tests of a session: with what is known of its agent, and from the session alone; return their number.

    One is written if they are equal."""
    session = await SESSIONS[name]()
    source = await export_test(session)
    (folder / f"test_{name}.py").write_text(source, encoding="utf-8")
    bare = to_test(await read_recording(session.saver, session.id))
    if bare == source:
        return 1
    (folder / f"test_{name}_bare.py").write_text(bare, encoding="utf-8")
    return 2


def _run(module: str, *options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [warm_python(), "-m", module, *options],
        cwd=folder,
        env={**os.environ, **ONLY_OUR_PLUGIN},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


async def test_exported_tests_are_formatted_and_pass(tmp_path: Path) -> None:
    written = sum([await _export(tmp_path, name) for name in SESSIONS])

    formatted = _run("ruff", "format", "--isolated", "--check", ".", folder=tmp_path)
    checked = _run("ruff", "check", "--isolated", ".", folder=tmp_path)
    ran = _run("pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path)

    assert [formatted.returncode, checked.returncode, ran.returncode] == [0, 0, 0], ran.stdout + formatted.stdout
    assert f"{written} passed" in ran.stdout


_CONFTEST = """
def pytest_configure(config):
    from graph_agent.testing import plugin

    if not config.pluginmanager.is_registered(plugin):  # by the installed package
        config.pluginmanager.register(plugin)
"""

MUTATIONS = {
    "an argument of a reply": (
        'call("c3", "pay", {"amount": 2})',
        'call("c3", "pay", {"amount": 9})',
        """Step 2, call 'c3' (pay) $.arguments.amount: the recorded result is for 2, and the call has 9.""",
    ),
    "a result": ('"paid 2"),', '"paid 3"),', """step 2, call 'c3' $: expected "paid 2", got "paid 3\""""),
    "an argument of the assertion": (
        '2: {"c3": ("pay", {"amount": 2})}',
        '2: {"c3": ("pay", {"amount": 8})}',
        "step 2, call 'c3' $.arguments.amount: expected 8, got 2",
    ),
    "a missing reply": (
        '    reply("Paid.", tokens=(160, 2)),\n',
        "",
        "The script has 3 entries, and the model was asked once more",
    ),
    "the answer": ('assert run.answer == "Paid."', 'assert run.answer == "Payed."', "assert 'Paid.' == 'Payed.'"),
}


async def test_a_changed_test_fails_where_it_was_changed(tmp_path: Path) -> None:
    source = await export_test(await SESSIONS["waves"]())
    for at, (old, new, _) in enumerate(MUTATIONS.values()):
        assert source.count(old) == 1, f"{old} in {source}"
        (tmp_path / f"test_{at}.py").write_text(source.replace(old, new), encoding="utf-8")

    (tmp_path / "conftest.py").write_text(_CONFTEST, encoding="utf-8")

    ran = _run("pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path)

    found = {name: message in ran.stdout for name, (_, _, message) in MUTATIONS.items()}
    assert found == dict.fromkeys(MUTATIONS, True), ran.stdout
    assert f"{len(MUTATIONS)} failed" in ran.stdout


async def test_calls_of_a_wave_may_have_any_order(tmp_path: Path) -> None:
    source = await export_test(await SESSIONS["waves"]())
    one, other = 'call("c1", "search", {"q": "a"})', 'call("c2", "search", {"q": "b"})'
    swapped = source.replace(one, "ONE").replace(other, one).replace("ONE", other)
    assert swapped != source
    (tmp_path / "test_swapped.py").write_text(swapped, encoding="utf-8")

    ran = _run("pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path)

    assert "1 passed" in ran.stdout, ran.stdout


async def test_a_case_has_the_waves_and_the_decisions_of_a_session(tmp_path: Path) -> None:
    session = await SESSIONS["approval_of_another_tool"]()

    case = to_case(await read_recording(session.saver, session.id), agent="agent.yaml")
    (tmp_path / "cases.yaml").write_text(case, encoding="utf-8")

    assert read_cases(tmp_path / "cases.yaml").model_dump(mode="json", exclude_defaults=True) == {
        "agent": "agent.yaml",
        "cases": [
            {
                "name": "s1",
                "session": "s1",
                "called": ["pay", "search"],
                "input": "Pay.",
                "approvals": {"pay": {"edit": {"q": "cheaper"}}},
                "expect": {
                    "calls": {"calls": [{"name": "search", "arguments": {"q": "cheaper"}}]},
                    "answer": {"equals": "Done."},
                    "status": "COMPLETED",
                },
            }
        ],
    }


def test_the_agent_of_a_recorded_session_is_unchanged() -> None:
    agent = create_graph_agent(ScriptedChatModel([]), tools=[echo])
    replies = [reply(call("a", "echo", {"text": "x"})), reply(call("b", "echo", {"text": "y"})), reply("Done.")]
    results = [result(1, "a", "echo", {"text": "x"}, "x"), result(2, "b", "echo", {"text": "y"}, "y")]
    with RecordedSession([replies[0], reply("Stopped.")], results[:1], agent=agent, config={"max_steps": 1}) as session:
        limited = session.run("go")

    with RecordedSession(replies, results, agent=agent) as session:
        run = session.run("go")

    assert (limited.status, run.status, run.answer) == ("ROUND_LIMIT", "COMPLETED", "Done.")
