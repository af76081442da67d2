"""What an exception of a hook does."""

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
    """Raise for a hook that failed, or warn that it is skipped, as its `on_error` says.

    Args:
        hook: The hook.
        error: What it raised; it is being handled.
        warn: Takes a warning for the user.

    Raises:
        HookError: When the hook declares `on_error = "fail"`.
        BaseException: The error itself, when it is the run's.
    """
    # A question to a person cannot be asked here: resuming would ask the model anew.
    if meant_for_the_run(error) and not isinstance(error, GraphBubbleUp):
        raise error
    name = f"The hook {type(hook).__name__}"
    fault = f"{name} failed: {exception_text(error)}"
    log_traceback(logger, name, error)
    if getattr(hook, "on_error", "fail") != "skip":
        raise HookError(fault) from error
    warn(f"{fault}; it is skipped.")
