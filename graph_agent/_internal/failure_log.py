"""Logging of failures: one line without secrets, and the traceback at DEBUG only."""

from __future__ import annotations

import errno
import logging
import sys
import traceback

from graph_agent._internal.exception_text import exception_text
from graph_agent._internal.redaction import mask_secrets

IN_HISTORY = {"in_history": True}
"""`extra` of a log record whose text is also in the history, so that a program that shows both can drop one."""
MULTILINE = "multiline"
"""Attribute of log records whose message intentionally spans several lines."""
_SHOWN_CHARS = 300
_PRIMARY = 0xFF
"""Mask of the primary code within an extended SQLite error code."""
_DISK_FULL = "53100"
"""PostgreSQL's code for a full disk."""


def log_failure(logger: logging.Logger, what: str, error: BaseException, *, level: int = logging.ERROR) -> None:
    """Log a failure in one line, and its traceback in a second record at DEBUG. Secrets are masked in both.

    Args:
        logger: Where to log.
        what: What failed, as the subject of a sentence.
        error: The exception.
        level: Level of the one-line record.
    """
    logger.log(level, "%s failed: %s", what, mask_secrets(exception_text(error))[:_SHOWN_CHARS])
    log_traceback(logger, what, error)


def log_traceback(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log an exception's traceback at DEBUG, with secrets masked.

    Args:
        logger: Where to log.
        what: What failed, as the subject of a sentence.
        error: The exception.
    """
    if logger.isEnabledFor(logging.DEBUG):
        # As text: a handler would format an `exc_info` with its secrets.
        trace = "".join(traceback.format_exception(error)).rstrip()
        logger.debug("%s", f"{what} failed:\n{mask_secrets(trace)}", extra={MULTILINE: True})


def is_disconnected(error: BaseException) -> bool:
    """Whether an error or one of its causes reports that PostgreSQL is unavailable or closed the connection."""
    # Not imported: a process without the driver has no such errors.
    driver = sys.modules.get("psycopg")
    found: BaseException | None = error if driver is not None else None
    while found is not None:
        if driver is not None and isinstance(found, driver.OperationalError):
            return True
        found = found.__cause__ or found.__context__
    return False


def is_out_of_space(error: BaseException) -> bool:
    """Whether an error or one of its causes reports a full disk: an OSError, an SQLite or a PostgreSQL error."""
    # Imported here: an agent without an SQLite database does not need the module.
    import sqlite3

    found: BaseException | None = error
    while found is not None:
        if isinstance(found, sqlite3.Error) and getattr(found, "sqlite_errorcode", 0) & _PRIMARY == sqlite3.SQLITE_FULL:
            return True
        if isinstance(found, OSError) and found.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if getattr(found, "sqlstate", None) == _DISK_FULL:
            return True
        found = found.__cause__ or found.__context__
    return False
