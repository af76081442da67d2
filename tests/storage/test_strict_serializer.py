"""Stored bytes build only the listed types, in every encoding."""

from __future__ import annotations

import json
import logging
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_METHOD_SINGLE_ARG,
    EXT_NUMPY_ARRAY,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)
from langgraph.types import Send

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver, strict_serializer

PROMPT = {
    "lc": 1,
    "type": "constructor",
    "id": ["langchain_core", "prompts", "chat", "ChatPromptTemplate"],
    "kwargs": {},
}
MESSAGE = {
    "lc": 1,
    "type": "constructor",
    "id": ["langchain", "schema", "messages", "HumanMessage"],
    "kwargs": {"content": "x", "type": "human"},
}
OLD = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["true"]}
OLD_SAFE = {"lc": 2, "type": "constructor", "id": ["pathlib", "Path"], "args": ["/"]}
SECRET = {"lc": 1, "type": "secret", "id": ["PATH"]}


@pytest.mark.parametrize(
    "constructor", [PROMPT, MESSAGE, OLD, OLD_SAFE, SECRET, {"lc": 1, "type": "not_implemented", "id": ["x"]}]
)
@pytest.mark.parametrize("place", [lambda value: value, lambda value: {"a": [value]}], ids=["top", "nested"])
def test_json_data_builds_no_object(constructor: Any, place: Callable[[Any], Any]) -> None:
    value = place(constructor)

    assert strict_serializer().loads_typed(("json", json.dumps(value).encode())) == value


def test_a_constructor_in_json_data_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stored = dumps(ChatPromptTemplate([("human", "{x}")])).encode()
    with caplog.at_level(logging.WARNING, "graph_agent.checkpoints.open"):
        value = strict_serializer().loads_typed(("json", stored))

    assert (value, "ChatPromptTemplate" in caplog.text) == (json.loads(stored), True)


_PACKED: dict[str, tuple[int, Any]] = {
    "single argument": (EXT_CONSTRUCTOR_SINGLE_ARG, (__name__, "build", "x")),
    "positional arguments": (EXT_CONSTRUCTOR_POS_ARGS, (__name__, "build", ["x"])),
    "keyword arguments": (
        EXT_CONSTRUCTOR_KW_ARGS,
        (__name__, "build", {"value": "x"}),
    ),
    "method": (EXT_METHOD_SINGLE_ARG, (__name__, "Builder", "x", "build")),
    "method of a listed type": (EXT_METHOD_SINGLE_ARG, ("pathlib", "Path", "x", "unlink")),
    "pydantic 1": (EXT_PYDANTIC_V1, (__name__, "build", {"value": "x"})),
    "pydantic 2": (
        EXT_PYDANTIC_V2,
        (__name__, "build", {"value": "x"}, "model_validate_json"),
    ),
    "langchain's own class": (
        EXT_PYDANTIC_V2,
        ("langchain_core.prompts.chat", "ChatPromptTemplate", {"messages": []}, "model_validate_json"),
    ),
    "array of objects": (EXT_NUMPY_ARRAY, ("|O", [1], "C", bytes(8))),
}
_built: list[Any] = []


def build(value: Any = None) -> Any:
    _built.append(value)
    return value


class Builder:
    build = staticmethod(build)


@pytest.fixture(autouse=True)
def nothing_built() -> Iterator[None]:
    _built.clear()
    yield
    assert _built == []


@pytest.mark.parametrize("name", _PACKED)
def test_msgpack_extension_builds_no_unlisted_type(name: str) -> None:
    code, content = _PACKED[name]
    stored = ormsgpack.packb({"inside": [ormsgpack.Ext(code, ormsgpack.packb(content))]})

    # The arguments stay, as the plain data that they are; an array of objects has no data.
    expected = None if code == EXT_NUMPY_ARRAY else content[2]
    assert strict_serializer().loads_typed(("msgpack", stored)) == {"inside": [expected]}


def test_msgpack_map_in_the_form_of_a_constructor_stays_a_map() -> None:
    assert strict_serializer().loads_typed(("msgpack", ormsgpack.packb({"a": PROMPT}))) == {"a": PROMPT}


def test_pickled_data_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="Unknown serialization type: pickle"):
        strict_serializer().loads_typed(("pickle", pickle.dumps(Builder())))


def test_listed_types_are_restored() -> None:
    given = {"messages": [HumanMessage("a"), AIMessage("b")], "folder": Path("x"), "n": {1, 2}}

    assert strict_serializer().loads_typed(strict_serializer().dumps_typed(given)) == given


async def test_planted_checkpoint_builds_no_object(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        graph = create_graph_agent(ScriptedChatModel(["One."]), checkpointer=saver)
        await Session(graph, "s1").run("first")
    with sqlite3.connect(tmp_path / "s.db") as database:
        planted = database.execute(
            "UPDATE writes SET type = 'json', value = ? WHERE channel = 'usage'", [json.dumps(PROMPT)]
        ).rowcount
        checkpoints = database.execute("SELECT rowid, type, checkpoint FROM checkpoints").fetchall()
        for row, kind, stored in checkpoints:
            content = strict_serializer().loads_typed((kind, stored))
            content["channel_values"]["usage"] = PROMPT
            database.execute(
                "UPDATE checkpoints SET type = 'json', checkpoint = ? WHERE rowid = ?", [_as_json(content), row]
            )
    database.close()
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        graph = create_graph_agent(ScriptedChatModel(["Two."]), checkpointer=saver)
        values = (await graph.aget_state({"configurable": {"thread_id": "s1"}})).values

    assert (planted > 0, values["usage"]) == (True, PROMPT)


def _as_json(content: Any) -> bytes:
    return json.dumps(content, default=str).encode()


STORED = [
    None,
    b"bytes",
    {"a": [1, 2.5, "x", None, {1, 2}, Path("a/b")]},
    AIMessage("hello", id="1", tool_calls=[{"id": "c", "name": "look", "args": {"key": "k"}}]),
    Send("tools", {"call": {"id": "c", "arguments": {"key": "\ud800"}}}),
    Send("tools", {"messages": [HumanMessage("hello")]}, timeout=2.5),
    {"channel_values": {"__pregel_tasks": [Send("tools", Send("tools", (1, 2)))]}},
]


@pytest.mark.parametrize("value", STORED, ids=str)
def test_the_stored_form_is_that_of_langgraph(value: Any) -> None:
    assert strict_serializer().dumps_typed(value) == JsonPlusSerializer().dumps_typed(value)
