"""Handling of exceptions raised by hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from langgraph.errors import GraphBubbleUp

from graph_agent._internal.exception_text import exception_text
from graph_agent._internal.failure_log import log_traceback
from graph_agent.hooks.protocol import HookError
from graph_agent.tools.invoke import meant_for_the_run

logger = logging.getLogger(__name__)


def fail_or_skip(hook: Any, error: BaseException, warn: Callable[[str], None]) -> None:
    """Raise for a failed hook, or warn that it is skipped, according to its `on_error`.

    Args:
        hook: The hook.
        error: The hook's exception, which is being handled.
        warn: Called with a warning for the user.

    Raises:
        HookError: If the hook declares `on_error = "fail"`.
        BaseException: The error itself, if it belongs to the run, such as a cancellation.
    """
    # An interrupt is a fault here: resuming would repeat the model call.
    if meant_for_the_run(error) and not isinstance(error, GraphBubbleUp):
        raise error
    name = f"The hook {type(hook).__name__}"
    fault = f"{name} failed: {exception_text(error)}"
    log_traceback(logger, name, error)
    if getattr(hook, "on_error", "fail") != "skip":
        raise HookError(fault) from error
    warn(f"{fault}; it is skipped.")
