"""A refusal that names the refused part changes the next request, once, and is remembered if that one succeeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.models.wire.learn import lessons
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.table import IN_PROCESS, PROVIDERS
from tests.support.agents import echo
from tests.support.openai_stub import Failure, Reply, StubFactory, StubReply, openai_stub

__all__ = ["openai_stub"]  # a fixture

OPEN = IN_PROCESS.with_fields({"provider": "unknown"})
NUMBERS = itertools.count()


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        ("Unexpected role 'user' after role 'tool'", {}, {"user_after_tool": False}),
        (
            "Conversation roles must alternate user/assistant/user/assistant/...",
            {},
            {"repeated_users": False, "user_after_tool": False},
        ),
        ("System role not supported", {}, {"system_role": False}),
        ("Tool call id was call_abc but must be a-z, A-Z, 0-9, with a length of 9.", {}, {"call_ids": "nine"}),
        ("messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'", {}, {"call_ids": "plain"}),
        (
            "The reasoning_content in the thinking mode must be passed back to the API.",
            {},
            {
                "reasoning_needed": "reasoning_content",
                "reasoning_fields": OPEN.reasoning_fields,
            },
        ),
        (
            "'messages.1' : for 'role:assistant' property 'reasoning_content' is unsupported",
            {},
            {"reasoning_fields": OPEN.reasoning_fields - {"reasoning_content"}, "reasoning_needed": ""},
        ),
        ("Invalid request: text content is not a string", {}, {"text_parts": False}),
        ("'list object' has no attribute 'startswith'", {}, {"text_parts": False}),
        (
            "Image URLs are only allowed for messages with role 'user', but this message with role 'tool' contains",
            {},
            {"result_media": OPEN.result_media - {"image"}},
        ),
        ("Unknown part type: file", {}, {"result_media": OPEN.result_media - {"pdf", "file"}}),
        ("Extra inputs are not permitted: stream_options.include_usage", {}, {"stream_usage": False}),
        ("messages.0.content.0.text.cache_control: Extra inputs are not permitted", {}, {"cache_control": False}),
        ("Unsupported value: 'temperature' does not support 0", {"temperature": 0}, {"left_out": {"temperature"}}),
        ("`stop` is not supported by this model", {"stop": ["x"]}, {"left_out": {"stop"}}),
        (
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
            {"max_tokens": 5},
            {"max_tokens": "max_completion_tokens"},
        ),
        (
            "body.max_completion_tokens: Extra inputs are not permitted",
            {"max_tokens": 5},
            {"max_tokens": "max_tokens"},
        ),
        ("tool_choice 'required' is not supported while thinking", {"tool_choice": "any"}, {"choice_forced": False}),
        ("Thinking mode does not support this tool_choice", {"tool_choice": "plan"}, {"choice_forced": False}),
        ("Unsupported JSON schema fields: {'minItems'}", {}, {"json_schema": False}),
        ("Invalid tool_choice type: 'object'.", {"tool_choice": "plan"}, {"choice_named": False}),
        ("tool_choice none is not supported", {"tool_choice": "none"}, {"choice_none": False}),
        ("This is about something else.", {"temperature": 0, "tool_choice": "any"}, None),
    ],
)
def test_the_words_of_a_refusal_change_what_they_name(words: str, options: dict[str, Any], expected: Any) -> None:
    found = lessons(words, OPEN, options)

    assert (dict(found[0]) if found else None) == expected


def test_no_lesson_repeats_what_the_rules_have_already() -> None:
    rules = PROVIDERS["mistral"]

    assert lessons("Unexpected role 'user' after role 'tool'; must be a-z, with a length of 9", rules, {}) == []


Body = dict[str, Any]


def refusing(is_refused: Callable[[Body], bool], words: str, *replies: StubReply) -> list[Callable[[Body], StubReply]]:
    """Replies of a server that refuses some requests; a refused one takes none of the replies."""
    left = list(replies)

    def answer(body: Body) -> StubReply:
        return Failure(400, words) if is_refused(body) else left.pop(0)

    return [answer] * 20


CALL = Reply(tool_calls=(("echo", {"text": "a"}),))


@pytest.mark.parametrize(
    ("field", "config", "is_refused", "words"),
    [
        (
            "user_after_tool",
            {"finalize": "compose"},
            lambda body: ["tool", "user"] in [[a["role"], b["role"]] for a, b in itertools.pairwise(body["messages"])],
            "Unexpected role 'user' after role 'tool'",
        ),
        (
            "left_out",
            {"temperature": 0.5},
            lambda body: "temperature" in body,
            "Unsupported parameter: 'temperature' is not supported with this model.",
        ),
        (
            "max_tokens",
            {"max_output_tokens": 50},
            lambda body: "max_completion_tokens" in body,
            "body.max_completion_tokens: Extra inputs are not permitted",
        ),
        (
            "choice_none",
            {"finalize": "compose"},
            lambda body: body.get("tool_choice") == "none",
            "tool_choice 'none' is not supported",
        ),
        (
            "call_ids",
            {},
            lambda body: any(len(m.get("tool_call_id", "123456789")) != 9 for m in body["messages"]),
            "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.",
        ),
    ],
)
async def test_a_refused_request_is_sent_in_another_form_and_later_ones_have_it_at_once(
    openai_stub: StubFactory, field: str, config: dict[str, Any], is_refused: Callable[[Body], bool], words: str
) -> None:
    composed: list[StubReply] = ["No more actions."] if "finalize" in config else []
    replies: list[StubReply] = [CALL, *composed, "Done."]
    stub = openai_stub(*refusing(is_refused, words, *replies * 2))
    async with stub.chat_model(f"learner-{next(NUMBERS)}") as model:
        agent = create_graph_agent(
            model, tools=[echo], checkpointer=InMemorySaver(), config=LoopConfig(tool_calling="native", **config)
        )
        session = Session(agent, "s1")

        first, asked = await session.run("go"), len(stub.bodies)
        second = await session.run("again")

    refused = [is_refused(body) for body in stub.bodies]
    warnings = [event["message"] for event in await session.events() if event["type"] == "warning"]
    assert (first.answer, second.answer, sum(refused[:asked]), sum(refused[asked:]), len(warnings)) == (
        "Done.",
        "Done.",
        1,
        0,
        1,
    )
    assert f"`model_rules`: {field}: " in warnings[0]


async def test_a_setting_of_a_person_is_not_changed_by_a_refusal(openai_stub: StubFactory) -> None:
    words = "Unsupported parameter: 'temperature' is not supported with this model."
    stub = openai_stub(*[Failure(400, words)] * 3)
    async with stub.chat_model(f"learner-{next(NUMBERS)}") as model:
        config = LoopConfig(temperature=0.5, model_rules={"*": {"left_out": ["top_p"]}})
        result = await Session(create_graph_agent(model, config=config, checkpointer=InMemorySaver()), "s").run("go")

    assert (result.status, len(stub.bodies)) == ("FAILED", 1)


async def test_a_change_that_does_not_help_is_forgotten(openai_stub: StubFactory) -> None:
    words = "Unsupported parameter: 'temperature' is not supported with this model."
    stub = openai_stub(Failure(400, words), Failure(400, "Something else."), "Hello.")
    async with stub.chat_model(f"learner-{next(NUMBERS)}") as model:
        agent = create_graph_agent(model, config=LoopConfig(temperature=0.5), checkpointer=InMemorySaver())
        failed = await Session(agent, "s").run("go")
        answered = await Session(agent, "t").run("go")

    assert (failed.status, answered.answer, ["temperature" in body for body in stub.bodies]) == (
        "FAILED",
        "Hello.",
        [True, False, True],
    )


def test_rules_are_the_same_after_a_round_through_settings() -> None:
    for rules in PROVIDERS.values():
        assert WireRules().with_fields(rules.changes_from(WireRules())) == rules
