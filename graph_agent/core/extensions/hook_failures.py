"""Reports failed hooks: which hook raised an exception, and whether it ends the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.errors import GraphBubbleUp

from graph_agent.base._internal.failure_log import get_logger, log_user_error
from graph_agent.base.errors import HookError
from graph_agent.core.extensions.invoke import belongs_to_run
from graph_agent.models.errors import public_exception_text

logger = get_logger("graph_agent.hooks.copies")
_RAISED_BY = "_graph_agent_raised_by"
"""Attribute of exceptions with the name of the hook that raised them."""


def hook_error(hook: str, error: BaseException, *, kind: str = "middleware") -> HookError:
    """Return (not raise) the `HookError` that ends the input after a hook's exception, which is logged with its
    traceback.

    Args:
        hook: Name of the hook.
        error: The exception, which becomes the cause of the returned error; the error's text leaves out a provider's
            message. A `HookError`, which reports an unusable value of the hook, is not logged and no cause, and only
            its text is used.
        kind: Category for the `error` event: `middleware` or `hook`.
    """
    if isinstance(error, HookError):
        return HookError(f"The hook {hook} failed: {error}", kind=kind)
    log_user_error(logger, f"The hook {hook}", error)
    failed = HookError(f"The hook {hook} failed: {public_exception_text(error)}", kind=kind)
    failed.__cause__ = error
    return failed


def mark_raised(error: BaseException, hook: str) -> None:
    """Record on an exception which hook raised it; hooks around that one receive the exception itself."""
    setattr(error, _RAISED_BY, hook)


def hook_that_raised(error: BaseException) -> str | None:
    """Return the hook's name that `mark_raised` recorded on an exception; None for any other exception."""
    name: str | None = getattr(error, _RAISED_BY, None)
    return name


def fail_or_skip(hook: Any, error: BaseException, warn: Callable[[str], None]) -> None:
    """Raise a `HookError` for a failed hook, or warn that the hook is skipped, according to its `on_error`.

    Args:
        hook: The hook; one without `on_error` counts as `fail`.
        error: The hook's exception, which is being handled. An interrupt of the graph counts as a failure.
        warn: Called with a warning for the user.

    Raises:
        HookError: The hook declares `on_error = "fail"`.
        BaseException: The error itself, if it belongs to the run, such as a cancellation.
    """
    # An interrupt is a fault here: resuming would repeat the model call.
    if belongs_to_run(error) and not isinstance(error, GraphBubbleUp):
        raise error
    failed = hook_error(type(hook).__name__, error, kind="hook")
    if getattr(hook, "on_error", "fail") != "skip":
        raise failed
    warn(f"{failed}; it is skipped.")
