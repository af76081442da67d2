"""A result's value is the tool's return value as plain JSON; the model receives text."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForToolRun
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel, Field

from graph_agent import GraphDelegate, LoopConfig, RunResult, ScriptedChatModel, Session, create_graph_agent
from graph_agent.mcp import open_mcp_tools
from graph_agent.persistence import open_saver
from graph_agent.session.results import run_result
from tests.support.agents import asks
from tests.support.warm_process import warm_python
from tests.support.wave_helpers import of_type, plan, use, waves


class Room(BaseModel):
    number: int
    name: str = Field(alias="roomName")
    free_on: datetime.date


@dataclasses.dataclass
class Stay:
    nights: int
    rooms: list[Room]


class Colour(enum.Enum):
    RED = "red"


ROOM = Room(number=7, roomName="Süd", free_on=datetime.date(2026, 12, 4))
ROOM_JSON = {"number": 7, "roomName": "Süd", "free_on": "2026-12-04"}
ROOM_TEXT = '{"number": 7, "roomName": "Süd", "free_on": "2026-12-04"}'

# A tool's return value, its plain value, and the text for the model.
RETURNED = {
    "text": ("hello", "hello", "hello"),
    "digits in text": ("123", "123", "123"),
    "number": (123, 123, "123"),
    "JSON in text": ('{"a": 1}', '{"a": 1}', '{"a": 1}'),
    "null in text": ("null", "null", "null"),
    "None": (None, None, "null"),
    "true": (True, True, "true"),
    "1.0": (1.0, 1.0, "1.0"),
    "list": ([1, "a", None], [1, "a", None], '[1, "a", null]'),
    "list of texts": (["a", "b"], ["a", "b"], '["a", "b"]'),
    "empty list": ([], [], "[]"),
    "tuple": ((1, 2), [1, 2], "[1, 2]"),
    "nested": ({"a": {"b": [1.5]}}, {"a": {"b": [1.5]}}, '{"a": {"b": [1.5]}}'),
    "model": (ROOM, ROOM_JSON, ROOM_TEXT),
    "models in a list": ([ROOM], [ROOM_JSON], f"[{ROOM_TEXT}]"),
    "dataclass": (Stay(2, [ROOM]), {"nights": 2, "rooms": [ROOM_JSON]}, f'{{"nights": 2, "rooms": [{ROOM_TEXT}]}}'),
    "dates in a dict": ({"on": datetime.date(2026, 1, 2)}, {"on": "2026-01-02"}, '{"on": "2026-01-02"}'),
    "enum in a list": ([Colour.RED], ["red"], '["red"]'),
    "beyond 64 bits": (10**20, str(10**20), str(10**20)),
    "text blocks": ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", "ab"),
}


def asynchronous(returned: Any) -> BaseTool:
    async def give() -> Any:
        """Give it."""
        return returned

    return tool(give)


def blocking(returned: Any) -> BaseTool:
    def give() -> Any:
        """Give it."""
        return returned

    return tool(give)


def of_a_class(returned: Any) -> BaseTool:
    class Give(BaseTool):
        name: str = "give"
        description: str = "Give it."

        def _run(self) -> Any:
            return returned

    return Give()


def with_artifact(returned: Any) -> BaseTool:
    def give() -> Any:
        """Give it."""
        return returned, {"kept": "aside"}

    return StructuredTool.from_function(give, response_format="content_and_artifact")


async def given(*tools: Any, context: Any = None, calls: Any = None, **options: Any) -> RunResult:
    """The result of an agent that calls `give` once."""
    model = ScriptedChatModel([calls or asks(("c", "give", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=list(tools), checkpointer=InMemorySaver(), **options)
    return await Session(graph, "s1").run("go", context=context)


@pytest.mark.parametrize("case", RETURNED)
@pytest.mark.parametrize("make", [asynchronous, blocking, of_a_class, with_artifact])
async def test_a_result_is_the_value_that_the_tool_returned(make: Callable[[Any], BaseTool], case: str) -> None:
    returned, value, shown = RETURNED[case]
    model = ScriptedChatModel([asks(("c", "give", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[make(returned)], checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("go")

    (result_message,) = [message for message in model.requests[1].messages if isinstance(message, ToolMessage)]
    assert (result.results, type(result.results["c"]), result_message.text) == ({"c": value}, type(value), shown)


def unawaited() -> Any:
    async def pay() -> str:
        return "paid"

    return pay()


def items() -> Any:
    yield "paid"


async def async_items() -> AsyncIterator[str]:
    yield "paid"


@pytest.mark.parametrize(
    ("returns", "kind"), [(unawaited, "coroutine"), (items, "generator"), (async_items, "async_generator")]
)
@pytest.mark.parametrize("is_coroutine", [True, False], ids=["coroutine tool", "blocking tool"])
async def test_a_tool_whose_code_has_not_run_has_failed(
    returns: Callable[[], Any], kind: str, is_coroutine: bool
) -> None:
    async def give_later() -> Any:
        return returns()

    function: dict[str, Any] = {"coroutine": give_later} if is_coroutine else {"func": returns}

    result = await given(StructuredTool.from_function(**function, name="give", description="Give."))

    fault = (
        f"give failed: TypeError: its function returned a value of type {kind}, whose code has not run; await a "
        "coroutine, and return the items of a generator as a list"
    )
    assert ([call.status for call in result.calls], result.results) == (["error"], {"c": {"error": fault}})


async def test_a_tool_class_keeps_its_state_and_gets_its_config() -> None:
    class Counting(BaseTool):
        name: str = "give"
        description: str = "Count the calls."
        calls: int = 0

        def _run(self, config: RunnableConfig, run_manager: CallbackManagerForToolRun | None = None) -> Any:
            self.calls += 1
            return [self.calls, config["configurable"]["thread_id"], run_manager is not None]

    counting = Counting()

    first, second = await given(counting), await given(counting)

    assert (first.results, second.results, counting.calls) == ({"c": [1, "s1", True]}, {"c": [2, "s1", True]}, 2)


async def test_a_tool_that_a_callback_watches_gives_its_value_too() -> None:
    ended: list[str] = []

    class Watching(BaseCallbackHandler):
        def on_tool_end(self, output: Any, **_: Any) -> None:
            ended.append(output.content)

    graph = create_graph_agent(
        ScriptedChatModel([asks(("c", "give", {})), "No more actions.", "Done."]),
        tools=[asynchronous({"a": 1})],
        checkpointer=InMemorySaver(),
    ).with_config(callbacks=[Watching()])

    result = await Session(cast("Any", graph), "s1").run("go")

    assert (result.results, ended) == ({"c": {"a": 1}}, ['{"a": 1}'])


async def test_content_blocks_that_are_no_text_alone_stay_blocks() -> None:
    image = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}
    blocks = [{"type": "text", "text": "a dot"}, image]

    result = await given(asynchronous(blocks))

    assert result.results == {"c": blocks}


async def test_a_message_that_a_tool_makes_itself_counts_by_its_text() -> None:
    @tool
    async def give() -> Command[Any]:
        """Give a command."""
        return Command(update={"messages": [ToolMessage('{"a": 1}', tool_call_id="c")]})

    assert (await given(give)).results == {"c": '{"a": 1}'}


async def test_a_value_that_contains_itself_is_its_text() -> None:
    around: list[Any] = []
    around.append(around)

    assert (await given(asynchronous(around))).results == {"c": "[[...]]"}


async def test_a_failed_call_is_its_error_as_text() -> None:
    @tool
    async def give() -> int:
        """Fail."""
        raise ToolException("There is none.")

    assert (await given(give)).results == {"c": {"error": "There is none."}}


async def test_a_value_is_whole_where_the_model_is_shown_a_part() -> None:
    rows = [{"row": number} for number in range(500)]

    cut = await given(blocking(rows), config=LoopConfig(max_output_chars=100))
    offloaded = await given(blocking(rows), config=LoopConfig(offload_over_chars=100))

    assert (cut.results, offloaded.results) == ({"c": rows}, {"c": rows})


async def test_values_are_read_back_from_a_database(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/values.db"
    tools = [asynchronous({"a": [1, "1", None, 1.0, True]})]
    async with open_saver(address) as saver:
        model = ScriptedChatModel([asks(("c", "give", {})), "No more actions.", "Done."])
        await Session(create_graph_agent(model, tools=tools, checkpointer=saver), "s1").run("go")

    async with open_saver(address) as saver:
        again = create_graph_agent(ScriptedChatModel(["Hi."]), tools=tools, checkpointer=saver)
        state = await again.aget_state({"configurable": {"thread_id": "s1"}})
        events = await Session(again, "s1").events()

    results = run_result(state).results
    (stored,) = [event for event in events if event["type"] == "tool_result"]
    assert (results, type(results["c"]["a"][3]), stored["content"], stored.get("encoding"), "value" in stored) == (
        {"c": {"a": [1, "1", None, 1.0, True]}},
        float,
        '{"a": [1, "1", null, 1.0, true]}',
        "json",
        False,
    )


@tool
async def show(value: Any) -> Any:
    """Give back what it was given."""
    return {"type": type(value).__name__, "value": value}


@pytest.mark.parametrize(
    ("returned", "reference", "found"),
    [
        ("123", "${c}", "123"),
        (123, "${c}", 123),
        ('{"a": [7]}', "${c}", '{"a": [7]}'),
        ('{"a": [7]}', "${c.a[0]}", 7),
        (Stay(2, [ROOM]), "${c.rooms[0].roomName}", "Süd"),
        (None, "${c}", None),
        ({"a": "[1, 2]"}, "${c.a}", "[1, 2]"),
        ({"a": "[1, 2]"}, "${c.a[1]}", 2),
        ([{"type": "text", "text": "a dot"}, {"type": "image", "base64": "aGk="}], "${c}", "a dot"),
    ],
)
async def test_a_reference_finds_the_same_value(returned: Any, reference: str, found: Any) -> None:
    calls = plan(use("c", "give"), use("s", "show", value=reference), status="done")
    result = await waves([calls, "Done."], tools=[asynchronous(returned), show]).run("go")

    assert result.results["s"] == {"type": type(found).__name__, "value": found}


SERVER = Path(__file__).parents[2] / "support" / "mcp_servers" / "values_server.py"


@pytest_asyncio.fixture
async def server_tools() -> AsyncIterator[list[BaseTool]]:
    async with open_mcp_tools(
        {"values": {"transport": "stdio", "command": warm_python(), "args": [str(SERVER)]}}
    ) as tools:
        yield tools


MCP_VALUES = {
    "mapping": {"a": [1, "1"]},
    "numbers": [1, 2],
    "none_at_all": [],
    "number": 3,
    "digits": "3",
    "json_text": '{"a": 1}',
    "prose": {"rooms": 4, "result": None},
    "own_result": {"result": 5},
}


async def test_an_mcp_tools_structured_content_is_its_value(server_tools: list[BaseTool]) -> None:
    calls = asks(*((name, name, {}) for name in MCP_VALUES))
    model = ScriptedChatModel([calls, "No more actions.", "Done."])
    session = Session(create_graph_agent(model, tools=server_tools, checkpointer=InMemorySaver()), "s1")

    result = await session.run("go")

    stored = {id_: value for id_, value in of_type(await session.events(), "tool_result", "id", "value") if value}
    # Stored again only where the text is something else.
    assert (result.results, stored) == (MCP_VALUES, {"numbers": [1, 2], "prose": {"rooms": 4, "result": None}})


class Answer(BaseModel):
    people: int


def foreign() -> Any:
    class State(MessagesState):
        structured_response: Any

    async def answer(state: State) -> Any:
        return {"messages": [AIMessage("Many.")], "structured_response": Answer(people=5)}

    return StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()


async def test_a_delegates_structured_response_is_the_delegations_value() -> None:
    ours = create_graph_agent(ScriptedChatModel(['{"people": 5}']), response_format=Answer)
    text = create_graph_agent(ScriptedChatModel(["5"]))
    calls = asks(*((name, f"delegate_to_{name}", {"task": "Count."}) for name in ("ours", "text", "foreign")))
    delegates = [
        GraphDelegate("ours", "", ours),
        GraphDelegate("text", "", text),
        GraphDelegate("foreign", "", foreign()),
    ]

    result = await given(calls=calls, delegates=delegates)

    assert result.results == {"ours": {"people": 5}, "text": "5", "foreign": {"people": 5}}


class Rewriting(AgentMiddleware[Any, Any, Any]):
    def __init__(self, rewrite: Callable[[str], str]) -> None:
        super().__init__()
        self._rewrite = rewrite

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        message = await handler(request)
        return message.model_copy(update={"content": self._rewrite(message.text)})


@pytest.mark.parametrize(
    ("rewrite", "value"),
    [
        pytest.param(str, {"who": "Ada"}, id="left as it is"),
        pytest.param(lambda text: text.replace("Ada", "[hidden]"), {"who": "[hidden]"}, id="changed in the JSON"),
        pytest.param(lambda text: text[:5], '{"who', id="cut"),
    ],
)
async def test_content_removed_by_middleware_is_not_in_the_value(rewrite: Callable[[str], str], value: Any) -> None:
    def structured() -> Any:
        """Give it as an MCP tool would."""
        return [{"type": "text", "text": '{"who": "Ada"}'}], {"structured_content": {"who": "Ada"}}

    middleware = Rewriting(rewrite)

    plain_tool = await given(asynchronous({"who": "Ada"}), hooks=[middleware])
    mcp_tool = await given(
        StructuredTool.from_function(structured, name="give", response_format="content_and_artifact"),
        hooks=[middleware],
    )

    assert (plain_tool.results, mcp_tool.results) == ({"c": value}, {"c": value})
