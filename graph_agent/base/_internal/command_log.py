"""Configures the log of `run`, `serve` and `a2a`: the level, and one handler on standard error."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Protocol

import typer

from graph_agent.base._internal.failure_log import IN_HISTORY, LOG_FIELDS, MULTILINE
from graph_agent.base._internal.secrets import mask_named_secrets, mask_secrets
from graph_agent.base._internal.text import printable, printable_lines
from graph_agent.base.errors import ConfigError

_OWN = "graph_agent"
FORMAT_VARIABLE = "GRAPH_AGENT_LOG_FORMAT"
"""Environment variable with the format of log records: `text` (the default) or `json`."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogStream(Protocol):
    """A stream that log records are written to as text, such as `sys.stderr`."""

    def write(self, text: str, /) -> int:
        """Write a text and return its length."""
        ...

    def flush(self) -> None:
        """Write the buffered text."""


class LogLevel(StrEnum):
    """Log levels that a command accepts."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, show_default=False, help="Log each step; -vv: tracebacks of failures as well."
    ),
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        envvar="GRAPH_AGENT_LOG_LEVEL",
        case_sensitive=False,
        show_default=False,
        help="What to log on standard error; overrides -v.",
    ),
]


def chosen_level(verbose: int, level: LogLevel | None) -> LogLevel | None:
    """Return the log level that a command's options choose.

    That is `level` if it is given, else INFO for one `-v` and DEBUG for more; None if neither option is given.
    """
    if level is not None or not verbose:
        return level
    return LogLevel.INFO if verbose == 1 else LogLevel.DEBUG


def log_at(level: str | None, stream: LogStream | None = None) -> None:
    """Write the log of this process to standard error or to `stream`; replaces the handler of an earlier call.

    DEBUG records of other packages are never written, because they contain whole requests. Text that looks like a
    secret is masked.

    Args:
        level: The lowest level to write, a `LogLevel` in any case. None for `warning`; logging that the program has
            configured itself is then left unchanged.
        stream: Where the log is written; None for standard error.

    Raises:
        ConfigError: `GRAPH_AGENT_LOG_FORMAT` is neither `json` nor `text`.
        KeyError: The level is unknown.
    """
    root = logging.getLogger()
    if level is None and any(not isinstance(each, _Handler) for each in root.handlers):
        return
    number = logging.getLevelNamesMapping()[(level or LogLevel.WARNING).upper()]
    _replace_handler(_Handler(_FORMAT, stream))
    root.setLevel(max(number, logging.INFO))
    logging.getLogger(_OWN).setLevel(number)


def log_warnings(*, without_history: bool = False, stream: LogStream | None = None) -> None:
    """Write warnings and errors: as text the bare message, as JSON also the time. Replaces the handler of an earlier
    call; the levels of loggers stay.

    Args:
        without_history: Whether to omit records, of any level, that the command also prints from the session's history.
        stream: Where they are written; None for standard error.

    Raises:
        ConfigError: `GRAPH_AGENT_LOG_FORMAT` is neither `json` nor `text`.
    """
    handler = _Handler("%(message)s", stream)
    handler.setLevel(logging.WARNING)
    if without_history:
        handler.addFilter(lambda record: not any(hasattr(record, name) for name in IN_HISTORY))
    _replace_handler(handler)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # the class takes its argument in stubs only
    """The handler of the commands, which writes text or JSON by `GRAPH_AGENT_LOG_FORMAT`."""

    def __init__(self, text_format: str, stream: LogStream | None) -> None:
        super().__init__(stream)
        form = os.environ.get(FORMAT_VARIABLE, "").strip().lower()
        if form not in ("json", "text", ""):
            raise ConfigError(f"{FORMAT_VARIABLE}={form!r}: write 'json' or 'text', or unset it.")
        self.setFormatter(_JsonFormatter() if form == "json" else _PrintableFormatter(text_format))


class _JsonFormatter(logging.Formatter):
    """Formats a record as one line of ASCII JSON with the `LOG_FIELDS` of its run, e.g. its session.

    Secrets are masked.
    """

    def format(self, record: logging.LogRecord) -> str:
        mask = mask_named_secrets if record.name.partition(".")[0] == _OWN else mask_secrets
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        fields = {name: getattr(record, name) for name in LOG_FIELDS if hasattr(record, name)}
        about = {"time": at, "level": record.levelname, "logger": record.name, "message": mask(record.getMessage())}
        if record.exc_info:
            about["exception"] = mask(self.formatException(record.exc_info))
        return json.dumps({**about, **fields})


class _PrintableFormatter(logging.Formatter):
    """Formats records so that no text in them can imitate the start of a record or control a terminal.

    A message is one line. Lines of a traceback, and of a message whose record has `MULTILINE`, are indented. Secrets
    are masked.
    """

    def format(self, record: logging.LogRecord) -> str:
        mask = mask_named_secrets if record.name.partition(".")[0] == _OWN else mask_secrets
        # A copy: other handlers read the attributes of the record, and the text that they cached is not printable.
        shown = logging.makeLogRecord(record.__dict__)
        if shown.exc_info:
            shown.exc_text = None
        return mask(super().format(shown))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides a method of logging
        record.message = (_indented if hasattr(record, MULTILINE) else printable)(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - overrides a method of logging
        return f"    {_indented(super().formatException(ei))}"

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - overrides a method of logging
        return f"    {_indented(super().formatStack(stack_info))}"


def _indented(text: str) -> str:
    return printable_lines(text).replace("\n", "\n    ")


def _replace_handler(handler: _Handler) -> None:
    """Add a handler to the root logger in place of the handlers that an earlier call added."""
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
