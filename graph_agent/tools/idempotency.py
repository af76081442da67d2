"""Derives idempotency keys, by which a service detects a repeated call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from graph_agent.calls import canonical_arguments
from graph_agent.errors import InputError
from graph_agent.types import Call

_current_call: ContextVar[tuple[str, Call, str] | None] = ContextVar("graph_agent_current_call", default=None)


def idempotency_key(session_id: str | None = None, call: Call | None = None, wave: str = "") -> str:
    """Return the key of a call: the same for each run of this call in this session, different for every other call.

    Inside a tool, call it without arguments:

    ```python
    @tool
    async def charge(amount: int) -> str:
        return await payments.post(amount, idempotency_key=idempotency_key())
    ```

    Args:
        session_id: The session's id; None inside a tool.
        call: The call; None inside a tool.
        wave: Identifier of the call's wave within the session, because models repeat call ids across inputs; omitted
            inside a tool.

    Returns:
        64 hexadecimal digits: a hash of the session's id, the wave, and the call's id, name and canonical arguments.

    Raises:
        InputError: If called without arguments outside a tool that an agent runs.
    """
    if session_id is None or call is None:
        current = _current_call.get()
        if current is None:
            raise InputError("idempotency_key() without arguments is for the inside of a tool that an agent runs.")
        session_id, call, wave = current
    parts = [session_id, wave, call["id"], call["name"], canonical_arguments(call["arguments"])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def key_of_current_call() -> str | None:
    """Return `idempotency_key()` inside a tool call of an agent; None elsewhere."""
    return idempotency_key() if _current_call.get() is not None else None


@contextmanager
def current_call(session_id: str, call: Call, wave: str) -> Iterator[None]:
    """Set the call whose key `idempotency_key()` returns inside the context."""
    token = _current_call.set((session_id, call, wave))
    try:
        yield
    finally:
        _current_call.reset(token)
