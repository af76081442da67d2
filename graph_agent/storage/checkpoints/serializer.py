"""Serializes checkpoints; reads plain types and LangChain messages, and never unpickles."""

from __future__ import annotations

import json
import logging
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graph_agent.base._compat.checkpoints import packed
from graph_agent.base.errors import UnreadableValueError

logger = logging.getLogger("graph_agent.checkpoints.serializer")


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serializer without the constructors of `langchain_core.load` in JSON data.

    LangGraph writes only msgpack, whose types are checked against its list of safe types. Its JSON reader, kept for old
    checkpoints, constructs any class of langchain-core (`{"lc": 1, "type": "constructor", …}`). This class reads such
    an object as a plain dict and logs a warning.
    """

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the type and the bytes of a value, the same as LangGraph's serializer.

        The type is `null` for None, `bytes` or `bytearray` for those, and otherwise `msgpack`. Raises
        `ormsgpack.MsgpackEncodeError` if an object has no such form; it is never pickled.
        """
        if obj is None or isinstance(obj, bytes | bytearray):
            return super().dumps_typed(obj)
        return "msgpack", packed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value of a type and bytes that `dumps_typed` or an older LangGraph returned.

        Raises `NotImplementedError` for another type, such as `pickle`, and `UnreadableValueError` if the bytes are
        damaged.
        """
        try:
            if data[0] == "json":
                return json.loads(data[1], object_hook=_as_plain_data)
            return super().loads_typed(data)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise UnreadableValueError(f"{type(error).__name__}: {error}") from error


def _as_plain_data(value: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object as it is; log a warning if LangGraph's reader would construct an object from it."""
    if "lc" in value and value.get("type") == "constructor":
        logger.warning(
            "A checkpoint holds a constructor of %r. It is read as plain data; objects are not constructed from JSON.",
            value.get("id"),
        )
    return value
