"""Logs failures without secrets: services in one line, errors in the user's code with their traceback."""

from __future__ import annotations

import errno
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

from graph_agent.base._internal.secrets import mask_secrets

_SHOWN_CAUSES = 5
_NO_MESSAGE_OF_ITS_OWN = "unhandled errors in a TaskGroup"
"""Message of the exception groups that asyncio and AnyIO task groups raise."""


def exception_text(error: BaseException) -> str:
    """Return an exception's class and message, e.g. `ValueError: no rooms`; the class alone without a message.

    For a task group's exceptions it is `KeyError: 'a'; OSError: refused`, and for a group with a message of its own
    `three searches failed (KeyError: 'a'; OSError: refused)`. Equal exceptions of a group are listed once, and at most
    five, followed by the number of the others. If the exception was raised from a group, the group follows in
    parentheses.
    """
    if isinstance(error, BaseExceptionGroup):
        return _group_text(error)
    name, message = type(error).__name__, _message(error)
    text = f"{name}: {message}" if message else name
    cause = error.__cause__
    return f"{text} ({_group_text(cause)})" if isinstance(cause, BaseExceptionGroup) else text


def clause(text: BaseException | str) -> str:
    """Return an error's text without its final period, for use inside a sentence; an ellipsis at the end is kept."""
    words = str(text).rstrip()
    return words if words.endswith("..") else words.removesuffix(".")


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions inside an exception group, however nested, in order.

    Any other exception is yielded itself.
    """
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _group_text(group: BaseExceptionGroup[BaseException]) -> str:
    """Return the text of an exception group as `exception_text` describes it."""
    texts = list(dict.fromkeys(exception_text(leaf) for leaf in leaves(group)))
    shown = "; ".join(texts[:_SHOWN_CAUSES])
    if (more := len(texts) - _SHOWN_CAUSES) > 0:
        shown = f"{shown}; and {more} more"
    message = "" if _NO_MESSAGE_OF_ITS_OWN in group.message else group.message.strip()
    return f"{message} ({shown})" if message else shown


def _message(error: BaseException) -> str:
    """Return an exception's message; empty if its `__str__` fails."""
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001 - a custom __str__ may raise anything; the class name is still available
        return ""


LOG_FIELDS = ("session_id", "input_id", "step", "call_id")
"""Attributes of log records that identify the run; a record lacks those that do not apply."""
log_fields: ContextVar[Mapping[str, str | int]] = ContextVar("graph_agent_log_fields")
"""Attribute → value of `LOG_FIELDS` for log records of the current task; empty values are left out."""


def get_logger(name: str) -> logging.Logger:
    """Return the logger with this name, to whose records the current `log_fields` are added as attributes."""
    logger = logging.getLogger(name)
    logger.addFilter(_add_fields)
    return logger


def _add_fields(record: logging.LogRecord) -> bool:
    for name, value in log_fields.get({}).items():
        if value != "":
            record.__dict__.setdefault(name, value)
    return True


IN_HISTORY = {"in_history": True}
"""`extra` of a log record whose text is also in the history, so that a program that shows both can drop one."""
MULTILINE = "multiline"
"""Attribute of log records whose message has several lines on purpose."""
_SHOWN_CHARS = 300
_PRIMARY = 0xFF
"""Mask of the primary code within an extended SQLite error code."""
_DISK_FULL = "53100"
"""PostgreSQL's code for a full disk."""


def log_failure(logger: logging.Logger, what: str, error: BaseException, *, level: int = logging.ERROR) -> None:
    """Log in one line that something failed, and the traceback in another record at DEBUG; secrets are masked in both.

    Args:
        what: The thing that failed, as the subject of a sentence.
        error: The exception.
        level: Level of the first record.
    """
    logger.log(level, "%s failed: %s", what, mask_secrets(exception_text(error))[:_SHOWN_CHARS])
    log_traceback(logger, what, error)


def log_traceback(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log an exception's traceback at DEBUG, with secrets masked; does nothing if the logger omits DEBUG records.

    `what` is the subject of the sentence `… failed`.
    """
    if logger.isEnabledFor(logging.DEBUG):
        # As text: a handler would format an `exc_info` with its secrets.
        trace = "".join(traceback.format_exception(error)).rstrip()
        logger.debug("%s", f"{what} failed:\n{mask_secrets(trace)}", extra={MULTILINE: True})


def log_user_error(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log an exception of the user's code in one ERROR record with its traceback, in which secrets are masked.

    The traceback begins in the user's code; it is complete if no frame is of that code. `what` is the subject of the
    sentence `… failed`.
    """
    trace = traceback.TracebackException.from_exception(error)
    own = _own_frames(trace.stack)
    # The frames that lead to the user's code are the same for all errors.
    trace.stack = traceback.StackSummary.from_list(trace.stack[own[0] if own else 0 :])
    lines = f"{what} failed: {exception_text(error)}\n{''.join(trace.format()).rstrip()}"
    logger.error("%s", mask_secrets(lines), extra={MULTILINE: True})


def user_function(error: BaseException) -> str:
    """Return the name of the outermost function of the user's code in an exception's traceback.

    If no frame is the user's, the name of the innermost function of all.
    """
    stack = traceback.extract_tb(error.__traceback__)
    own = _own_frames(stack)
    return str(stack[own[0] if own else -1].name)


def _own_frames(stack: traceback.StackSummary) -> list[int]:
    """Return the indexes of the frames that belong neither to this package nor to the frameworks it uses."""
    import langchain_core  # only errors of the user's code need its place

    library, site = Path(logging.__file__).parents[1], Path(langchain_core.__file__).parents[1]
    framework = (
        Path(__file__).parents[2],
        *(site / name for name in ("langchain", "langchain_core", "langgraph", "pydantic")),
        *(library / name for name in ("asyncio", "concurrent", "threading.py")),
    )
    files = [Path(frame.filename) for frame in stack]
    return [at for at, file in enumerate(files) if not any(file.is_relative_to(each) for each in framework)]


def is_disconnected(error: BaseException) -> bool:
    """Whether an error or one of its causes means that PostgreSQL is unavailable or closed the connection."""
    # Not imported: a process without the driver has no such errors.
    driver = sys.modules.get("psycopg")
    return driver is not None and any(isinstance(each, driver.OperationalError) for each in _with_causes(error))


def is_out_of_space(error: BaseException) -> bool:
    """Whether an error or one of its causes means a full disk or quota, by the code of an `OSError`, of SQLite or of
    PostgreSQL."""
    # Imported here: an agent without an SQLite database does not need the module.
    import sqlite3

    for found in _with_causes(error):
        if isinstance(found, sqlite3.Error) and getattr(found, "sqlite_errorcode", 0) & _PRIMARY == sqlite3.SQLITE_FULL:
            return True
        if isinstance(found, OSError) and found.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if getattr(found, "sqlstate", None) == _DISK_FULL:
            return True
    return False


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and each exception that caused it or that was being handled, the newest first; nothing for
    None.
    """
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
