"""Feedback on the command line, and the cases that evaluations make of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.cli import run_cli

AGENT = {"name": "guide", "model": "openai:gpt-4o-mini", "db": "sqlite:///guide.db"}


def rated_folder(folder: Path) -> Path:
    """A folder with an agent that has a session with two answers, and another one; no answer is rated."""
    (folder / "agent.yaml").write_text(yaml.safe_dump(AGENT))
    for text, reply in (("Capital of France?", "Paris."), ("And of Italy?", "Milan.")):
        run_cli(folder, "run", "--session", "s1", text, script=[reply])
    run_cli(folder, "run", "--session", "s0", "Hello", script=["Hi."])
    return folder


def test_an_answer_is_rated_on_the_command_line_and_listed(tmp_path: Path) -> None:
    folder = rated_folder(tmp_path)

    rated = run_cli(folder, "feedback", "s1", "up", "--answer", "2", "--note", "Right.", "--by", "ana")

    events = run_cli(folder, "events", "s1", "--last", "1").stdout.split(maxsplit=2)
    (listed,) = (line for line in run_cli(folder, "sessions").stdout.splitlines() if line.startswith("s1"))
    report = run_cli(folder, "report").stdout.splitlines()
    only_rated = run_cli(folder, "sessions", "--rated", "--quiet").stdout.split()
    assert (rated.returncode, rated.stdout) == (0, "Rated answer 2 of session s1: up\n")
    assert (only_rated, report[-1]) == (["s1"], "feedback: 1 up, 0 down, in 1 session")
    assert events[2] == "feedback             up on answer 2 by ana: Right.\n"
    assert listed.split("\t")[-1] == "1 up"
    assert "thumbs" in report[0].split()


def test_feedback_without_an_answer_or_a_session_is_refused(tmp_path: Path) -> None:
    folder = rated_folder(tmp_path)

    refused = [run_cli(folder, "feedback", *given) for given in (("s1", "up", "--answer", "3"), ("s2", "up"))]

    assert [each.returncode for each in refused] == [2, 2]
    assert [each.stderr.partition(";")[0] for each in refused] == [
        "error: Session 's1' has no answer 3",
        "error: There is no session 's2' in sqlite:///guide.db",
    ]


def test_a_rated_answer_is_added_to_a_file_of_cases(tmp_path: Path) -> None:
    folder = rated_folder(tmp_path)

    for rating in ("up", "down"):
        run_cli(folder, "feedback", "s1", rating, "--note", "It is Rome.", "--case", "cases.yaml")

    ran = run_cli(folder, "eval", "cases.yaml", script=["Paris.", "Rome.", '{"score": 1, "reason": "It is Rome."}'])
    written = yaml.safe_load((folder / "cases.yaml").read_text())
    (case,) = written["cases"]
    rubric = (
        "People rated this answer down, and a good answer avoids what they disliked: Milan.\nuser wrote: It is Rome."
    )
    assert case == {
        "name": "s1-6",
        "session": "s1",
        "called": [],
        "input": ["Capital of France?", "And of Italy?"],
        "metadata": {
            "answer": 6,
            "feedback": [{"rating": "down", "by": "user", "note": "It is Rome.", "evaluate": True}],
        },
        "expect": {"answer": {"judge": {"rubric": rubric}}, "status": "COMPLETED"},
    }
    assert (written["agent"], ran.returncode, ran.stdout.splitlines()[0][:10]) == ("agent.yaml", 0, "pass  s1-6")


def test_feedback_for_an_unusable_file_of_cases_is_not_stored(tmp_path: Path) -> None:
    folder = rated_folder(tmp_path)
    (folder / "bad.yaml").write_text("[")

    refused = [run_cli(folder, "feedback", "s1", "up", "--case", name) for name in ("bad.yaml", "no/cases.yaml", ".")]

    listed = run_cli(folder, "sessions")
    assert ([each.returncode for each in refused], "up" in listed.stdout) == ([2] * 3, False)


def test_an_evaluation_runs_the_rated_answers(tmp_path: Path) -> None:
    folder = rated_folder(tmp_path)
    none = run_cli(folder, "eval", "--from-feedback")
    run_cli(folder, "feedback", "s1", "up", "--answer", "2")

    passed = run_cli(folder, "eval", "--from-feedback", script=["Paris."])
    failed = run_cli(folder, "eval", "--from-feedback", "--fresh", script=["Lyon."])

    start = "error: --from-feedback: no answer in the database of agent.yaml has feedback yet."
    assert (none.returncode, none.stderr[: len(start)]) == (2, start)
    assert (passed.returncode, passed.stdout.splitlines()[0][:10]) == (0, "pass  s1-2")
    assert (failed.returncode, failed.stdout.splitlines()[0][:10]) == (1, "FAIL  s1-2")


def test_a_rated_answer_is_collected_with_its_note_and_an_unrated_one_is_refused(tmp_path: Path) -> None:
    folder = rated_folder(tmp_path)
    run_cli(folder, "feedback", "s1", "down", "--note", "It is Rome.")
    collected = run_cli(folder, "feedback", "s1", "--case", "cases.yaml")
    refused = run_cli(folder, "feedback", "s1", "--case", "cases.yaml", "--answer", "99")
    without = run_cli(folder, "feedback", "s1")

    (case,) = yaml.safe_load((folder / "cases.yaml").read_text())["cases"]
    assert (collected.returncode, "It is Rome." in str(case)) == (0, True)
    assert (refused.returncode, "has no answer 99 with feedback; rated answers: " in refused.stderr) == (2, True)
    assert (without.returncode, "or --case FILE to collect" in without.stderr) == (2, True)


def test_a_rated_answer_is_collected_by_the_id_of_its_input(tmp_path: Path) -> None:
    async def ask() -> None:
        async with open_saver("sqlite:///guide.db", tmp_path) as saver:
            agent = create_graph_agent(ScriptedChatModel(["Paris.", "Milan."]), checkpointer=saver)
            for text in ("France?", "Italy?"):
                await Session(agent, "s1").run(text, input_id=f"id-{text}")

    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(AGENT))
    asyncio.run(ask())
    for answer in ("id-France?", "id-Italy?"):
        run_cli(tmp_path, "feedback", "s1", "up", "--answer", answer)

    collected = run_cli(tmp_path, "feedback", "s1", "--case", "cases.yaml", "--answer", "id-France?")

    (case,) = yaml.safe_load((tmp_path / "cases.yaml").read_text())["cases"]
    assert (collected.returncode, case["expect"]["answer"]) == (0, {"equals": "Paris."})
