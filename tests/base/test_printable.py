"""Foreign text in the log and on the terminal: it cannot forge a line or control the terminal."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from graph_agent.base._internal.command_log import log_at, log_warnings
from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base._internal.text import printable, printable_lines
from tests.support.cli import run_cli

EVIL = "a\x1b[31m\x9b1m\r\n\u202eb\u2066c\x85d\u2028e\u2029f\ud800g\x7f\x00"
SHOWN = r"a\x1b[31m\x9b1m\r\n\u202eb\u2066c\x85d\u2028e\u2029f\ud800g\x7f\x00"
# pytest-xdist cannot send a report whose log holds half of a character.
LOGGED, LOGGED_SHOWN = EVIL.replace("\ud800", ""), SHOWN.replace(r"\ud800", "")
FORBIDDEN = {char for char in EVIL if not char.isprintable()} - {"\n"}
CODE = "graph-agent's own text, [bold]not markup[/bold] :smile:"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards."""
    root, own = logging.getLogger(), logging.getLogger("graph_agent")
    # Another test of the process may have started a uvicorn that gave its loggers handlers of their own.
    servers = [logging.getLogger("uvicorn"), logging.getLogger("uvicorn.access")]
    before = [(logger, vars(logger).copy()) for logger in (root, own, *servers)]
    root.handlers = []
    for logger in servers:
        logger.handlers, logger.propagate = [], True
        logger.setLevel(logging.NOTSET)
    yield root
    for logger, attributes in before:
        logger.setLevel(attributes["level"])
        logger.handlers, logger.propagate = attributes["handlers"], attributes["propagate"]


def test_control_characters_are_escapes() -> None:
    kept = "Grüße, 你好, שלום 👩\u200d💻"

    assert (printable(EVIL), printable(kept), printable_lines("a\tb\r\nc\x1bd")) == (SHOWN, kept, "a\tb\nc\\x1bd")


@pytest.mark.parametrize("name", ["graph_agent.server", "uvicorn.access", "mcp.client"])
def test_logged_foreign_text_is_one_line(root: logging.Logger, capsys: pytest.CaptureFixture[str], name: str) -> None:
    log_at("info")
    logging.getLogger(name).warning("%s failed", f"/x\n2026-01-01 INFO root: forged {LOGGED}")

    [line] = capsys.readouterr().err.splitlines()
    assert line.partition(": ")[2] == rf"/x\n2026-01-01 INFO root: forged {LOGGED_SHOWN} failed"


@pytest.mark.parametrize("level", [None, "debug"])
def test_each_further_line_of_a_traceback_is_indented(
    root: logging.Logger, capsys: pytest.CaptureFixture[str], level: str | None
) -> None:
    logger = logging.getLogger("graph_agent.test")
    log_at(level) if level else log_warnings()
    try:
        raise ValueError(f"first\nERROR root: forged {LOGGED}")
    except ValueError as error:
        log_failure(logger, "It", error)
        logger.exception("It")

    err = capsys.readouterr().err
    begins = [line for line in err.split("\n") if line and not line.startswith("    ")]
    assert (len(begins), FORBIDDEN & set(err)) == (3 if level else 2, set())


def test_secrets_are_masked_in_every_record_but_our_ids_are_not(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_at("info")
    session = "0123456789abcdef0123456789abcdef"
    logging.getLogger("graph_agent.test").warning("session %s, host=h password=pw! x=1", session)
    logging.getLogger("psycopg.pool").warning("error in %r", {"cookie": "sid=1; other=2"})

    lines = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [f"session {session}, host=h password=*** x=1", "error in {'cookie': '***'}"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.yaml").write_text("name: echoing\nmodel: openai:gpt-4o-mini\n")
    return tmp_path


def test_run_prints_questions_answers_and_failed_runs_without_control_characters(folder: Path) -> None:
    reply = f"one\n\ttwo {EVIL} {CODE}"
    call = {"tool_calls": [{"id": "1", "name": f"no\n> forged{EVIL}", "arguments": {}}]}
    done = run_cli(
        folder, "run", f"ask {EVIL.replace(chr(0), '')}".replace("\ud800", ""), script=[json.dumps(call), reply]
    )

    assert (FORBIDDEN & set(done.stdout + done.stderr), CODE in done.stdout, "\n\ttwo a" in done.stdout) == (
        set(),
        True,
        True,
    )


def test_ids_of_sessions_are_listed_one_a_line(folder: Path) -> None:
    run_cli(folder, "run", "--session", "mine", "one", script=["No more actions.", "One."])
    ids = [f"a\nforged\x1b[2J\u202e[red]{number}[/red]:smile:" for number in range(2)]
    with sqlite3.connect(folder / "graph_agent.db") as connection:
        for thread in ids:
            connection.execute(
                "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, type, checkpoint, metadata)"
                " SELECT ?, checkpoint_ns, checkpoint_id, type, checkpoint, metadata FROM checkpoints LIMIT 1",
                [thread],
            )
    connection.close()

    shown = [*(rf"a\nforged\x1b[2J\u202e[red]{number}[/red]:smile:" for number in range(2)), "mine"]
    listed = [line.partition("\t")[0] for line in run_cli(folder, "sessions").stdout.splitlines()]
    assert (sorted(listed), sorted(run_cli(folder, "sessions", "--quiet").stdout.splitlines())) == (shown, shown)


@pytest.mark.parametrize("db", ["host=h password='s3 cret!' user=me", "mysql://me:s3 cret!@h/db"])
def test_the_password_of_an_address_that_cannot_be_used_is_masked(folder: Path, db: str) -> None:
    done = run_cli(folder, "sessions", "--db", db)

    assert (done.returncode, "s3" in done.stderr, "no such kind of database" in done.stderr) == (2, False, True)


def test_an_unexpected_exception_is_printed_without_its_secrets_and_control_characters(folder: Path) -> None:
    (folder / "failing.py").write_text(f"raise BaseException({'host=h password=s3cret ' + EVIL!r})\n")
    (folder / "agent.yaml").write_text("name: failing\nmodel: failing:make\n")
    done = run_cli(folder, "run", "hello")

    assert (done.returncode, FORBIDDEN & set(done.stderr), "s3cret" in done.stderr, "Traceback" in done.stderr) == (
        1,
        set(),
        False,
        True,
    )


@pytest.mark.parametrize("command", [["run", "hello"], ["abort"], ["steer", "hello"]], ids=" ".join)
def test_an_id_that_is_not_utf8_is_refused_in_one_line(folder: Path, command: list[str]) -> None:
    done = run_cli(folder, *command, "--session", "a\udcff", script=["No more actions.", "One."])

    assert (done.returncode, "Traceback" in done.stderr, r"a\\udcff" in done.stderr) == (2, False, True)
