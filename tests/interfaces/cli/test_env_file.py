"""The file `.env` next to an agent file: its variables reach every command, and the environment wins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import run_cli

AGENT = "name: a\nmodel: openai:gpt-4o-mini\ndb: 'memory:'\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an agent file whose model `.env` replaces by a script."""
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / ".env").write_text('DEBUG_MOCK_RESPONSES=["From the file."]\nMY_SECRET=hunter2\n')
    return tmp_path


def test_a_command_reads_the_file_next_to_its_agent_file(folder: Path) -> None:
    inner = folder / "elsewhere"
    inner.mkdir()

    done = run_cli(inner, "run", "--config", "../agent.yaml", "hi")

    assert (done.returncode, done.stdout) == (0, "\n> hi\nFrom the file.\n"), done.stderr


def test_an_option_reads_its_variable_in_the_file(folder: Path) -> None:
    (folder / ".env").write_text("GRAPH_AGENT_DB=sqlite:///mine.db\n")

    done = run_cli(folder, "run", "hi", script=["Hello."])

    assert (done.returncode, (folder / "mine.db").exists()) == (0, True), done.stderr


def test_a_variable_of_the_environment_wins(folder: Path) -> None:
    done = run_cli(folder, "run", "hi", script=["From the environment."])

    assert done.stdout.endswith("\nFrom the environment.\n")


@pytest.mark.parametrize("arguments", [("run", "--no-env", "hi"), ("run", "hi", "--no-env")])
def test_no_env_leaves_the_file_out(folder: Path, arguments: tuple[str, ...]) -> None:
    done = run_cli(folder, *arguments)

    assert (done.returncode, "set the environment variable OPENAI_API_KEY" in done.stderr) == (2, True)


def test_a_file_in_the_current_folder_is_not_read_for_an_agent_in_another(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.yaml").write_text(AGENT)
    (tmp_path / ".env").write_text('DEBUG_MOCK_RESPONSES=["From the wrong file."]\n')

    done = run_cli(tmp_path, "run", "--config", "agent/agent.yaml", "hi")

    assert (done.returncode, done.stdout) == (2, "")


def test_doctor_names_the_file_and_its_variables_without_values(folder: Path) -> None:
    done = run_cli(folder, "doctor", "--json", script=["x"])

    found = [each for each in map(json.loads, done.stdout.splitlines()) if each["check"] == "environment"]
    assert [each["text"] for each in found] == [
        f"{folder / '.env'} sets MY_SECRET; the environment has DEBUG_MOCK_RESPONSES, and wins"
    ]
    assert "hunter2" not in done.stdout + done.stderr


def test_a_file_that_is_no_text_is_an_error_without_its_content(folder: Path) -> None:
    (folder / ".env").write_bytes(b"MY_SECRET=hunter2\xff\n")

    done = run_cli(folder, "run", "hi")

    assert (done.returncode, done.stderr) == (
        2,
        f"error: Environment file {folder / '.env'}: it is no UTF-8 text with lines NAME=VALUE. Correct it, or leave "
        "it out with --no-env.\n",
    )


def test_an_evaluation_reads_the_file_next_to_its_agent_file(folder: Path) -> None:
    case = "{name: a, input: hi, expect: {answer: From the file}}"
    (folder / "cases.yaml").write_text(f"agent: agent.yaml\ncases: [{case}]\n")

    passed = run_cli(folder, "eval", "cases.yaml")
    without = run_cli(folder, "eval", "cases.yaml", "--no-env", "--fresh")

    assert (passed.returncode, without.returncode) == (0, 2), passed.stdout + passed.stderr


def test_run_without_an_agent_file_names_new(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "run", "hi")

    assert (done.returncode, "or make an agent with `graph-agent new NAME`" in done.stderr) == (2, True)


@pytest.mark.parametrize("line", ["MY_SECRET hunter2", 'MY_SECRET="hunter2', "=hunter2"])
def test_a_line_that_cannot_be_read_is_named_without_its_text(folder: Path, line: str) -> None:
    (folder / ".env").write_text(f'DEBUG_MOCK_RESPONSES=["Hello."]\n\n{line}\n')

    done = run_cli(folder, "run", "hi")

    assert (done.returncode, done.stderr) == (
        2,
        f"error: Environment file {(folder / '.env').resolve()}, line 3: it is not NAME=VALUE, or a quotation mark is "
        "missing. Correct it, or leave the file out with --no-env.\n",
    )
