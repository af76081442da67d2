"""The end of an input that a hook answers, ends or fails: in every mode, and with a response format."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, LoopHook, LoopPlan, ScriptedChatModel, Session, create_graph_agent
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.session.results import Done, Token
from tests.support.agents import asks, echo
from tests.support.hooks import DONE, RERUN, FixedPlanHook
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

CALL = asks(("c1", "echo", {"text": "a"}))
CALL_WITH_TEXT = asks(("c1", "echo", {"text": "a"}), content="I would echo.")
WAVE = (
    '{"status": "continue", "reasoning": "First one.", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "a"}},'
    ' {"id": "t2", "tool": "echo", "args": {"text": "${t1}"}, "needs": ["t1"]}]}'
)


class City(BaseModel):
    people: int


async def ended(script: list[str], hook: LoopHook, response: Any = None, **config: Any) -> Any:
    """The outcome of a streamed input: status, tokens, structured response, statuses of results, and warnings."""
    model = ScriptedChatModel(script)
    graph = create_graph_agent(
        model,
        tools=[echo],
        hooks=[hook],
        config=LoopConfig(**config),
        response_format=response,
        checkpointer=InMemorySaver(),
    )
    talk = Session(graph, "s1")
    parts = [part async for part in talk.stream("go")]
    model.assert_spent()
    [result] = [part.result for part in parts if isinstance(part, Done)]
    events: list[Any] = [*await talk.events()]
    return (
        str(result.status),
        "".join(part.text for part in parts if isinstance(part, Token)),
        result.structured_response,
        [event["status"] for event in events if event["type"] == "tool_result"],
        [event["message"] for event in events if event["type"] in ("warning", "error")],
    )


@pytest.mark.parametrize(("mode", "reply"), [("native", CALL), ("text", CALL), ("wave", WAVE)])
async def test_an_override_is_the_answer_in_every_mode(mode: Any, reply: str) -> None:
    end = await ended([reply], FixedPlanHook(LoopPlan(response_override="From the hook.")), tool_calling=mode)

    assert end == ("COMPLETED", "From the hook.", None, [], [])


@pytest.mark.parametrize(
    ("override", "structured", "warnings"),
    [
        ('{"people": 5}', City(people=5), []),
        (
            "Many.",
            None,
            ["The answer of the hook FixedPlanHook does not fit the response format: The reply holds no JSON."],
        ),
    ],
)
async def test_an_override_is_parsed_as_a_structured_answer(
    override: str, structured: Any, warnings: list[str]
) -> None:
    end = await ended([CALL], FixedPlanHook(LoopPlan(response_override=override)), City)

    assert end == ("COMPLETED", override, structured, [], warnings)


async def test_an_override_that_cannot_be_checked_in_time_stands() -> None:
    slow = {"properties": {"a": {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}}}
    override = '{"a": "' + "a" * 5000 + '"}'

    status, answer, structured, _, [warning] = await ended(
        [CALL], FixedPlanHook(LoopPlan(response_override=override)), slow
    )

    assert (status, answer, structured, warning.partition(" pattern ")[0]) == (
        "COMPLETED",
        override,
        None,
        "The answer of the hook FixedPlanHook does not fit the response format: The",
    )


@pytest.mark.parametrize(
    ("script", "config", "answer", "skipped"),
    [
        ([CALL_WITH_TEXT], {}, "I would echo.", 1),
        ([CALL_WITH_TEXT], {"tool_calling": "text"}, "I would echo.", 1),
        ([WAVE, "Nothing was done."], {"tool_calling": "wave"}, "Nothing was done.", 2),
        ([DONE, "Nothing was done."], {"tool_calling": "wave"}, "Nothing was done.", 0),
        (["It is five."], {}, "It is five.", 0),
        (["It is five."], {"finalize": "direct"}, "It is five.", 0),
        (["**No more actions**", "It is five."], {}, "It is five.", 0),
        (["", "It is five."], {}, "It is five.", 0),
    ],
    ids=["native", "text", "wave", "wave without calls", "words", "direct", "only done", "nothing"],
)
async def test_a_hook_that_ends_the_loop_completes_the_input(
    script: list[str], config: Any, answer: str, skipped: int
) -> None:
    end = await ended(script, FixedPlanHook(LoopPlan(terminate=True)), **config)

    assert end == ("COMPLETED", answer, None, ["skipped"] * skipped, [])


async def test_a_hook_that_ends_the_loop_yields_a_structured_answer() -> None:
    end = await ended([CALL_WITH_TEXT, '{"people": 7}'], FixedPlanHook(LoopPlan(terminate=True)), City)

    assert end == ("COMPLETED", '{"people": 7}', City(people=7), ["skipped"], [])


class Exits(LoopHook):
    """Raises `SystemExit` or `KeyboardInterrupt`."""

    def __init__(self, on_error: Any) -> None:
        self.on_error = on_error

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        sys.exit("enough")


class GivesUp(Exits):
    """Cancels itself."""

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        raise asyncio.CancelledError("enough")


@pytest.mark.parametrize(("kind", "name"), [(Exits, "SystemExit"), (GivesUp, "CancelledError")])
async def test_an_exit_raised_by_a_hook_is_a_hook_failure(kind: type[Exits], name: str) -> None:
    fault = f"The hook {kind.__name__} failed: {name}: enough"

    ends = [
        await ended([CALL], kind("fail")),
        await ended([CALL, "No more actions.", "Done."], kind("skip")),
    ]

    assert ends == [
        ("FAILED", f"This request failed. The hook {kind.__name__} failed.", None, [], [fault]),
        ("COMPLETED", "Done.", None, ["success"], [f"{fault}; it is skipped."] * 3),
    ]


async def test_a_model_refusal_in_a_rerun_is_the_answer(openai_stub: StubFactory) -> None:
    stub = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), Reply(refusal="Not that."))
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], hooks=[FixedPlanHook(RERUN)], checkpointer=InMemorySaver())

        result = await Session(graph, "s1").run("go")

    assert (result.answer, result.status, result.results, result.usage["model_calls"]) == (
        "Not that.",
        "COMPLETED",
        {},
        2,
    )


async def test_a_message_that_overrides_keeps_its_blocks() -> None:
    blocks: Any = [{"type": "text", "text": "See: "}, {"type": "text", "text": "this."}]

    end = await ended([CALL], FixedPlanHook(LoopPlan(response_override=AIMessage(blocks))))

    assert end[:2] == ("COMPLETED", "See: this.")
