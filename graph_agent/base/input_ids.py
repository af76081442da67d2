"""Defines the id of an input: its caller chooses it, so that a repeated request runs the input only once.

A run with an input id stores id and digest of the input in the metadata of each of its checkpoints. They are committed
together with the input, and inherited by every run that continues the input. The savers of `open_saver` find them
through an index; for other savers, `inputs.deduplicator` searches the recent ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import StateSnapshot

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.errors import InputConflictError, InputError

INPUT_ID = "graph_agent_input"
"""Key of an input's id in checkpoint metadata, and in the `configurable` of a run without a `Session`."""
INPUT_DIGEST = "graph_agent_digest"
"""Key of an input's digest (a hash of its content) in checkpoint metadata."""
ANSWERS = "graph_agent_answers"
"""Checkpoint namespace that keeps the results of inputs whose own checkpoints were pruned.

It has one checkpoint for each input with an id: its last one, with the messages and events of that input only.
"""
RECENT_INPUTS = "graph_agent_inputs"
"""Key in checkpoint metadata: the inputs with an id before the checkpoint's own, or the checkpoint that lists them."""
MOST_INPUTS = 32
"""Maximum number of earlier inputs with an id that a session recognizes if its saver cannot search by the id."""
KEY_IN_META = "graph-agent/idempotency-key"
"""Key of a call's idempotency key in the `_meta` of an MCP request; an agent takes it as the input's id."""
MAX_LENGTH = 255
"""Maximum characters of an input id."""


class InputStoredError(Exception):
    """Raised in place of running an input that was run before.

    `state` is the graph's state with its answer or interrupt.
    """

    def __init__(self, state: StateSnapshot) -> None:
        super().__init__("The input has its result already.")
        self.state = state


@dataclass(frozen=True, slots=True)
class InputId:
    """The id that the caller chose for an input, and the hash by which a different input under the same id is
    recognized."""

    id: str
    digest: str

    @property
    def metadata(self) -> dict[str, str]:
        """Id and digest as entries of checkpoint metadata."""
        return {INPUT_ID: self.id, INPUT_DIGEST: self.digest}

    def names(self, other: InputId | None, session_id: str) -> bool:
        """Whether another input has the same id; False if `other` is None.

        Args:
            other: Another input of the session.
            session_id: The session's id, for the error.

        Raises:
            InputConflictError: The id is the same but the digest differs, so that it is a different input.
        """
        if other is None or other.id != self.id:
            return False
        if other.digest != self.digest:
            raise InputConflictError(
                f"The input id {self.id!r} of session {session_id!r} belongs to a different input. Repeat that "
                "input unchanged, or send a new one under a new id."
            )
        return True


def input_id_in(metadata: Mapping[str, Any]) -> InputId | None:
    """Return id and digest of the input from a checkpoint's metadata; None for an input without an id."""
    id_, digest = metadata.get(INPUT_ID), metadata.get(INPUT_DIGEST)
    return InputId(id_, digest) if isinstance(id_, str) and isinstance(digest, str) else None


def check_input_id(input_id: Any) -> str:
    """Return an input id unchanged if it is valid: a text of 1 to 255 printable characters.

    Raises:
        InputError: The id is not valid.
    """
    valid = isinstance(input_id, str) and 0 < len(input_id) <= MAX_LENGTH and input_id.isprintable()
    if not valid:
        raise InputError(f"input_id={input_id!r}: an input id is a text of 1 to {MAX_LENGTH} printable characters.")
    return str(input_id)


def as_input_id(given: str) -> str:
    """Return a client's id of a request, which must not be empty, as an input id: unchanged if it is valid, else its
    SHA-256 in hexadecimal."""
    is_valid = len(given) <= MAX_LENGTH and given.isprintable()
    return given if is_valid else hashlib.sha256(given.encode(errors="surrogatepass")).hexdigest()


def digest_of(given: Any) -> str:
    """Return a hash of an input, 32 hexadecimal digits, equal for repetitions of the same input.

    The ids and metadata of messages are ignored, because they differ in a repetition.

    Args:
        given: Plain JSON, which may contain LangChain messages.
    """
    # A client may send the keys of a repetition in another order.
    text = json.dumps(_comparable(given), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _comparable(value: Any) -> Any:
    """Return an input as plain JSON that is equal for equal inputs; tuples become lists.

    A message is reduced to its type, content, name and tool calls, without empty fields, because its id and metadata
    differ when an input is repeated.
    """
    if isinstance(value, BaseMessage):
        fields = ("type", "content", "name", "tool_calls", "tool_call_id")
        return {name: _comparable(found) for name in fields if (found := getattr(value, name, None))}
    if isinstance(value, Mapping):
        return {str(name): _comparable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return to_json_safe(value)
