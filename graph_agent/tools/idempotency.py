"""A key by which a service can tell a call repeated from a new one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from graph_agent.calls import canonical_arguments
from graph_agent.errors import InputError
from graph_agent.types import Call

_current: ContextVar[tuple[str, Call, str] | None] = ContextVar("graph_agent_current_call", default=None)


def idempotency_key(session_id: str | None = None, call: Call | None = None, wave: str = "") -> str:
    """The key of a call: the same whenever this call of this session is run, another for every other call.

    Inside a tool it is asked for without arguments:

    ```python
    @tool
    async def charge(amount: int) -> str:
        return await payments.post(amount, idempotency_key=idempotency_key())
    ```

    Args:
        session_id: The session; None inside a tool.
        call: The call; None inside a tool.
        wave: Which of the session's waves the call belongs to, because models repeat ids from one input to the next;
            left out inside a tool.

    Returns:
        64 hexadecimal digits, made of the session's id, the wave, the call's id and name, and its canonical arguments.

    Raises:
        InputError: Without arguments, outside a tool that an agent runs.
    """
    if session_id is None or call is None:
        current = _current.get()
        if current is None:
            raise InputError("idempotency_key() without arguments is for the inside of a tool that an agent runs.")
        session_id, call, wave = current
    parts = [session_id, wave, call["id"], call["name"], canonical_arguments(call["arguments"])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def key_of_current_call() -> str | None:
    """`idempotency_key()` inside a call of an agent's tool; None elsewhere."""
    return idempotency_key() if _current.get() is not None else None


@contextmanager
def current_call(session_id: str, call: Call, wave: str) -> Iterator[None]:
    """While a call runs, `idempotency_key()` is its key."""
    token = _current.set((session_id, call, wave))
    try:
        yield
    finally:
        _current.reset(token)
