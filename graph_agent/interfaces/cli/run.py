"""Implements `run`, `chat` and `resume`: conversations with an agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.base._internal import command_log
from graph_agent.base._internal.extras import needs_extra
from graph_agent.base.errors import GraphAgentError, InputError
from graph_agent.interfaces.cli import options, run_async
from graph_agent.interfaces.cli.terminal import log_stream

if TYPE_CHECKING:
    from graph_agent.interfaces.cli.one_shot import Settings

STDIN = "-"
"""The question on the command line that is replaced by all of standard input."""

StartedSession = Annotated[
    str | None, typer.Option("--session", "-s", callback=options.session_option, help="A session to start or continue.")
]
ApproveAllOption = Annotated[
    bool, typer.Option("--approve-all", help="Approve calls without a question, except those that may have run before.")
]


def run(
    questions: Annotated[
        list[str] | None,
        typer.Argument(
            help="Questions, each in its own session unless --session is given; `-` is standard input as one question. "
            "Without any, a conversation: at a terminal as `chat`, else with the lines of standard input."
        ),
    ] = None,
    config: options.ConfigOption = options.AGENT_FILE,
    session: StartedSession = None,
    today: options.TodayOption = None,
    db: options.DbOption = None,
    credential: options.CredentialOption = None,
    json_lines: options.JsonOption = False,
    approve_all: ApproveAllOption = False,
    reasoning: options.ReasoningOption = False,
    record: options.RecordOption = False,
    verbose: command_log.VerboseOption = 0,
    log_level: command_log.LogLevelOption = None,
) -> None:
    """Ask an agent, and print its progress and answer."""
    level = command_log.chosen_level(verbose, log_level)
    settings = settings_of(
        config,
        session,
        today,
        db,
        credential,
        as_json=json_lines,
        approve_all=approve_all,
        reasoning=reasoning,
        record=record,
        level=level,
    )
    _converse(settings, questions or [])


def chat(
    config: options.ConfigOption = options.AGENT_FILE,
    session: StartedSession = None,
    today: options.TodayOption = None,
    db: options.DbOption = None,
    credential: options.CredentialOption = None,
    approve_all: ApproveAllOption = False,
    web: Annotated[
        bool, typer.Option("--web", help="Converse on a page in the browser; needs the extra `server`.")
    ] = False,
    record: options.RecordOption = False,
    verbose: command_log.VerboseOption = 0,
    log_level: command_log.LogLevelOption = None,
) -> None:
    """Hold a conversation with an agent; /help lists what can be typed."""
    level = command_log.chosen_level(verbose, log_level)
    # The page has its own server, whose agent reads the date from the environment.
    if web:
        if approve_all:
            raise InputError("On the page, a person decides on calls; leave out --approve-all or --web.")
        with needs_extra("graph-agent chat --web", "server"):
            from graph_agent.agent_file.credentials import sources_from
            from graph_agent.agent_file.spec import TODAY_VARIABLE
            from graph_agent.interfaces.cli.dialog import user_name
            from graph_agent.interfaces.server.agent_source import of_file
            from graph_agent.interfaces.server.serve import serve_page
        if today is not None:
            os.environ[TODAY_VARIABLE] = today.date().isoformat()
        source = of_file(config, sources_from(credential or []), record=record, db=db, caller=user_name())
        serve_page(source, session_id=session, db=db, log_level=level)
        return
    settings = settings_of(config, session, today, db, credential, approve_all=approve_all, record=record, level=level)
    _converse(settings, [])


def resume(
    session: options.SessionArgument,
    config: options.ConfigOption = options.AGENT_FILE,
    today: options.TodayOption = None,
    db: options.DbOption = None,
    credential: options.CredentialOption = None,
    approve_all: Annotated[bool, typer.Option("--approve-all", help="Approve every call that waits now.")] = False,
    reject_all: Annotated[bool, typer.Option("--reject-all", help="Reject every call that waits now.")] = False,
    message: Annotated[str, typer.Option("--message", "-m", help="The reason of --reject-all, for the model.")] = "",
    decision: Annotated[
        list[str] | None,
        typer.Option(
            "--decision",
            "-d",
            help="One for each call that waits, in order: approve, reject, reject:REASON, edit:{arguments as JSON} or "
            "respond:TEXT.",
        ),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option("--answer", "-a", help="One for each question that is no approval, in order; text or JSON."),
    ] = None,
    json_lines: options.JsonOption = False,
    reasoning: options.ReasoningOption = False,
    record: options.RecordOption = False,
    verbose: command_log.VerboseOption = 0,
    log_level: command_log.LogLevelOption = None,
) -> None:
    """Answer the open questions of a session, or continue a run that a crash interrupted.

    Without a decision or an answer, the questions are asked at the terminal.
    """
    from graph_agent.interfaces.cli.dialog import GivenAnswers
    from graph_agent.interfaces.cli.one_shot import resume_one

    level = command_log.chosen_level(verbose, log_level)
    settings = settings_of(
        config, session, today, db, credential, as_json=json_lines, reasoning=reasoning, record=record, level=level
    )
    # A session in memory ended with its process.
    options.shared_database(settings.address)
    given = GivenAnswers(approve_all, reject_all, message, decision or (), answer or ())
    _end(run_async(resume_one(settings, given)))


def _converse(settings: Settings, questions: Sequence[str]) -> None:
    """Ask the questions, or hold a conversation if there are none, and exit with the status. Never returns.

    At a terminal, a conversation without `--json` has a line editor; otherwise each line of standard input is a
    message. With `--json`, a `GraphAgentError` that ends the command is also printed as an object.

    Args:
        settings: The agent, and how to print.
        questions: The questions; `-` is replaced by standard input.
    """
    if not questions and not settings.as_json and sys.stdin.isatty() and sys.stdout.isatty():
        from graph_agent.interfaces.cli.chat import chat_with

        _end(run_async(chat_with(settings)))
    from graph_agent.interfaces.cli.one_shot import ask_questions

    inputs = [(_read_stdin(), False) if each == STDIN else (each, True) for each in questions]
    if not settings.as_json:
        _end(run_async(ask_questions(settings, inputs)))
    try:
        status = run_async(ask_questions(settings, inputs))
    except GraphAgentError as error:
        from graph_agent.interfaces.cli.report import print_error

        # Programs that read JSON lines receive the error as an object, too.
        print_error(error)
        raise
    _end(status)


def settings_of(
    config: Path,
    session: str | None,
    today: datetime | None = None,
    db: str | None = None,
    credential: Sequence[str] | None = None,
    *,
    as_json: bool = False,
    approve_all: bool = False,
    reasoning: bool = False,
    record: bool = False,
    level: command_log.LogLevel | None = None,
) -> Settings:
    """Return the settings of a command that runs an agent, from its options.

    Also sets up the log, and OpenTelemetry if the environment variable `GRAPH_AGENT_OTEL` switches it on.

    Args:
        config: Path of the agent file.
        session: Id of the session to start or continue; None for a new one.
        today: The agent's current date; None for the real one.
        db: URL of another database than the file's; None for the file's.
        credential: Secrets for tools, each `NAME=env:VARIABLE`.
        as_json: Print JSON in place of text.
        approve_all: Approve every call without asking.
        reasoning: Print the model's reasoning.
        record: Store the requests that models receive.
        level: The log level; None to log warnings, except those that events contain, which are printed with the run.

    Raises:
        ConfigError: The agent file or a credential is invalid.
    """
    if level is not None:
        command_log.log_at(level, log_stream)
    else:
        # Warnings that the history has are printed with the run.
        command_log.log_warnings(without_history=True, stream=log_stream)
    if os.environ.get("GRAPH_AGENT_OTEL"):
        from graph_agent.integrations.otel import instrument_from_env, is_switched_on

        if is_switched_on():
            instrument_from_env()
    # Imported here: they load the graph's modules, which most commands do not need.
    from graph_agent.agent_file.credentials import sources_from
    from graph_agent.agent_file.spec import load_spec, recording, with_sources
    from graph_agent.interfaces.cli.one_shot import Settings

    given = [*(["--config", str(config)] if config != options.AGENT_FILE else []), *(["--db", db] if db else [])]
    spec = with_sources(load_spec(config), sources_from(credential or []))
    return Settings(
        spec=recording(spec) if record else spec,
        session_id=session,
        today=today.date() if today else None,
        db=db,
        as_json=as_json,
        approve_all=approve_all,
        reasoning=reasoning,
        options=given,
    )


def _read_stdin() -> str:
    """Return the whole of standard input without surrounding white space; raise `InputError` if nothing is left."""
    text = sys.stdin.read().strip()
    if not text:
        raise InputError("Standard input is empty; `-` takes the question from it.")
    return text


def _end(status: int) -> None:
    """Exit with a status. For 130 (Ctrl-C), threads are not waited for, because they may be blocked."""
    from graph_agent.interfaces.cli.agent_thread import STOPPED, leave_interrupted

    if status == STOPPED:
        leave_interrupted()
    sys.exit(status)
