"""Failed inputs: the last message reports the error and the finished calls, or the run raises a typed error."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from graph_agent import GraphDelegate, LoopConfig, LoopHook, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ModelFailedError, RunFailedError
from tests.support.agents import asks, dialogue, echo, kinds, says, thread
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

CALL = Reply(tool_calls=(("echo", {"text": "a"}),))
NO_KEY = Failure(401, "Incorrect API key provided: sk-proj-abcdef123456.", code="invalid_api_key")
DOWN = Failure(503, "Try later.", type="server_error", headers={"retry-after": "0"})
KINDS = {
    "auth": (
        NO_KEY,
        "The model provider refused the API key (HTTP 401); check the key and the address it is sent to.",
        "The model provider refused the API key (HTTP 401).",
        "Check the key and the address it is sent to.",
    ),
    "permission": (
        Failure(429, "Pay.", code="insufficient_quota"),
        "The model provider does not allow this request (HTTP 429); check the account's access, quota and billing.",
        "The model provider does not allow this request (HTTP 429).",
        "Check the account's access, quota and billing.",
    ),
    "unknown_model": (
        Failure(404, "The model `m` does not exist.", code="model_not_found"),
        "The model or the address is unknown to the provider (HTTP 404); check the model's name and the base URL.",
        "The model or the address is unknown to the provider (HTTP 404).",
        "Check the model's name and the base URL.",
    ),
    "transient": (
        DOWN,
        "The model provider did not answer as it should (HTTP 503); try again later.",
        "The model provider did not answer as it should (HTTP 503); try again later.",
        "Raise `model_retries`, or set `fallback_models`.",
    ),
    "other": (
        Failure(400, "Bad."),
        "The model call failed (HTTP 400); see the provider's documentation.",
        "The model call failed (HTTP 400).",
        "See the provider's documentation.",
    ),
}
AUTH = KINDS["auth"][2]


def agent(model: Any, **config: Any) -> Any:
    settings = LoopConfig(**{"model_retries": 0, "finalize": "compose", "tool_calling": "native", **config})
    return create_graph_agent(model, tools=[echo], config=settings, checkpointer=InMemorySaver())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("before", "done", "config"),
    [
        ([], "", {}),
        ([], "", {"finalize": "direct"}),
        ([], "", {"tool_calling": "text"}),
        ([], "", {"tool_calling": "wave", "temperature": 0}),
        ([CALL], "\n\nDone: echo.", {}),
        ([CALL, "No more actions."], "\n\nDone: echo.", {}),
    ],
    ids=["plan", "direct", "text", "wave", "second plan", "answer"],
)
async def test_the_last_message_reports_the_error_and_the_finished_calls(
    openai_stub: StubFactory, kind: str, before: list[Any], done: str, config: dict[str, Any]
) -> None:
    failure, error, answer, hint = KINDS[kind]
    stub = openai_stub(*before, failure)
    async with stub.chat_model() as model:
        graph = agent(model, **config)

        state = await graph.ainvoke(says("hi"), thread())

        result = (await Session(graph, "s1").driver.result(), await Session(graph, "s1").events())
    last, events = state["messages"][-1], [event for event in result[1] if event["type"] in ("error", "agent_response")]
    report = f"This request failed. {answer}{done}"
    assert (last.type, last.text, last.response_metadata, state["status"], state["stop_reason"]) == (
        "ai",
        report,
        {"graph_agent": {"stop_reason": "failed", "error": kind, "answer_chars": 0}},
        "FAILED",
        "failed",
    )
    recorded = [{name: event.get(name) for name in ("type", "kind", "message", "content", "error")} for event in events]
    assert (result[0].answer, result[0].error, result[0].error_kind, result[0].hint, result[0].status, recorded) == (
        report,
        error,
        kind,
        hint,
        "FAILED",
        [
            {"type": "error", "kind": kind, "message": error, "content": None, "error": None},
            {"type": "agent_response", "kind": None, "message": None, "content": report, "error": kind},
        ],
    )


def test_a_blocking_invoke_returns_the_failure_report() -> None:
    graph = create_graph_agent(Refusing(responses=["never"]))

    state = graph.invoke(says("hi"))

    assert (state["messages"][-1].text, state["status"]) == (f"This request failed. {REFUSED}", "FAILED")


class UnauthorizedError(Exception):
    """The exception of a provider."""

    status_code = 401


REFUSED = "The model provider refused the API key (HTTP 401)."
BAD_KEY = "The model provider refused the API key (HTTP 401); check the key and the address it is sent to."


class Refusing(ScriptedChatModel):
    """A model whose provider refuses its key."""

    async def _agenerate(self, *_: Any, **__: Any) -> Any:
        raise UnauthorizedError("bad key")

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        for error in [UnauthorizedError("bad key")]:
            raise error
        yield


async def test_later_requests_contain_a_short_report_without_provider_text(openai_stub: StubFactory) -> None:
    stub = openai_stub(CALL, NO_KEY, "No more actions.", "Hello.")
    async with stub.chat_model() as model:
        session = Session(agent(model), "s1")
        await session.run("one")

        second = await session.run("two")

    sent = [(message["role"], message["content"]) for message in stub.bodies[2]["messages"][1:]]
    assert (second.answer, sent) == (
        "Hello.",
        [
            ("user", "one"),
            ("assistant", None),
            ("tool", "a"),
            ("assistant", "[No answer was given: an error of kind 'auth'.]"),
            ("user", "two"),
        ],
    )


PARTLY = Reply("It begins well and", cut_after=4)


@pytest.mark.parametrize("finalize", ["compose", "direct"])
async def test_what_was_streamed_before_the_failure_stays_in_front_of_the_report(
    openai_stub: StubFactory, finalize: Any
) -> None:
    stub = openai_stub(*(["No more actions."] if finalize == "compose" else []), PARTLY, "Fine.", "Fine.")
    async with stub.chat_model() as model:
        graph = agent(model, finalize=finalize)

        chunks = [chunk async for chunk, _ in graph.astream(says("hi"), thread(), stream_mode="messages")]
        last = (await graph.aget_state(thread())).values["messages"][-1]
        await Session(graph, "s1").run("again")

    begun, _, report = last.text.partition("\n\n")
    again = [message["content"] for message in stub.bodies[-1]["messages"] if message["role"] == "assistant"]
    assert ("".join(chunk.text for chunk in chunks), {chunk.id for chunk in chunks}) == (last.text, {last.id})
    assert (begun, report[:49], last.response_metadata["graph_agent"]["answer_chars"], again) == (
        "It begins well",
        "This request failed. The model provider did not a",
        14,
        ["It begins well\n\n[The answer ends here: an error of kind 'transient'.]"],
    )


@pytest.mark.parametrize(("retries", "end"), [(1, ("COMPLETED", "Hi.")), (0, ("FAILED", ""))])
async def test_a_cancellation_that_the_model_raises_itself_is_a_lost_connection(
    retries: int, end: tuple[str, str]
) -> None:
    closed = [True]

    class Closing(ScriptedChatModel):
        """Raises at first what a client raises whose channel closes."""

        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            if closed:
                closed.clear()
                raise asyncio.CancelledError("channel closed")
            return await super()._agenerate(*args, **kwargs)

    made: Any = Closing
    config = LoopConfig(model_retries=retries)
    graph = create_graph_agent(made(["Hi."]), config=config, checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("go")

    assert (result.status, result.answer if not result.error else "") == end
    assert result.error_kind == ("" if retries else "transient")


async def test_the_message_stream_contains_the_report_once(openai_stub: StubFactory) -> None:
    async with openai_stub(CALL, NO_KEY).chat_model() as model:
        shown = [
            (message.type, message.text, metadata["langgraph_node"])
            async for message, metadata in agent(model).astream(says("hi"), thread(), stream_mode="messages")
        ]

    assert [entry for entry in shown if entry[0] != "tool"] == [
        ("ai", f"This request failed. {AUTH}\n\nDone: echo.", "finalize")
    ]


def test_a_blocking_message_stream_shows_the_report_behind_what_was_streamed() -> None:
    class Breaking(ScriptedChatModel):
        """A model that stops in the middle of its answer."""

        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            count = 0
            async for chunk in super()._astream(*args, **kwargs):
                if count == 2:
                    raise UnauthorizedError("bad key")
                count += 1
                yield chunk

    graph = create_graph_agent(Breaking(responses=["One two three four five"]), checkpointer=InMemorySaver())

    shown = "".join(message.text for message, _ in graph.stream(says("hi"), thread(), stream_mode="messages"))

    last = graph.get_state(thread()).values["messages"][-1]
    assert (shown, shown.endswith(f"\n\nThis request failed. {REFUSED}")) == (last.text, True)


async def test_an_answer_that_fails_below_a_limit_has_the_account(openai_stub: StubFactory) -> None:
    stub = openai_stub(CALL, DOWN)
    async with stub.chat_model() as model:
        session = Session(agent(model, max_steps=1), "s1")
        parts = [part async for part in session.stream("go")]
        (result,) = [part.result for part in parts if part.type == "done"]

    text = f"Reached maximum reasoning steps (1)\n\n{KINDS['transient'][2]}\n\nDone: echo."
    assert (result.answer, result.stop_reason, "".join(part.text for part in parts if part.type == "token")) == (
        text,
        "step_limit",
        text,
    )


class Failing(LoopHook):
    """A hook that fails."""

    async def should_run(self, response: Any, request: Any) -> Any:
        raise ValueError("no such thing")


async def test_every_failure_of_an_input_is_reported() -> None:
    hooked = create_graph_agent(
        ScriptedChatModel([asks(("1", "echo", {"text": "a"}))]), tools=[echo], hooks=[Failing()]
    )
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    shaped = create_graph_agent(ScriptedChatModel(['{"n": "x"}'] * 3), response_format=schema)

    ends = [(await graph.ainvoke(says("go")))["messages"][-1] for graph in (hooked, shaped)]

    assert [(end.text, end.response_metadata["graph_agent"]["error"]) for end in ends] == [
        ("This request failed. The hook Failing failed.", "hook"),
        ("This request failed. The answer did not fit the response format after 2 repairs.", "response_format"),
    ]


async def test_a_structured_answer_that_does_not_fit_below_a_limit_keeps_the_limits_sentence() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    model = ScriptedChatModel([asks(("1", "echo", {"text": "a"})), *['{"n": "x"}'] * 3])
    graph = create_graph_agent(model, tools=[echo], response_format=schema, config=LoopConfig(max_steps=1))

    state = await graph.ainvoke(says("go"))

    assert (state["messages"][-1].text, state["status"], state["structured_response"]) == (
        "Reached maximum reasoning steps (1)\n\nThe answer did not fit the response format after 2 repairs.\n\n"
        "Done: echo.",
        "ROUND_LIMIT",
        None,
    )


async def test_the_compaction_note_contains_no_provider_text(openai_stub: StubFactory) -> None:
    too_long = Failure(400, "maximum context length is 10 tokens", code="context_length_exceeded")
    stub = openai_stub(NO_KEY, too_long, "No more actions.", "Hello.", "No more actions.", "Hello again.")
    async with stub.chat_model() as model:
        session = Session(agent(model), "s1")
        for text in ("one " * 500, "two", "three"):
            result = await session.run(text)

    sent = [message["content"] for body in stub.bodies[2:] for message in body["messages"]]
    assert (result.answer, [text for text in sent if "provider" in text or "***" in text]) == ("Hello again.", [])


async def test_the_report_text_is_configurable(openai_stub: StubFactory) -> None:
    async with openai_stub(NO_KEY).chat_model() as model:
        graph = create_graph_agent(model, prompts={"failure": "Leider ging das nicht ({{ kind }})."})

        state = await graph.ainvoke(says("hi"))

    assert state["messages"][-1].text == "Leider ging das nicht (auth)."


# on_failure="raise"


def raised_by(error: pytest.ExceptionInfo[RunFailedError]) -> tuple[Any, ...]:
    value = error.value
    return type(value), str(value), value.kind, value.answer, type(value.__cause__).__name__


ANSWER: Any = {"on_failure": "answer"}
RAISED = (ModelFailedError, BAD_KEY, "auth", f"This request failed. {REFUSED}", "UnauthorizedError")


async def _gather(stream: Any, parts: list[Any]) -> None:
    async for part in stream:
        parts.append(part)  # noqa: PERF401 - the test checks the parts before the error


async def test_a_failure_raises_with_on_failure_raise() -> None:
    graph = create_graph_agent(
        Refusing(responses=["never"]), config=LoopConfig(on_failure="raise"), checkpointer=InMemorySaver()
    )
    session = Session(graph, "s3")

    with pytest.raises(RunFailedError) as invoked:
        await graph.ainvoke(says("hi"), thread("s1"))
    with pytest.raises(RunFailedError) as run:
        await Session(graph, "s2").run("hi")
    parts: list[Any] = []
    with pytest.raises(RunFailedError) as streamed:
        await _gather(session.stream("hi"), parts)

    assert [raised_by(error) for error in (invoked, run, streamed)] == [RAISED] * 3
    assert ([part.event["type"] for part in parts if part.type == "event"][-3:], parts[-1].type) == (
        ["error", "agent_response", "status"],
        "event",
    )


@pytest.mark.parametrize("on_failure", ["answer", "raise"])
async def test_the_result_of_a_failed_run_raises_the_failure_and_the_log_has_one_error(
    on_failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    graph = create_graph_agent(
        Refusing(responses=["never"]), config=LoopConfig(on_failure=on_failure), checkpointer=InMemorySaver()
    )

    with pytest.raises(ModelFailedError) as caught:
        (await Session(graph, "s1").run("hi")).raise_for_status()
    copied = pickle.loads(pickle.dumps(copy.deepcopy(await Session(graph, "s1").run("hi", context=ANSWER))))
    with pytest.raises(ModelFailedError) as without_cause:
        copied.raise_for_status()

    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert (raised_by(caught), raised_by(without_cause), errors) == (
        RAISED,
        (*RAISED[:-1], "NoneType"),
        [f"The request for the answer failed: {BAD_KEY.replace('401', '401: bad key')}"] * 2,
    )


async def test_a_failed_resume_raises_the_failure_and_other_results_raise_nothing() -> None:
    @tool
    async def ask() -> str:
        """Ask the user."""
        return str(interrupt("Which?"))

    class Later(Refusing):
        """A model that refuses its second request."""

        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            if self.requests:
                raise UnauthorizedError("bad key")
            return await ScriptedChatModel._agenerate(self, *args, **kwargs)

    graph = create_graph_agent(
        Later(responses=[asks(("1", "ask", {}))]), tools=[ask], checkpointer=InMemorySaver(), config=LoopConfig()
    )
    session = Session(graph, "s1")

    waiting = await session.run("hi")
    failed = await session.resume("this")

    with pytest.raises(ModelFailedError) as caught:
        failed.raise_for_status()
    assert (waiting.raise_for_status() is waiting, raised_by(caught)[2:]) == (
        True,
        ("auth", f"This request failed. {REFUSED}\n\nDone: ask.", "UnauthorizedError"),
    )


def test_a_blocking_run_raises_too() -> None:
    graph = create_graph_agent(Refusing(responses=["never"]), config=LoopConfig(on_failure="raise"))

    with pytest.raises(RunFailedError) as invoked:
        graph.invoke(says("hi"))

    assert raised_by(invoked) == RAISED


async def test_a_failure_that_is_raised_is_stored_first_and_the_session_goes_on(openai_stub: StubFactory) -> None:
    stub = openai_stub(CALL, NO_KEY, "No more actions.", "Hello.")
    async with stub.chat_model() as model:
        graph = agent(model)
        session = Session(graph, "s1")
        with pytest.raises(ModelFailedError):
            await session.run("one", context={"on_failure": "raise"})
        state = (await graph.aget_state(thread())).values
        failed = (await session.status(), (await graph.aget_state(thread())).next, dialogue(state["messages"])[-1])

        second = await session.run("two")

    assert (failed, second.answer, kinds(await session.events()).count("error")) == (
        ("FAILED", (), ("ai", f"This request failed. {AUTH}\n\nDone: echo.")),
        "Hello.",
        1,
    )


async def test_a_failure_outside_the_provider_raises_run_failed_error() -> None:
    graph = create_graph_agent(
        ScriptedChatModel([asks(("1", "echo", {"text": "a"}))]),
        tools=[echo],
        hooks=[Failing()],
        config=LoopConfig(on_failure="raise"),
    )

    with pytest.raises(RunFailedError) as caught:
        await graph.ainvoke(says("go"))

    assert (type(caught.value), caught.value.kind) == (RunFailedError, "hook")


async def test_a_limit_and_an_abort_raise_nothing(openai_stub: StubFactory) -> None:
    stub = openai_stub(CALL, DOWN)
    async with stub.chat_model() as model:
        result = await Session(agent(model, max_steps=1, on_failure="raise"), "s1").run("go")

    assert result.status == "ROUND_LIMIT"


@pytest.mark.parametrize("on_failure", ["answer", "raise"])
async def test_a_failed_delegate_reports_the_error_and_its_finished_calls(on_failure: Any) -> None:
    class Later(ScriptedChatModel):
        """A model that answers once."""

        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            if self.requests:
                raise UnauthorizedError("bad key")
            return await super()._agenerate(*args, **kwargs)

    inner = create_graph_agent(
        Later(responses=[asks(("1", "echo", {"text": "a"}))]), tools=[echo], config=LoopConfig(on_failure=on_failure)
    )
    model = ScriptedChatModel([asks(("d", "delegate_to_r", {"task": "Look."})), "No more actions.", "So."])
    graph = create_graph_agent(
        model,
        delegates=[GraphDelegate("r", "Looks.", inner)],
        config=LoopConfig(finalize="compose"),
        checkpointer=InMemorySaver(),
    )
    session = Session(graph, "s1")

    result = await session.run("go")

    (response,) = [event for event in await session.events() if event["type"] == "delegation_response"]
    report = f"The delegate 'r' failed. This request failed. {REFUSED}\n\nDone: echo."
    assert (result.status, result.results, response["status"], kinds(response["history"])[-3:]) == (
        "COMPLETED",
        {"d": {"error": report}},
        "error",
        ["error", "agent_response", "status"],
    )


def parent_of(graph: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", graph)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", END)
    return builder.compile(checkpointer=InMemorySaver())


async def test_an_agent_that_is_a_node_of_another_graph_shows_its_failure_or_raises_it() -> None:
    shows = parent_of(create_graph_agent(Refusing(responses=["never"])))
    raises = parent_of(create_graph_agent(Refusing(responses=["never"]), config=LoopConfig(on_failure="raise")))

    state = await shows.ainvoke(says("hi"), thread())
    with pytest.raises(RunFailedError) as caught:
        await raises.ainvoke(says("hi"), thread())

    assert (state["messages"][-1].text, raised_by(caught)) == (f"This request failed. {REFUSED}", RAISED)


async def test_a_tool_that_fails_is_no_failed_input() -> None:
    @tool
    async def broken() -> str:
        """Break."""
        raise ValueError("no")

    graph = create_graph_agent(
        ScriptedChatModel([asks(("1", "broken", {})), "No more actions.", "So."]),
        tools=[broken],
        config=LoopConfig(on_failure="raise", finalize="compose"),
    )

    state = await graph.ainvoke(says("go"))

    assert (state["status"], isinstance(state["messages"][-1], AIMessage)) == ("COMPLETED", True)
