"""What the log says of our own failures: one line without secrets, and a trace only where it is asked for."""

from __future__ import annotations

import logging

from graph_agent.models.errors import mask_secrets

_SHOWN_CHARS = 300


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
