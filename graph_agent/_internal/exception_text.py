"""Exceptions as one line of text, exception groups included."""

from __future__ import annotations

from collections.abc import Iterator

_SHOWN_CAUSES = 5
_NO_MESSAGE_OF_ITS_OWN = "unhandled errors in a TaskGroup"
"""What asyncio and AnyIO call the group of a task group."""


def exception_text(error: BaseException) -> str:
    """An exception's class and message; of an exception group, however nested, those of its causes.

    Returns e.g. `ValueError: no rooms`, `KeyError: 'a'; OSError: refused` for a task group's exceptions, and
    `three searches failed (KeyError: 'a'; OSError: refused)` for a group with a message of its own. Equal causes are
    given once; of more than five, the first five and the number of the others. A group that an exception was raised
    from stands behind it in parentheses.
    """
    if isinstance(error, BaseExceptionGroup):
        return _group_text(error)
    name, message = type(error).__name__, _message(error)
    text = f"{name}: {message}" if message else name
    cause = error.__cause__
    return f"{text} ({_group_text(cause)})" if isinstance(cause, BaseExceptionGroup) else text


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, however nested, in order; any other exception by itself."""
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
    except Exception:  # noqa: BLE001 - an exception's own __str__ may raise anything; its class is known all the same
        return ""
