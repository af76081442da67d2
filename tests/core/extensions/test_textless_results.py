"""A tool that returns an object without a text of its own fails with its type, and the model never reads an address."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, ConfigDict

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.delegation import DelegationResult
from graph_agent.hooks.web_search import WebSearchInterception
from graph_agent.mcp import open_mcp_tools
from tests.support.agents import asks
from tests.support.warm_process import warm_python


class Foo:
    """An object without a text of its own."""

    def look(self) -> None: ...


def local_object() -> Any:
    class Local:
        """An object of a class that is defined in a function."""

    return Local()


def local_function() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


class Named:
    def __str__(self) -> str:
        return "A name."


class Shown:
    def __repr__(self) -> str:
        return "Shown()"


@dataclass
class Holder:
    inner: Any


class Model(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    inner: Any


TEXTLESS: dict[str, tuple[Callable[[], Any], str]] = {
    "object": (Foo, "Foo"),
    "in a list": (lambda: [1, Foo()], "Foo"),
    "in a dict": (lambda: {"a": {"b": Foo()}}, "Foo"),
    "in a tuple": (lambda: ("a", Foo()), "Foo"),
    "in a set": (lambda: {Foo()}, "Foo"),
    "in a deque": (lambda: deque([Foo()]), "Foo"),
    "in a view": ({"a": Foo()}.values, "dict_values"),
    "in a dataclass": (lambda: Holder(Foo()), "Foo"),
    "in a model": (lambda: [Model(inner={"a": Foo()})], "Foo"),
    "function": (lambda: test_a_blocking_tool_that_raises_fails_as_before, "function"),
    "lambda": (lambda: lambda: None, "function"),
    "nested function": (lambda: [local_function()], "function"),
    "object of a local class": (local_object, "local_object.<locals>.Local"),
    "bound method": (lambda: {"a": Foo().look}, "method"),
    "method": (lambda: Foo().__str__, "method-wrapper"),
    "iterator": (lambda: map(str, [1]), "map"),
    "lock": (threading.Lock, "lock"),
}
READABLE: dict[str, tuple[Any, str]] = {
    "str": (Named(), "A name."),
    "repr": (Shown(), "Shown()"),
    "in a list": ([Named()], '["A name."]'),
    "text of an address": ("<x.Foo object at 0x7f00>", "<x.Foo object at 0x7f00>"),
    "dict": ({"a": 1}, '{"a": 1}'),
    "class": (int, "<class 'int'>"),
    "dataclass": (Holder(1), '{"inner": 1}'),
    "none": (None, "null"),
}
SERVER = Path(__file__).parents[2] / "support" / "mcp_servers" / "values_server.py"
CALL = asks(("c1", "look", {}))


def blocking(value: Callable[[], Any]) -> BaseTool:
    @tool
    def look() -> Any:
        """Look."""
        return value()

    return look


def asynchronous(value: Callable[[], Any]) -> BaseTool:
    @tool
    async def look() -> Any:
        """Look."""
        return value()

    return look


def with_artifact(value: Callable[[], Any]) -> BaseTool:
    def look() -> Any:
        """Look."""
        return value(), None

    return StructuredTool.from_function(look, response_format="content_and_artifact")


def own_class(value: Callable[[], Any]) -> BaseTool:
    class Look(BaseTool):
        name: str = "look"
        description: str = "Look."

        def _run(self) -> Any:
            return value()

    return Look()


async def result_of(look: Any, script: list[str] | None = None, **options: Any) -> tuple[str, str]:
    """The status and the text of the call's result, as the model reads it."""
    model = ScriptedChatModel([*(script or [CALL]), "Done."])
    tools = look if isinstance(look, list) else [look] if look else []
    agent = create_graph_agent(model, tools, checkpointer=InMemorySaver(), **options)
    await Session(agent, "s1").run("go")
    [read] = [message for message in model.requests[-1].messages if isinstance(message, ToolMessage)]
    return read.status, read.text


def expected(source: str, kind: str) -> tuple[str, str]:
    why = "which has no text of its own, so its result cannot be read. It ran, and may have taken effect."
    return "error", f"{source} returned an object of type {kind}, {why}"


@pytest.mark.parametrize("name", TEXTLESS)
@pytest.mark.parametrize("make", [blocking, asynchronous, with_artifact, own_class])
async def test_an_object_without_a_text_is_an_error_that_names_its_type(
    make: Callable[[Callable[[], Any]], BaseTool], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    value, kind = TEXTLESS[name]

    found = await result_of(make(value))

    assert found == expected("look", kind)
    assert [record.getMessage().partition(";")[0] for record in caplog.records if record.levelname == "ERROR"] == [
        f"look returned an object of type {kind}, which has no text of its own"
    ]


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("make", [blocking, asynchronous])
async def test_a_value_with_a_text_is_read_as_before(make: Callable[[Callable[[], Any]], BaseTool], name: str) -> None:
    value, text = READABLE[name]

    assert await result_of(make(lambda: value)) == ("success", text)


@pytest.mark.parametrize("make", [blocking, asynchronous, with_artifact])
async def test_iterators_inside_a_value_are_read_once(make: Callable[[Callable[[], Any]], BaseTool]) -> None:
    look = make(lambda: {"rows": map(str, [1, 2]), "more": (n for n in [3])})

    assert await result_of(look) == ("success", '{"rows": ["1", "2"], "more": [3]}')


def test_a_blocking_tool_that_raises_fails_as_before() -> None:
    assert Foo().__repr__().startswith("<")


async def test_an_object_is_returned_once_whatever_the_retries() -> None:
    ran: list[int] = []

    def value() -> Any:
        ran.append(1)
        return Foo()

    look = blocking(value)
    look.metadata = {"effect": "write", "retry": {"max_attempts": 3, "initial_interval": 0}}

    assert (await result_of(look), len(ran)) == (expected("look", "Foo"), 1)


@pytest.mark.parametrize("make", [Foo, local_object])
async def test_a_message_that_shows_only_an_address_is_an_error(make: Callable[[], Any]) -> None:
    @tool
    def look() -> Any:
        """Look."""
        return ToolMessage(str(make()), tool_call_id="c1")

    assert (await result_of(look))[0] == "error"


@pytest.mark.parametrize("name", ["thing", "things"])
async def test_a_tool_of_an_mcp_server_that_sends_an_address_is_an_error(name: str) -> None:
    async with open_mcp_tools({"v": {"transport": "stdio", "command": warm_python(), "args": [str(SERVER)]}}) as tools:
        found = await result_of([*tools], [asks(("c1", name, {}))])

    assert found == expected(name, "object")


@pytest.mark.parametrize(("value", "kind"), [(Foo, "Foo"), (lambda: map(str, [1]), "map")], ids=["object", "iterator"])
async def test_a_search_of_a_hook_that_returns_an_object_is_an_error(value: Callable[[], Any], kind: str) -> None:
    hook = WebSearchInterception(lambda query: [value()])
    call = asks(("c1", "web_search", {"query": "x"}))

    assert await result_of(None, [call], hooks=[hook]) == expected("The search", kind)


async def test_a_search_of_a_hook_that_returns_an_object_whose_text_fails_is_an_error() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    hook = WebSearchInterception(lambda query: [Broken()])

    status, text = await result_of(None, [asks(("c1", "web_search", {"query": "x"}))], hooks=[hook])

    assert (status, text.startswith("The search failed: ")) == ("error", True)


class Helper:
    name = "helper"
    description = "Helps."

    def __init__(self, result: DelegationResult) -> None:
        self._result = result

    async def run(self, *_: Any, **__: Any) -> DelegationResult:
        return self._result


@pytest.mark.parametrize(
    "result",
    [
        DelegationResult(str(Foo())),
        DelegationResult([{"type": "text", "text": str(Foo())}]),
        DelegationResult([{"type": "data", "data": Foo()}]),
        DelegationResult("Done.", value={"a": [Foo()]}),
    ],
    ids=["text", "block", "data", "value"],
)
async def test_a_delegate_that_returns_an_object_fails_with_its_type(result: DelegationResult) -> None:
    call = asks(("c1", "delegate_to_helper", {"task": "Go."}))

    status, text = await result_of(None, [call], delegates=[Helper(result)])

    assert (status, "has no text of its own" in text, " at 0x" in text) == ("error", True, False)


async def test_a_tool_with_a_direct_return_gives_no_address_as_the_answer() -> None:
    @tool(return_direct=True)
    def look() -> Any:
        """Look."""
        return [Foo()]

    agent = create_graph_agent(ScriptedChatModel([CALL, "It failed."]), [look], config=LoopConfig())

    assert (await agent.ainvoke({"messages": "go"}))["messages"][-1].text == "It failed."
