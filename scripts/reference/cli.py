"""The page of the command line, from the signatures of its commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from enum import StrEnum
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from typer import Context, Typer
from typer.models import ArgumentInfo, CommandInfo, OptionInfo

from graph_agent.base._internal.validation_text import field_docs
from graph_agent.interfaces.cli.app import app
from graph_agent.interfaces.cli.env_file import NO_ENV
from graph_agent.interfaces.server.settings import ServerSettings
from scripts.reference.markdown import code, default_of, document, table, type_of

_PROGRAM = "graph-agent"
_EXIT_STATUS = [
    ("0", "The command succeeded."),
    ("1", "A run failed or was aborted; `doctor` found a problem; `abort` found no run."),
    ("2", "The command line, the agent file or the database is at fault; standard error names the fix."),
    ("4", "The session waits for an answer; standard error names the command that goes on."),
    ("130", "The command was interrupted (Ctrl-C)."),
]


def page() -> str:
    """Return the page."""
    commands = dict(_commands(app))
    return document(
        "Command line",
        f"{app.info.help} `{_PROGRAM} COMMAND --help` prints the text of one command, and "
        f"`{_PROGRAM} --version` the version. A command with `--config` reads the file `.env` next to the agent "
        f"file, whose variables the environment overrides; `{NO_ENV}` leaves it out.",
        table(
            ("Command", "Description"),
            [
                (f"[`{name}`](#{_PROGRAM}-{name.replace(' ', '-')})", cleandoc(run.__doc__ or ""))
                for name, run in commands.items()
            ],
        ),
        *(part for name, run in commands.items() for part in _section(name, run)),
        "## Server settings",
        f"`--set FIELD=VALUE` of `{_PROGRAM} serve` and `{_PROGRAM} a2a` sets a field of `ServerSettings`; the value "
        f"is YAML. `{_PROGRAM} serve --list-settings` prints this list.",
        table(("Field", "Type", "Default", "Description"), _settings()),
        "## Exit status",
        table(("Status", "Meaning"), _EXIT_STATUS),
    )


def surface() -> Iterator[str]:
    """Yield each command, with its arguments and options after it; `?` marks an argument that is optional."""
    for name, run in _commands(app):
        yield f"{_PROGRAM} {name}"
        types = get_type_hints(run, include_extras=True)
        for parameter in signature(run).parameters.values():
            kind, info = get_args(types[parameter.name]) or (None, None)
            if isinstance(info, ArgumentInfo):
                optional = "" if parameter.default is Parameter.empty else "?"
                yield f"{_PROGRAM} {name} {parameter.name.upper()}{'...' if 'list' in str(kind) else ''}{optional}"
            elif isinstance(info, OptionInfo):
                yield f"{_PROGRAM} {name} {' '.join(_options_of(info))}"


def _commands(of: Typer, prefix: str = "") -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the commands and those of groups, each group's own callback first, with their names."""
    for group in of.registered_groups:
        assert group.typer_instance is not None
        info = group.typer_instance.info
        name = f"{prefix}{group.name}"
        if callable(info.callback):
            yield name, info.callback
        yield from _commands(group.typer_instance, f"{name} ")
    for each in of.registered_commands:
        if each.callback is not None:
            yield f"{prefix}{_name(each)}", each.callback


def _name(command: CommandInfo) -> str:
    return command.name or getattr(command.callback, "__name__", "").replace("_", "-")


def _section(name: str, run: Callable[..., object]) -> Iterator[str]:
    types = get_type_hints(run, include_extras=True)
    arguments, options = [], []
    for parameter in signature(run).parameters.values():
        if types[parameter.name] is Context:
            continue
        kind, info = get_args(types[parameter.name])
        if isinstance(info, ArgumentInfo):
            required = parameter.default is Parameter.empty
            many = "..." if "list" in str(kind) else ""
            arguments.append((f"{parameter.name.upper()}{many}", required, info.help or ""))
        else:
            options.append(_option(kind, info, parameter.default))
    usage = [shown if required else f"[{shown}]" for shown, required, _ in arguments]
    yield f"## {_PROGRAM} {name}"
    yield cleandoc(run.__doc__ or "")
    yield f"```text\n{' '.join([_PROGRAM, name, *(['[OPTIONS]'] if options else []), *usage])}\n```"
    if arguments:
        yield table(("Argument", "Description"), [(code(shown), text) for shown, _, text in arguments])
    if options:
        yield table(("Option", "Value", "Default", "Description"), options)


def _option(kind: Any, info: OptionInfo, default: Any) -> tuple[str, ...]:
    names = _options_of(info)
    hidden = info.show_default is False or default in (None, "", [], False)
    text = info.show_default if isinstance(info.show_default, str) else "" if hidden else str(default)
    return ", ".join(map(code, names)), "" if info.count else _value(kind), code(text), info.help or ""


def _options_of(info: OptionInfo) -> list[str]:
    # Typer keeps the first name of an `Option(...)` in `default`.
    return [str(info.default), *(info.param_decls or ())]


def _value(kind: Any) -> str:
    [kind] = [each for each in get_args(kind) or (kind,) if each is not NoneType]
    if get_origin(kind) is list:
        [kind] = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(code(each.value) for each in kind)
    return {bool: "", int: "integer", Path: "path", datetime: "date"}.get(kind, "text")


def _settings() -> Iterator[tuple[str, ...]]:
    schema, docs = ServerSettings.model_json_schema(), field_docs(ServerSettings)
    for name, field in ServerSettings.model_fields.items():
        if name != "keys":
            text = re.sub(r"\bNone\b", "null", docs[name])
            yield code(name), type_of(schema["properties"][name]), default_of(field.default), text
