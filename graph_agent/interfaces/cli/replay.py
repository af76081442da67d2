"""Implements `graph-agent replay`, which runs recorded sessions again and reports where they differ."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from graph_agent.base._internal.command_log import LogLevel, log_at
from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import printable
from graph_agent.base.errors import ConfigError, InputError
from graph_agent.interfaces.cli import options, run_async
from graph_agent.interfaces.cli.terminal import Terminal, log_stream
from graph_agent.interfaces.cli.texts import counted

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from graph_agent.agent_file.spec import AgentSpec
    from graph_agent.devtools.session_replay import Replay, Replayer

_COLUMNS = ("SESSION", "RESULT", "INPUT", "STEP", "WHAT")
"""Headings of the table of sessions that differ or cannot be replayed."""


def replay(
    session: Annotated[
        str | None, typer.Argument(callback=options.session_option, help="The session's id; none with --all.")
    ] = None,
    text: Annotated[str | None, typer.Argument(help="With --fork: a new input, which the new session runs.")] = None,
    config: options.ConfigOption = options.AGENT_FILE,
    db: options.DbOption = None,
    number: Annotated[
        int | None, typer.Option("--input", help="Only this input, from 1; -1 is the newest.", show_default="all")
    ] = None,
    from_step: Annotated[
        int | None,
        typer.Option("--from", min=1, metavar="STEP", help="Begin at this step of the input, by default the newest."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A model that replies in place of the recorded replies.")
    ] = None,
    prompt: Annotated[
        Path | None, typer.Option("--prompt", help="A file with the system prompt, in place of the agent file's.")
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tool",
            metavar="NAME=MODULE:ATTRIBUTE",
            help="A reading tool that runs in place of the recorded results of NAME; repeatable.",
        ),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another value of a key of the agent file, e.g. max_steps=3 for its config; repeatable.",
        ),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            "--answers",
            help="exact: another text of an answer is a difference; ignore: it is shown only.",
            show_default="exact; ignore with --model",
        ),
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--continue", help="Go on after a difference; reading tools run where nothing is recorded.")
    ] = False,
    fork: Annotated[
        bool, typer.Option("--fork", help="Copy the session up to --from to a new one, and print its id.")
    ] = False,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as", callback=options.session_option, help="Id of the new session.", show_default="a random one"
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Replay every session of the database.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", help="With --all: sessions since then, e.g. 7d, 12h, or a date as 2026-01-31."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="With --all: maximum number of sessions; 0 for all.")
    ] = 0,
    today: options.TodayOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object per session.")] = False,
) -> None:
    """Replay a session with its agent, and report the first difference; exit status 1 if there is one.

    The recorded model replies, or --model, and calls get their recorded results: a tool that may write never runs. The
    session is unchanged.
    """
    from graph_agent.agent_file.spec import load_spec

    if (session is None) != all_:
        raise typer.BadParameter("give the id of one session, or --all.")
    if not fork and (as_ is not None or text is not None):
        raise typer.BadParameter("TEXT and --as belong to --fork.")
    if answers not in (None, "exact", "ignore"):
        raise typer.BadParameter(f"{answers!r} is neither exact nor ignore.", param_hint="--answers")
    spec = load_spec(config)
    address = options.shared_database(db or spec.db)
    if fork:
        assert session is not None
        if all_ or model or prompt or tools or keys or keep_going:
            raise typer.BadParameter("a fork takes --input, --from and --as only.", param_hint="--fork")
        from graph_agent.interfaces.cli.one_shot import ask_questions, new_session_id
        from graph_agent.interfaces.cli.run import settings_of

        fork_id = as_ or new_session_id()
        for line in run_async(_copy(address, session, fork_id, number, from_step)):
            Terminal(stderr=True).print(f"warning: {line}", style="yellow")
        typer.echo(json.dumps({"session_id": fork_id, "fork_of": session}) if as_json else fork_id)
        if text is None:
            return
        settings = settings_of(config, fork_id, db=db, as_json=as_json)
        raise typer.Exit(run_async(ask_questions(settings, [(text, True)])))
    if all_ and (number is not None or from_step is not None):
        raise typer.BadParameter("--input and --from belong to one session.", param_hint="--all")
    # A step belongs to one input, by default the newest.
    if from_step is not None and number is None:
        number = -1
    log_at(LogLevel.ERROR, log_stream)  # what a session warned of was reported when it ran
    changed = _Change(
        _changed(spec, model, prompt, keys or []),
        today.date() if today else None,
        model is not None,
        _version(prompt),
        _tools(spec, tools or []),
        None if answers is None else "exact" if answers == "exact" else "ignore",
        keep_going,
    )
    if session is not None:
        raise typer.Exit(run_async(_replay_one(changed, address, session, number, from_step or 1, as_json=as_json)))
    begin = None if since is None else _moment(since)
    raise typer.Exit(run_async(_replay_all(changed, address, begin, limit or None, as_json=as_json)))


@dataclass(frozen=True, slots=True)
class _Change:
    """The agent file that replays sessions, and what differs from the agent that recorded them."""

    spec: AgentSpec
    """The agent file, with the keys, model and prompt of the options."""
    today: date | None
    """The agent's current date; None for the local date on which the recorded input began."""
    has_new_model: bool
    """Whether `--model` names a model that replies in place of the recorded replies."""
    prompt_version: str
    """Version of the system prompt of `--prompt`; a changed prompt is then not reported as a difference.

    Empty without `--prompt`.
    """
    tools: dict[str, BaseTool]
    """Name of a tool → the tool that runs in place of its recorded results."""
    answers: Literal["exact", "ignore"] | None
    """`exact` if another text of an answer is a difference, `ignore` if not; None means `exact`, or `ignore` with a new
    model.
    """
    keep_going: bool
    """Whether to continue after a difference."""


def _changed(spec: AgentSpec, model: str | None, prompt: Path | None, keys: Sequence[str]) -> AgentSpec:
    """Return a copy of the agent file with the model, the system prompt and the keys of the options; no file is
    written.

    Args:
        spec: The agent file.
        model: The value of `--model`; None to keep the file's model. It replaces a key `model`.
        prompt: File with the system prompt; a `.yaml` or `.yml` file is a template. None to keep the file's prompt.
        keys: Pairs `KEY=VALUE`. The name of a field of `LoopConfig`, such as `max_steps`, means the key below `config`.

    Raises:
        ConfigError: A key has no `=`, a value is invalid, or the prompt's file does not exist.
    """
    from graph_agent.agent_file.spec import with_keys
    from graph_agent.base.settings.config import LoopConfig

    if any("=" not in each for each in keys):
        raise ConfigError(f"--set {' '.join(keys)}: write KEY=VALUE, e.g. max_steps=3.")
    pairs = dict(each.split("=", 1) for each in keys)
    fields = {f"config.{name}" if name in LoopConfig.model_fields else name: value for name, value in pairs.items()}
    spec = with_keys(spec, fields, "--set") if fields else spec
    if model is not None:
        spec = with_keys(spec, {"model": model}, "--model")
    if prompt is None:
        return spec
    if not prompt.is_file():
        raise ConfigError(f"--prompt {prompt}: there is no such file.")
    is_template = prompt.suffix in (".yaml", ".yml")
    text = str(prompt.resolve()) if is_template else prompt.read_text(encoding="utf-8")
    return spec.model_copy(update={"system_prompt": text})


def _version(prompt: Path | None) -> str:
    """Return the version of the system prompt in a file, in the form in which `plan` events record it.

    It is a hash of the text; in a `.yaml` or `.yml` file, of the text under `template`, without which `ConfigError` is
    raised. Returns an empty text for None.
    """
    from graph_agent.base._internal.text import version_of
    from graph_agent.base._internal.yaml_files import parse_yaml

    if prompt is None:
        return ""
    text: Any = prompt.read_text(encoding="utf-8")
    if prompt.suffix in (".yaml", ".yml"):
        content = parse_yaml(text, str(prompt))
        if not isinstance(content, dict) or not isinstance(text := content.get("template"), str):
            raise ConfigError(f"--prompt {prompt}: a prompt file has one key, 'template', with the text below it.")
    return version_of(text)


def _tools(spec: AgentSpec, given: Sequence[str]) -> dict[str, BaseTool]:
    """Import the tools of the options `NAME=MODULE:ATTRIBUTE`, and return them by the name in the option.

    Of several options with one name, the last counts.

    Raises:
        ConfigError: An option has another form, or the attribute cannot be imported or is no tool.
    """
    from graph_agent.agent_file.factory import load_tool

    found = {}
    for each in given:
        name, _, reference = each.partition("=")
        if not name or ":" not in reference:
            raise ConfigError(f"--tool {each}: write NAME=MODULE:ATTRIBUTE, e.g. weather=my_tools:weather.")
        found[name] = load_tool(reference, spec.folder)
    return found


@asynccontextmanager
async def _replayer(change: _Change) -> AsyncIterator[Replayer]:
    """Open the agent, print its warnings on standard error, and yield the object that replays sessions with the agent.

    The agent's database is not opened, its memory is empty, and the caches of replies and plans are off. Unless the
    agent has a new model (`--model`), a model without replies stands in. Secrets of the agent file are read only if a
    tool can run.
    """
    from graph_agent.agent_file.factory import open_agent, silent_model
    from graph_agent.base.database_urls import MEMORY
    from graph_agent.devtools.session_replay import Replayer

    found: list[Replayer] = []

    def current_date() -> date:
        """Return the local date on which the recorded input began, because its prompt contains the date.

        Returns today's date if no input is being replayed, or it has no event.
        """
        current = found[0].current if found else None
        stamps = () if current is None else (entry["ts"] for entry in current.events)
        first = next(iter(stamps), None)
        return date.today() if first is None else datetime.fromisoformat(first).astimezone().date()

    # A cached reply or plan would replace a recorded one.
    spec = change.spec.model_copy(update={"cache": None, "config": {**change.spec.config, "plan_cache_ttl_s": None}})
    if not change.tools and not change.keep_going:
        # A replay on another machine has no secrets, and needs none while no tool runs.
        spec = spec.model_copy(update={"credentials": {}})
    stand_in = None if change.has_new_model else silent_model()
    today = change.today or current_date
    # A replay must not read or change the facts of a user.
    opening = open_agent(spec, today=today, db="", model=stand_in, memory_db=MEMORY, caller="replay")
    async with opening as graph:
        for warning in graph.input_warnings:
            Terminal(stderr=True).print(f"warning: {warning}", style="yellow")
        found.append(
            Replayer(
                graph,
                model=graph.builder.model if change.has_new_model else None,
                tools=change.tools,
                answers=change.answers,
                ignore_prompt=bool(change.prompt_version),
                keep_going=change.keep_going,
            )
        )
        yield found[0]


async def _replay_one(
    change: _Change, address: str, session: str, number: int | None, from_step: int, *, as_json: bool
) -> int:
    """Replay one session, print the outcome, and return the exit status: 0 if it equals the recording, else 1.

    With `--prompt` and without `as_json`, the versions of the new and of the recorded prompt are printed on standard
    error.

    Args:
        change: The agent that replays.
        address: URL of the database, which is only read.
        session: Id of the session.
        number: The input to replay, from 1, or negative counted from the newest; None for all.
        from_step: The step of the input to begin with, from 1.
        as_json: Print the outcome as one JSON object.

    Raises:
        InputError: The database has no such session, input or step.
    """
    from graph_agent.devtools.recording import read_recording
    from graph_agent.storage.checkpoints.open import open_saver

    async with open_saver(address) as saver:
        if await saver.aget_tuple({"configurable": {"thread_id": session, "checkpoint_ns": ""}}) is None:
            raise options.no_session(session, address)
        recording = await read_recording(saver, session)
    async with _replayer(change) as replayer:
        outcome = await replayer.replay(recording, number=number, from_step=from_step)
    if as_json:
        typer.echo(json.dumps(outcome.as_json()))
        return 0 if outcome.is_equal else 1
    if change.prompt_version:
        plans = (entry for each in recording.inputs for entry in each.events if "versions" in entry)
        recorded = next((plan["versions"]["prompts"].get("system") for plan in plans), None) or "unknown"
        line = f"The system prompt has version {change.prompt_version}; recorded: {recorded}"
        Terminal(stderr=True).print(line, style="dim")
    _print_one(outcome)
    return 0 if outcome.is_equal else 1


def _print_one(outcome: Replay) -> None:
    """Print the outcome of a replay: the differences on standard output, with ignored ones marked.

    Gaps of the recording, and where the replay stopped, are printed on standard error.
    """
    out, err = Terminal(), Terminal(stderr=True)
    for gap in outcome.gaps:
        err.print(f"Not recorded: {gap}", style="dim")
    for each in outcome.differences:
        text, counts = mask_named_secrets(str(each)), each in outcome.counted
        out.line(text if counts else f"{text} (ignored)", style="red" if counts else "dim")
    if outcome.stopped:
        err.print(f"Stopped: {outcome.stopped}")
    if outcome.is_equal:
        out.line(f"Equal: {counted(outcome.inputs, 'input')}, {counted(outcome.steps, 'step')}.", style="green")


async def _replay_all(
    change: _Change, address: str, since: datetime | None, limit: int | None, *, as_json: bool
) -> int:
    """Replay the sessions of a database, print those that differ or fail and the totals, and return the exit status.

    The status is 0 if all are equal, else 1. A session that cannot be replayed counts as failed, and does not stop the
    others. On a terminal the rows are a table at the end, elsewhere lines of columns as they come.

    Args:
        change: The agent that replays.
        address: URL of the database, which is only read.
        since: Only sessions that changed at or after this time; None for all.
        limit: Maximum number of sessions; None for all.
        as_json: Print one JSON object per session, and one with the totals.
    """
    from graph_agent.devtools.recording import read_recording
    from graph_agent.storage.checkpoints.open import open_saver

    out, err = Terminal(), Terminal(stderr=True)
    rows: list[tuple[str, ...]] = []
    counts = {"equal": 0, "different": 0, "failed": 0}
    # The agent is opened once for all sessions: opening starts MCP servers.
    async with open_saver(address) as saver, _replayer(change) as replayer:
        async for session in _sessions(saver, since, limit):
            outcome: Replay | None = None
            try:
                outcome = await replayer.replay(await read_recording(saver, session))
                result: Literal["equal", "different", "failed"] = "equal" if outcome.is_equal else "different"
                first = next(iter(outcome.counted), None)
                place = ("", "") if first is None else (str(first.input), str(first.step) if first.step else "")
                row = (session, result, *place, "" if first is None else mask_named_secrets(first.what))
            except Exception as error:  # noqa: BLE001 - a session that cannot be replayed must not end the others
                result = "failed"
                row = session, result, "", "", mask_named_secrets(f"{type(error).__name__}: {error}")
            counts[result] += 1
            if as_json:
                shown = {"session_id": session, "error": row[-1]} if outcome is None else outcome.as_json()
                typer.echo(json.dumps({"result": result, **shown}))
            elif result != "equal" and out.is_terminal:
                rows.append(row)
                err.print(f"{session} {result}", style="dim")
            elif result != "equal":
                typer.echo("\t".join(map(printable, row)))
    if as_json:
        typer.echo(json.dumps({"sessions": sum(counts.values()), **counts}))
    else:
        if rows:
            out.table(_COLUMNS, rows, ["red" if row[1] == "failed" else "yellow" for row in rows])
        total = sum(counts.values())
        out.line(
            f"{counts['different']} of {total} sessions differ, {counts['equal']} are equal, "
            f"{counts['failed']} cannot be replayed."
        )
    return 1 if counts["different"] or counts["failed"] else 0


async def _sessions(saver: BaseCheckpointSaver[Any], since: datetime | None, limit: int | None) -> AsyncIterator[str]:
    """Yield the ids of a database's sessions, newest first.

    Args:
        saver: The checkpointer of the database.
        since: Only sessions whose newest checkpoint is from this time or later; None for all.
        limit: Maximum number of ids; None for all.
    """
    from graph_agent.session.history import list_threads

    left = limit
    for session in await list_threads(saver):
        # Before the next session is read, which may be long.
        if left == 0:
            return
        if since is not None:
            newest = await saver.aget_tuple({"configurable": {"thread_id": session, "checkpoint_ns": ""}})
            if newest is None or datetime.fromisoformat(newest.checkpoint["ts"]) < since:
                continue
        left = None if left is None else left - 1
        yield session


def _moment(text: str) -> datetime:
    """Return the time that the value of `--since` names.

    The value is a date or time in ISO 8601, in the local zone if it has none, or a duration before now, such as `7d`.
    Raises `typer.BadParameter` for any other text.
    """
    from graph_agent.interfaces.cli.sessions import parse_duration

    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - parse_duration(text)
    except typer.BadParameter:
        fix = "give a duration such as 7d or 12h, or a date such as 2026-01-31"
        raise typer.BadParameter(f"{text!r} is no time; {fix}.", param_hint="--since") from None


async def _copy(address: str, session: str, fork_id: str, number: int | None, from_step: int | None) -> list[str]:
    """Copy a session to a new one, up to a step of an input, and return a warning for each call that may be made again.

    These are the calls that the new session leaves out and that have, or may have, taken effect. The copied session is
    unchanged.

    Args:
        address: URL of the database.
        session: Id of the session.
        fork_id: Id of the new session.
        number: The last input to copy, from 1, or negative counted from the newest; None for the newest.
        from_step: The first step of that input that is left out. 1 leaves out the whole input; None copies all steps.

    Raises:
        InputError: There is no such session, input or step; a call of the last copied input has no result; or nothing
            would be copied.
    """
    from graph_agent.devtools.recording import read_recording
    from graph_agent.interfaces.cli.events import short_json
    from graph_agent.session.forks import fork_session
    from graph_agent.storage.checkpoints.open import open_saver

    async with open_saver(address) as saver:
        recording = await read_recording(saver, session)
        chosen = recording.input(-1 if number is None else number)
        kept = [step for step in chosen.steps if from_step is None or (step.number < from_step and from_step > 1)]
        steps = [step.number for step in chosen.steps if step.number]
        if from_step is not None and from_step > max(steps, default=0) + 1:
            raise InputError(f"Input {chosen.number} has the steps {steps}; it has no step {from_step}.")
        # The new session would run such a call a second time.
        for step in kept:
            for call in step.calls:
                if call.result is None:
                    what = "may have run" if call.started else "has no result"
                    raise InputError(f"Step {step.number}: the call {call.name} {what}; fork from an earlier step.")
        # Events are numbered over the whole session.
        before = sum(len(step.events) for each in recording.inputs[: chosen.number - 1] for step in each.steps)
        end = before + sum(len(step.events) for step in kept)
        if not end:
            raise InputError("Nothing comes before step 1 of input 1; begin a new session in place of a fork.")
        # The agent is not opened, so a call that only reads is among them.
        left_out = await fork_session(saver, None, session, fork_id, end - 1)
        ran = {"success": "succeeded", "unknown": "may have taken effect"}
        return [
            f"Step {call['step']} of {session}: {call['name']} {short_json(call['arguments'])} {ran[call['status']]}; "
            "the fork may make it again."
            for call in left_out
        ]
