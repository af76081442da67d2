"""What a client's message may hold: what neither JSON nor a database can is refused before a task is made of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from a2a.server.agent_execution import RequestContext, SimpleRequestContextBuilder
from a2a.types import SendMessageRequest
from a2a.utils.errors import InvalidParamsError
from google.protobuf.struct_pb2 import Struct, Value


class CheckedRequests(SimpleRequestContextBuilder):
    """Makes the context of a request, unless its message cannot be kept."""

    async def build(self, context: Any, params: SendMessageRequest | None = None, **given: Any) -> RequestContext:
        """As the SDK's.

        Raises:
            InvalidParamsError: When a number of its metadata or data is not finite, or an id holds a NUL.
        """
        if params is not None:
            _check(params)
        return await super().build(context, params, **given)


def _check(params: SendMessageRequest) -> None:
    message = params.message
    for name, text in (("messageId", message.message_id), ("contextId", message.context_id)):
        if "\x00" in text:
            raise InvalidParamsError(message=f"message.{name} holds a NUL character; send an id without it.")
    told: list[tuple[str, Struct | Value]] = [("metadata", params.metadata), ("message.metadata", message.metadata)]
    for number, part in enumerate(message.parts):
        told.append((f"message.parts[{number}].metadata", part.metadata))
        if part.HasField("data"):
            told.append((f"message.parts[{number}].data", part.data))
    for place, value in told:
        if not all(map(math.isfinite, _numbers([value]))):
            raise InvalidParamsError(message=f"{place} holds NaN or Infinity, which JSON has no numbers for.")


def _numbers(values: Iterable[Struct | Value]) -> Iterator[float]:
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Struct):
            waiting.extend(value.fields.values())
            continue
        match value.WhichOneof("kind"):
            case "number_value":
                yield value.number_value
            case "struct_value":
                waiting.append(value.struct_value)
            case "list_value":
                waiting.extend(value.list_value.values)
            case _:
                pass
