"""The Restate adapter with deliveries of a test; `tests/restate` has those of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime
from restate import TerminalError
from restate.discovery import compute_discovery
from restate.endpoint import Endpoint
from typing_extensions import TypedDict

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.engines.restate import RUNS, RunRequest, agent_object
from tests.support.agents import ECHO_SCRIPT, asks, echo
from tests.support.gates import Gate, gated_tool, until

WORK = [asks(("c", "work", {})), "Done."]


class Delivery:
    """One delivery of an invocation to a worker.

    Args:
        id_: The invocation's id.
        key: Its idempotency key; None if there is none.
    """

    def __init__(self, id_: str = "inv_1", key: str | None = None) -> None:
        self._id = id_
        self._key = key
        self.cancelled = asyncio.Event()
        self.lost = asyncio.Event()

    def key(self) -> str:
        return "s1"

    def request(self) -> Any:
        class _Request:
            id = self._id
            idempotency_key = self._key

        return _Request()

    async def run_typed(self, name: str, action: Callable[[], Awaitable[Any]]) -> Any:
        """As the SDK: a step in a task, which a lost connection cancels, and a cancellation does not."""
        step = asyncio.ensure_future(action())
        cancelled, lost = (asyncio.create_task(event.wait()) for event in (self.cancelled, self.lost))
        await asyncio.wait([step, cancelled, lost], return_when=asyncio.FIRST_COMPLETED)
        for waiting in (cancelled, lost):
            waiting.cancel()
        if self.cancelled.is_set():
            raise TerminalError("cancelled", 409)
        if self.lost.is_set():
            step.cancel()
        return await step


def graph_of(model: ScriptedChatModel, *tools: Any, **options: Any) -> Any:
    return create_graph_agent(model, tools=tools, checkpointer=InMemorySaver(), name="hotel", **options)


async def run(agent: Any, delivery: Delivery, text: str) -> Any:
    return await agent.handlers["run"].fn(delivery, RunRequest.model_validate({"input": text}))


async def failure(work: Awaitable[Any]) -> tuple[str, int, str]:
    """The type, the status and the text of the error of a handler."""
    with pytest.raises(Exception) as error:  # noqa: PT011 - the whole error is compared
        await work
    return type(error.value).__name__, getattr(error.value, "status_code", 0), str(error.value)


def test_the_object_has_its_handlers_and_a_quick_first_retry() -> None:
    endpoint: Any = Endpoint
    bound = endpoint().bind(agent_object(graph_of(ScriptedChatModel([]))))
    service = compute_discovery(bound, "bidi").services[0]

    assert (
        service.name,
        {handler.name: handler.ty and handler.ty.value for handler in service.handlers},
        service.retryPolicyInitialInterval,
        service.inactivityTimeout,
    ) == (
        "hotel",
        {"run": "EXCLUSIVE", "resume": "EXCLUSIVE", "status": "SHARED", "steer": "SHARED", "abort": "SHARED"},
        50,
        86_400_000,
    )


async def test_a_repeated_delivery_returns_the_same_result_and_asks_no_model() -> None:
    model = ScriptedChatModel(ECHO_SCRIPT)
    agent = agent_object(graph_of(model, echo))

    results = [await run(agent, Delivery(), "echo hello") for _ in range(2)]
    model.assert_spent()
    assert [(result["answer"], result["results"]) for result in results] == [
        ("The echo returned: hello", {"call_1": "hello"})
    ] * 2


async def test_an_idempotency_key_is_the_input_id_of_any_invocation() -> None:
    agent = agent_object(graph_of(ScriptedChatModel(["Hello.", "No more actions."])))
    first = await run(agent, Delivery("inv_1", "k"), "hello")

    assert [
        await run(agent, Delivery("inv_2", "k"), "hello"),
        (await failure(run(agent, Delivery("inv_3", "k"), "goodbye")))[:2],
    ] == [first, ("TerminalError", 400)]


async def test_a_run_outlives_its_lost_delivery_and_the_next_one_waits_for_it() -> None:
    gate, lost = Gate(), Delivery()
    agent = agent_object(graph_of(ScriptedChatModel(WORK), gated_tool(gate)))
    first = asyncio.create_task(run(agent, lost, "work"))
    await gate.reached()
    lost.lost.set()
    await asyncio.wait([first])
    second = asyncio.create_task(run(agent, Delivery(), "work"))
    await until(lambda: len(RUNS) == 2)
    gate.open()
    result = await second

    assert (first.cancelled(), gate.cancelled, result["answer"], result["results"], RUNS) == (
        True,
        False,
        "Done.",
        {"c": "worked"},
        set(),
    )


async def test_a_cancelled_invocation_aborts_its_run() -> None:
    gate, delivery = Gate(), Delivery()
    graph = graph_of(ScriptedChatModel(WORK), gated_tool(gate))
    cancelled = asyncio.create_task(failure(run(agent_object(graph), delivery, "work")))
    await gate.reached()
    delivery.cancelled.set()

    assert (await cancelled, await Session(graph, "s1").status()) == (
        ("TerminalError", 409, "cancelled"),
        "ABORTED",
    )


async def test_a_cancelled_invocation_that_waits_for_another_run_of_the_session_leaves_that_run_alone() -> None:
    gate, delivery = Gate(), Delivery()
    graph = graph_of(ScriptedChatModel(WORK), gated_tool(gate))
    other = asyncio.create_task(Session(graph, "s1").run("work"))
    await gate.reached()
    waiting = asyncio.create_task(failure(run(agent_object(graph), delivery, "work more")))
    await until(lambda: RUNS)
    delivery.cancelled.set()
    error = await waiting
    gate.open()

    assert (error, (await other).answer, gate.cancelled, RUNS) == (
        ("TerminalError", 409, "cancelled"),
        "Done.",
        False,
        set(),
    )


async def test_an_input_waits_for_the_end_of_another_run_of_the_session() -> None:
    gate = Gate()
    graph = graph_of(ScriptedChatModel([*WORK, "Hello."]), gated_tool(gate))
    other = asyncio.create_task(Session(graph, "s1").run("work"))
    await gate.reached()
    waiting = asyncio.create_task(run(agent_object(graph), Delivery(), "hello"))
    await until(lambda: RUNS)
    gate.open()

    assert ((await other).answer, (await waiting)["answer"]) == ("Done.", "Hello.")


async def test_a_failed_input_is_terminal_if_failures_raise() -> None:
    class Refusing(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("no such model")

    graph = graph_of(Refusing(responses=["never"]), config=LoopConfig(on_failure="raise"))

    assert (await failure(run(agent_object(graph), Delivery(), "hello")))[:2] == ("TerminalError", 500)


def refused(balance: int, change: int) -> int:
    raise ValueError("The account is closed.")


class Account(TypedDict):
    balance: Annotated[int, refused]


async def test_a_value_that_a_reducer_refuses_is_terminal() -> None:
    agent: Any = agent_object(graph_of(ScriptedChatModel(["Hello."]), state_schema=Account))
    request = RunRequest.model_validate({"input": "hello", "state": {"balance": 5}})

    found = await failure(agent.handlers["run"].fn(Delivery(), request))
    assert (found[:2], "'balance' was given 5, which its reducer refused cannot use" in found[2]) == (
        ("TerminalError", 400),
        True,
    )


async def test_an_error_that_a_retry_may_fix_is_not_terminal() -> None:
    async def unreachable(session_id: str) -> dict[str, Any]:
        raise ConnectionError(f"no credentials for {session_id}: the vault is down")

    agent = agent_object(graph_of(ScriptedChatModel([])), context=unreachable)

    assert await failure(run(agent, Delivery(), "hello")) == (
        "ConnectionError",
        0,
        "no credentials for s1: the vault is down",
    )


async def test_the_context_of_a_session_reaches_its_tools() -> None:
    seen: list[Any] = []

    @tool
    def charge(runtime: ToolRuntime[Any, Any]) -> str:
        """Charge a card."""
        seen.append(runtime.context.credentials["card"].get_secret_value())
        return "charged"

    async def context(session_id: str) -> dict[str, Any]:
        return {"credentials": {"card": f"secret of {session_id}"}}

    model = ScriptedChatModel([asks(("c", "charge", {})), "Charged."])
    result = await run(agent_object(graph_of(model, charge), context=context), Delivery(), "charge")

    assert (seen, "secret" in str(result)) == (["secret of s1"], False)
