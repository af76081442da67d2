"""Exceptions as one line of text, exception groups included."""

from __future__ import annotations

from collections.abc import Iterator

_SHOWN_CAUSES = 5
_NO_MESSAGE_OF_ITS_OWN = "unhandled errors in a TaskGroup"
"""Message of the exception groups that asyncio and AnyIO task groups raise."""


def exception_text(error: BaseException) -> str:
    """Return an exception's class and message; for an exception group, however nested, those of its leaves.

    Returns e.g. `ValueError: no rooms`, `KeyError: 'a'; OSError: refused` for a task group's exceptions, and
    `three searches failed (KeyError: 'a'; OSError: refused)` for a group with a custom message. Equal causes are
    listed once, and at most five causes, followed by the number of the others. If an exception was raised from a
    group, the group follows it in parentheses.
    """
    if isinstance(error, BaseExceptionGroup):
        return _group_text(error)
    name, message = type(error).__name__, _message(error)
    text = f"{name}: {message}" if message else name
    cause = error.__cause__
    return f"{text} ({_group_text(cause)})" if isinstance(cause, BaseExceptionGroup) else text


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, however nested, in order; yield any other exception unchanged."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _group_text(group: BaseExceptionGroup[BaseException]) -> str:
    texts = list(dict.fromkeys(exception_text(leaf) for leaf in leaves(group)))
    shown = "; ".join(texts[:_SHOWN_CAUSES])
    if (more := len(texts) - _SHOWN_CAUSES) > 0:
        shown = f"{shown}; and {more} more"
    message = "" if _NO_MESSAGE_OF_ITS_OWN in group.message else group.message.strip()
    return f"{message} ({shown})" if message else shown


def _message(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001 - a custom __str__ may raise anything; the class name is still available
        return ""
