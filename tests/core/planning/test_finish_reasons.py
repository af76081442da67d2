"""The finish reasons of providers: which replies are complete, whose calls run, and which turns go on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.messages.tool import tool_call
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.finish import cut_off
from graph_agent.models.continuation import MOST_PAUSES
from graph_agent.session.results import PlanText, Token
from tests.support.agents import echo

COMPLETE = (
    *("stop", "end_turn", "tool_calls", "tool_use", "function_call", "stop_sequence", "COMPLETE", "TOOL_CALL", "eos"),
    *("eos_token", "STOP_SEQUENCE", "completed", "done", "compaction", "", "FINISH_REASON_UNSPECIFIED", "end"),
)
"""Reasons of complete replies, of OpenAI, Anthropic, Cohere, TGI, Fireworks, Ollama and the Responses API."""
CUT_OFF = {
    "length": "length MAX_TOKENS max_output_tokens model_length model_context_window_exceeded token_limit CONTINUATION",
    "content_filter": "content_filter refusal SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR"
    " IMAGE_SAFETY IMAGE_RECITATION IMAGE_PROHIBITED_CONTENT guardrail_intervened content_filtered ERROR_TOXIC"
    " sensitive",
    "interrupted": "OTHER MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS MISSING_THOUGHT_SIGNATURE"
    " MALFORMED_RESPONSE ESCALATION NO_IMAGE IMAGE_OTHER malformed_model_output malformed_tool_use pause_turn ERROR"
    " TIMEOUT USER_CANCEL network_error insufficient_system_resource abort time_limit repetition",
}
KEYS = ("finish_reason", "stop_reason", "stopReason", "done_reason")


def ended_by(reason: Any, key: str = "finish_reason", **more: Any) -> AIMessage:
    return AIMessage("Hi.", response_metadata={key: reason, **more})


@pytest.mark.parametrize("key", KEYS)
def test_each_reason_has_one_meaning(key: str) -> None:
    found = {reason: cut_off(ended_by(reason, key)) for reason in COMPLETE}
    cut = {name: cut_off(ended_by(name, key)) for names in CUT_OFF.values() for name in names.split()}

    assert found == dict.fromkeys(COMPLETE)
    assert cut == {name: kind for kind, names in CUT_OFF.items() for name in names.split()}


# A stream may give the same reason twice.
@given(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1).filter(lambda reason: reason.replace("STOP", "")))
def test_every_reason_of_gemini_but_stop_is_incomplete(reason: str) -> None:
    assert cut_off(ended_by(reason, model_provider="google_genai")) is not None


@pytest.mark.parametrize(
    ("reason", "cut"),
    [
        ("tool_call_truncated", "interrupted"),
        ("max_tool_calls_exceeded", "interrupted"),
        ("safety_violation", "interrupted"),
        ("turn_complete", None),
        ("handoff", None),
    ],
)
def test_an_unknown_reason_is_incomplete_if_its_name_means_damage(reason: str, cut: str | None) -> None:
    assert cut_off(ended_by(reason)) == cut


def test_a_blocked_prompt_of_gemini_is_a_refusal() -> None:
    blocked = AIMessage("", response_metadata={"prompt_feedback": {"block_reason": "PROHIBITED_CONTENT"}})
    free = AIMessage("", response_metadata={"prompt_feedback": {"block_reason": 0, "safety_ratings": []}})

    assert (cut_off(blocked), cut_off(free)) == ("content_filter", None)


def session_of(*replies: AIMessage, **config: Any) -> tuple[Session, ScriptedChatModel]:
    model = ScriptedChatModel(list(replies))
    settings = LoopConfig(**{"tool_calling": "native", "finalize": "direct", **config})
    graph = create_graph_agent(model, tools=[echo], config=settings, checkpointer=InMemorySaver())
    return Session(graph, "s1"), model


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "pause_turn", "OTHER", "SAFETY"])
async def test_a_call_of_a_reply_that_ended_in_damage_is_not_run(reason: str) -> None:
    calls = [tool_call(name="echo", args={"text": "a"}, id="c1")]
    session, _ = session_of(
        AIMessage("", tool_calls=calls, response_metadata={"finish_reason": reason}), AIMessage("I could not.")
    )

    done = await session.run("go")

    results = [event["status"] for event in await session.events() if event["type"] == "tool_result"]
    assert (done.answer, results) == ("I could not.", ["skipped"])


async def test_a_discarded_call_is_asked_for_again() -> None:
    lost = AIMessage("", response_metadata={"finish_reason": "MALFORMED_FUNCTION_CALL"})
    call = AIMessage("", tool_calls=[tool_call(name="echo", args={"text": "a"}, id="c1")])
    session, model = session_of(lost, call, AIMessage("Done."))

    done = await session.run("go")

    model.assert_spent()
    assert (done.answer, done.usage["model_calls"]) == ("Done.", 3)


def paused(text: str) -> AIMessage:
    block = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": text}}
    content = [{"type": "text", "text": text}, block]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return AIMessage(content, usage_metadata=usage, response_metadata={"stop_reason": "pause_turn"})  # type: ignore[arg-type]  # of mypy: blocks and usage are typed dicts


async def test_a_paused_turn_goes_on_with_its_message_sent_back_unchanged() -> None:
    end = AIMessage("It rains.", response_metadata={"stop_reason": "end_turn"})
    session, model = session_of(paused("Let me look. "), paused("And there. "), end)

    done = await session.run("weather?")

    model.assert_spent()
    first, second = (request.messages[-1] for request in model.requests[1:])
    assert {
        "answer": done.answer,
        "calls": done.usage["model_calls"],
        "sent": (first.content, second.content),
        "warnings": [event["commentary"] for event in await session.events() if event["type"] == "warning"],
    } == {
        "answer": "It rains.",
        "calls": 3,
        "sent": (paused("Let me look. ").content, [*paused("Let me look. ").content, *paused("And there. ").content]),
        "warnings": ["Let me look. ", "And there. "],
    }


async def test_the_text_of_a_paused_turn_is_commentary_in_a_stream() -> None:
    end = AIMessage("It rains.", response_metadata={"stop_reason": "end_turn"})
    session, model = session_of(paused("Let me look. "), end, AIMessage("You are welcome."))

    parts = [part async for part in session.stream("weather?")]
    await session.run("Thanks!")

    kept = model.requests[-1].messages[-2].content
    assert ([(part.type, part.text) for part in parts if isinstance(part, Token | PlanText)], kept) == (
        [("token", "Let me look. "), ("plan_text", "Let me look. "), ("token", "It"), ("token", " rains.")],
        [paused("Let me look. ").content[1], {"type": "text", "text": "It rains."}],
    )


async def test_a_turn_that_is_paused_again_and_again_ends() -> None:
    session, model = session_of(*[paused("a")] * (1 + MOST_PAUSES))

    done = await session.run("weather?")

    model.assert_spent()
    warnings = [event["message"] for event in await session.events() if event["type"] == "warning"]
    assert (done.status, done.truncated, len(warnings), warnings[-1]) == (
        "COMPLETED",
        "interrupted",
        MOST_PAUSES + 1,
        "The answer was cut off by the provider (pause_turn).",
    )
