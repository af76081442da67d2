"""What the log says of our own failures: one line without secrets, and a trace only where it is asked for."""

from __future__ import annotations

import errno
import logging
import sqlite3

from graph_agent.models.errors import mask_secrets

_SHOWN_CHARS = 300
_PRIMARY = 0xFF
"""The bits of an SQLite error's code that say its kind."""
_DISK_FULL = "53100"
"""PostgreSQL's code for a full disk."""


def log_failure(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log that something failed; the trace, whose text may hold secrets, only where the logger is at DEBUG.

    Args:
        logger: Whose log.
        what: What failed, as the subject of a sentence.
        error: Why.
    """
    logger.error(
        "%s failed: %s: %s",
        what,
        type(error).__name__,
        mask_secrets(str(error))[:_SHOWN_CHARS],
        exc_info=error if logger.isEnabledFor(logging.DEBUG) else None,
    )


def is_out_of_space(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, comes from a full disk: a file's, SQLite's or PostgreSQL's."""
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
