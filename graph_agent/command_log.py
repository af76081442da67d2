"""The log of the commands `run`, `serve` and `a2a`: its level, and one handler on standard error."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Annotated, Any

import typer

from graph_agent.events import IN_HISTORY
from graph_agent.failures import MULTILINE
from graph_agent.printable import printable, printable_lines
from graph_agent.redaction import mask_named_secrets, mask_secrets

_OWN = "graph_agent"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogLevel(StrEnum):
    """The levels that a command takes."""

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
        "--log-level", case_sensitive=False, show_default=False, help="What to log on standard error; overrides -v."
    ),
]


def chosen_level(verbose: int, level: LogLevel | None) -> LogLevel | None:
    """The level that the options of a command come to; None where none is given.

    Args:
        verbose: How often `-v` is given: once for INFO, twice for DEBUG.
        level: The value of `--log-level`, which wins.
    """
    if level is not None or not verbose:
        return level
    return LogLevel.INFO if verbose == 1 else LogLevel.DEBUG


def log_at(level: str | None) -> None:
    """Write the log to standard error, in place of an earlier call's handler.

    Records of other packages are shown from INFO upwards at most: their DEBUG records hold whole requests. What looks
    like a secret in them is masked.

    Args:
        level: Name of the level of this package's records. None for `warning`; then a log that the program has set up
            is left alone.
    """
    root = logging.getLogger()
    if level is None and any(not isinstance(each, _Handler) for each in root.handlers):
        return
    number = logging.getLevelNamesMapping()[(level or LogLevel.WARNING).upper()]
    _replace_handler(_Handler(_FORMAT))
    root.setLevel(max(number, logging.INFO))
    logging.getLogger(_OWN).setLevel(number)


def log_warnings(*, without_history: bool = False) -> None:
    """Write warnings to standard error, without their time, in place of an earlier call's handler.

    Args:
        without_history: Whether those are left out that a run shows from its history.
    """
    handler = _Handler("%(message)s")
    handler.setLevel(logging.WARNING)
    if without_history:
        handler.addFilter(lambda record: not any(hasattr(record, name) for name in IN_HISTORY))
    _replace_handler(handler)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # the class takes its argument in stubs only
    def __init__(self, text_format: str) -> None:
        super().__init__()
        self.setFormatter(_PrintableFormatter(text_format))


class _PrintableFormatter(logging.Formatter):
    """Writes each record so that no text in it can begin a line like a record's, or control a terminal.

    A message is one line. The lines of a traceback, and of a message whose record has `MULTILINE`, are indented.
    Secrets are masked.
    """

    def format(self, record: logging.LogRecord) -> str:
        mask = mask_named_secrets if record.name.partition(".")[0] == _OWN else mask_secrets
        # A copy: what is set on a record is read by other handlers, and what these have set is not printable.
        shown = logging.makeLogRecord(record.__dict__)
        if shown.exc_info:
            shown.exc_text = None
        return mask(super().format(shown))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - it is logging's name
        record.message = (_indented if hasattr(record, MULTILINE) else printable)(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - it is logging's name
        return f"    {_indented(super().formatException(ei))}"

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - it is logging's name
        return f"    {_indented(super().formatStack(stack_info))}"


def _indented(text: str) -> str:
    return printable_lines(text).replace("\n", "\n    ")


def _replace_handler(handler: _Handler) -> None:
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
