"""Defines what selects a call for approval in the settings: a name pattern or a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from graph_agent.base.types import Call

ApprovalRule: TypeAlias = str | Callable[[Call], Any]
"""Selects calls that need approval: a pattern of names, or a function that returns whether a given call needs approval.

The function may be asynchronous.
"""


def signature_fault(rule: Callable[..., Any]) -> str | None:
    """Return why a function cannot be an approval rule, as a clause.

    None if it takes one argument or its signature is unknown.
    """
    try:
        inspect.signature(rule).bind({})
    except TypeError as error:
        return f"an approval function takes one argument, the call, and {rule!r} does not ({error})"
    except ValueError:
        pass  # built-in functions may have no signature
    return None
