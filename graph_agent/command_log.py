"""The log of the commands `run`, `serve` and `a2a`: its level, and one handler on standard error."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Annotated

import typer

from graph_agent.events import IN_HISTORY
from graph_agent.models.errors import mask_secrets

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


def log_at(level: str) -> None:
    """Write the log to standard error, in place of an earlier call's handler.

    Records of other packages are shown from INFO upwards at most: their DEBUG records hold whole requests. What looks
    like a secret in them is masked.

    Args:
        level: Name of the level of this package's records.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    _replace_handler(root, _Handler(_FORMAT))
    root.setLevel(max(number, logging.INFO))
    logging.getLogger(_OWN).setLevel(number)


def log_what_is_not_shown() -> None:
    """Write this package's warnings to standard error, without those that a run shows from its history."""
    handler = _Handler("%(message)s")
    handler.addFilter(lambda record: not any(hasattr(record, name) for name in IN_HISTORY))
    _replace_handler(logging.getLogger(_OWN), handler)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # the class takes its argument in stubs only
    def __init__(self, text_format: str) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(text_format))

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.name.partition(".")[0] == _OWN else mask_secrets(text)


def _replace_handler(logger: logging.Logger, handler: _Handler) -> None:
    for earlier in [each for each in logger.handlers if isinstance(each, _Handler)]:
        logger.removeHandler(earlier)
    logger.addHandler(handler)
