"""Versions of prompts and tools in the `plan` events, by which runs before and after a change are compared."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import ECHO_SCRIPT, asks, echo
from tests.support.cli import run_cli

CALL = [asks(("1", "echo", {"text": "x"})), "Done."]


def session(*replies: Any, saver: InMemorySaver | None = None, **options: Any) -> Session:
    options.setdefault("tools", [echo])
    model = ScriptedChatModel(list(replies))
    return Session(create_graph_agent(model, checkpointer=saver or InMemorySaver(), **options), "s1")


async def versions(talk: Session) -> list[Any]:
    """The versions of each plan; None where a plan has none."""
    return [event.get("versions") for event in await talk.events() if event["type"] == "plan"]


async def test_the_first_plan_of_each_input_has_the_versions() -> None:
    talk = session(*ECHO_SCRIPT, *ECHO_SCRIPT)
    await talk.run("one")
    await talk.run("two")

    found = await versions(talk)

    assert (found[0] == found[2], found[1], found[3]) == (True, None, None)
    assert (found[0]["prompts"].keys(), found[0]["tools"].keys()) == ({"system", "built-in"}, {"echo"})
    assert {len(each) for each in (*found[0]["prompts"].values(), *found[0]["tools"].values())} == {8}


async def test_only_the_version_of_what_changed_is_another() -> None:
    def echo_twice(text: str) -> str:
        """Return a text twice."""
        return text * 2

    echo_twice.__name__ = "echo"
    agents = [
        session(*ECHO_SCRIPT),
        session(*ECHO_SCRIPT, system_prompt="Be brief."),
        session(*ECHO_SCRIPT, prompts={"finalize": "Answer."}),
        session(*ECHO_SCRIPT, tools=[echo_twice]),
    ]
    for each in agents:
        await each.run("go")

    base, prompt, replaced, tool = [(await versions(each))[0] for each in agents]

    assert (prompt["prompts"]["system"] != base["prompts"]["system"], prompt["tools"]) == (True, base["tools"])
    assert replaced["prompts"].keys() == {"system", "finalize", "built-in"}
    assert replaced["prompts"]["system"] == base["prompts"]["system"]
    assert (tool["prompts"], tool["tools"] == base["tools"]) == (base["prompts"], False)


async def test_variables_do_not_change_the_version_of_a_template(tmp_path: Path) -> None:
    agent = {
        "name": "a",
        "model": "openai:gpt-4o-mini",
        "system_prompt": "Today is {{ today }}.",
        "tools": ["t:echo"],
        "db": "sqlite:///s.db",
    }
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent))
    (tmp_path / "t.py").write_text('def echo(text: str) -> str:\n    """Echo."""\n    return text\n')
    for day in ("2026-01-01", "2026-01-02"):
        run_cli(
            tmp_path,
            "run",
            "--session",
            day,
            "--today",
            day,
            "go",
            script=CALL,
        )
    agent["system_prompt"] = "It is {{ today }}."
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent))
    run_cli(tmp_path, "run", "--session", "changed", "go", script=CALL)

    report = run_cli(tmp_path, "report", "--by", "prompts.system").stdout.splitlines()

    assert [line.split()[1] for line in report[1:3]] == ["2", "1"]


async def test_a_function_that_returns_the_prompt_has_no_version() -> None:
    talk = session(*ECHO_SCRIPT, system_prompt=lambda: "Be brief.")
    await talk.run("go")

    assert (await versions(talk))[0]["prompts"].keys() == {"built-in"}


def test_a_comparison_of_agents_names_the_prompts_that_differ(tmp_path: Path) -> None:
    agent = {"name": "a", "model": "openai:gpt-4o-mini", "system_prompt": "Be brief.", "tools": ["t:echo"]}
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent))
    (tmp_path / "t.py").write_text('def echo(text: str) -> str:\n    """Echo."""\n    return text\n')
    (tmp_path / "cases.yaml").write_text("agent: agent.yaml\ncases: [{name: one, input: go}]\n")

    done = run_cli(
        tmp_path,
        "eval",
        "cases.yaml",
        "--vs",
        "system_prompt=Be long.",
        script=CALL,
    )

    assert "  prompts that differ: system" in done.stdout.splitlines()


def test_a_replay_with_another_prompt_names_both_versions(tmp_path: Path) -> None:
    agent = {"name": "a", "model": "openai:gpt-4o-mini", "system_prompt": "Be brief.", "tools": ["t:echo"]}
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump({**agent, "db": "sqlite:///s.db"}))
    (tmp_path / "t.py").write_text('def echo(text: str) -> str:\n    """Echo."""\n    return text\n')
    (tmp_path / "long.txt").write_text("Be long.")
    run_cli(tmp_path, "run", "--session", "s1", "go", script=CALL)

    done = run_cli(tmp_path, "replay", "s1", "--prompt", "long.txt")

    used, recorded = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in ("Be long.", "Be brief."))
    assert done.stderr.splitlines()[-1] == f"The system prompt has version {used}; recorded: {recorded}"


def test_a_replay_with_a_prompt_file_of_another_form_is_refused(tmp_path: Path) -> None:
    agent = {"name": "a", "model": "openai:gpt-4o-mini", "tools": ["t:echo"], "db": "sqlite:///s.db"}
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent))
    (tmp_path / "t.py").write_text('def echo(text: str) -> str:\n    """Echo."""\n    return text\n')
    (tmp_path / "long.yaml").write_text("text: Be long.")
    run_cli(tmp_path, "run", "--session", "s1", "go", script=CALL)

    done = run_cli(tmp_path, "replay", "s1", "--prompt", "long.yaml")

    assert (done.returncode, done.stderr) == (
        2,
        "error: --prompt long.yaml: a prompt file has one key, 'template', with the text below it.\n",
    )
