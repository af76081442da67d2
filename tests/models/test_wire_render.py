"""The request of any history keeps to the rules of its endpoint, and loses nothing that the endpoint accepts."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import AzureChatOpenAI, ChatOpenAI
from pydantic import SecretStr

from graph_agent import ScriptedChatModel
from graph_agent.base._internal.media import media_of
from graph_agent.base.tool_names import alias_of
from graph_agent.errors import ConfigError
from graph_agent.models.sanitize import with_traits
from graph_agent.models.wire.choose import rules_for
from graph_agent.models.wire.learn import endpoint_of
from graph_agent.models.wire.render import SENT, SENT_CALLS, call_id_for, render, with_source
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.table import PROVIDERS
from graph_agent.models.wire.traits import CALL_FIELDS, SOURCE, concerned_by

KEY = SecretStr("k")
IMAGE = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
PDF = {"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf"}
NAMES = ["search", "browser.tabs.open", "a name", "x" * 80, "1st"]
SPEAKERS = st.sampled_from([None, None, "ada", "Ada Lovelace", "a/b|c", "n" * 80, " "])
IDS = ["call_1", "functions.f:0", "toolu_01A", "abcdef123", "x" * 70]


@st.composite
def histories(draw: st.DrawFn) -> list[BaseMessage]:
    """A settled history: each message with calls is followed by their results, in order."""
    messages: list[BaseMessage] = [SystemMessage("Be brief.")]
    ids = iter(f"{id_}{number}"[:90] for number in range(99) for id_ in IDS)
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["user", "user", "notice", "calls", "calls", "answer"]))
        if kind in ("user", "notice"):
            media = draw(st.lists(st.sampled_from([IMAGE, PDF]), max_size=2))
            text = f"u{number}"
            content: Any = [{"type": "text", "text": text}, *media] if media else text
            messages.append(HumanMessage(content, name=draw(SPEAKERS)))
        elif kind == "answer":
            messages.append(AIMessage(draw(st.sampled_from([f"a{number}", ""])), name=draw(SPEAKERS)))
        else:
            calls = [
                {"id": next(ids), "name": draw(st.sampled_from(NAMES)), "args": {"q": "1"}}
                for _ in range(draw(st.integers(1, 3)))
            ]
            text = draw(st.sampled_from(["", f"p{number}"]))
            messages.append(AIMessage(text, tool_calls=calls, name=draw(SPEAKERS)))
            for call in calls:
                results: list[Any] = ["r", [{"type": "text", "text": "r"}, IMAGE], [PDF], ""]
                content = draw(st.sampled_from(results))
                messages.append(ToolMessage(content, tool_call_id=call["id"], name=call["name"]))
    return messages


def sent(messages: list[BaseMessage], rules: WireRules) -> list[BaseMessage]:
    """The messages of a request, in the way of the model's client."""
    safe = with_traits(messages)
    return list(render(safe, rules, alias_of) if safe.traits & concerned_by(rules) else safe)


def texts(messages: list[BaseMessage]) -> str:
    return " ".join(str(message.content) for message in messages)


@given(histories(), st.sampled_from(sorted(PROVIDERS)))
def test_a_request_keeps_to_the_rules_of_its_endpoint(history: list[BaseMessage], provider: str) -> None:
    rules = PROVIDERS[provider]

    request = sent(history, rules)

    calls = [call for message in request if isinstance(message, AIMessage) for call in message.tool_calls]
    results = [message for message in request if isinstance(message, ToolMessage)]
    ids = [str(call["id"]) for call in calls]
    pattern = {"any": ".*", "plain": "[a-zA-Z0-9_-]{1,64}", "nine": "[a-zA-Z0-9]{9}"}[rules.call_ids]
    media = {
        kind: {found for message in request if isinstance(message, kind) for found in kinds_in(message)}
        for kind in (HumanMessage, ToolMessage)
    }
    images = [block for message in request for block in blocks_of(message) if media_of(block) == "image"]
    orders = {(type(one), type(two)) for one, two in pairwise(request)}
    assert {
        "names": all(re.fullmatch("[a-zA-Z_][a-zA-Z0-9_-]{0,63}", call["name"]) for call in calls),
        "ids": all(re.fullmatch(pattern, id_) for id_ in ids) and len(set(ids)) == len(ids),
        "pairs": [result.tool_call_id for result in results] == ids,
        "results first": not any(
            isinstance(one, AIMessage) and one.tool_calls and not isinstance(two, ToolMessage)
            for one, two in pairwise(request)
        ),
        "user after tool": rules.user_after_tool or (ToolMessage, HumanMessage) not in orders,
        "repeated users": rules.repeated_users or (HumanMessage, HumanMessage) not in orders,
        "media of results": media[ToolMessage] <= rules.result_media,
        "media of the user": media[HumanMessage] <= rules.user_media,
        "form of images": not rules.image_urls or all(block["type"] == "image_url" for block in images),
        "texts": all(f"u{n}" in texts(request) for n in range(5) if f"u{n}" in texts(history)),
        "speakers": all(
            accepts and ((rules.provider == "in-process") or re.fullmatch(r"[^\s<|\\/>]{1,64}", message.name))
            for message in request
            if message.name and not isinstance(message, ToolMessage)
            for accepts in [rules.reply_names if isinstance(message, AIMessage) else rules.user_names]
        ),
        "empty": rules.empty_text
        or all(message.content or (isinstance(message, AIMessage) and message.tool_calls) for message in request),
    } == dict.fromkeys(
        [
            *["names", "ids", "pairs", "results first", "user after tool", "repeated users", "media of results"],
            *["media of the user", "form of images", "texts", "speakers", "empty"],
        ],
        True,
    )


def kinds_in(message: BaseMessage) -> list[Any]:
    return [kind for block in blocks_of(message) if (kind := media_of(block)) is not None]


def blocks_of(message: BaseMessage) -> list[Any]:
    return message.content if isinstance(message.content, list) else []


@given(histories(), st.sampled_from(sorted(PROVIDERS)), st.integers(1, 12))
def test_a_request_begins_with_that_of_a_shorter_history(history: list[BaseMessage], provider: str, cut: int) -> None:
    """Prompt caches depend on it. Only the newest message may be extended, by a message joined to it."""
    rules = PROVIDERS[provider]
    cut = next((at for at in range(cut, len(history)) if not isinstance(history[at], ToolMessage)), len(history))

    before, after = sent(history[:cut], rules), sent(history, rules)

    assert [m.content for m in before[:-1]] == [m.content for m in after[: len(before) - 1]]


def test_a_history_that_an_endpoint_accepts_is_sent_as_it_is() -> None:
    history = with_traits([SystemMessage("Be brief."), HumanMessage("go"), AIMessage("Done.")])

    assert [rules.provider for rules in PROVIDERS.values() if history.traits & concerned_by(rules)] == []


@pytest.mark.parametrize("form", ["any", "plain", "nine"])
def test_a_converted_id_is_accepted_as_it_is(form: Any) -> None:
    converted = [call_id_for(form, id_) for id_ in IDS]

    assert (len(set(converted)), [call_id_for(form, id_) for id_ in converted]) == (len(IDS), converted)


REASONED = AIMessage(
    "",
    tool_calls=[{"id": "c1", "name": "search", "args": {}}],
    additional_kwargs={"reasoning_content": "Because.", CALL_FIELDS: {"c1": {"extra_content": {"google": "sig"}}}},
    response_metadata={SOURCE: "deepseek"},
)


@pytest.mark.parametrize(
    ("provider", "fields", "call_fields"),
    [
        ("deepseek", {"reasoning_content": "Because."}, [{"extra_content": {"google": "sig"}}]),
        ("moonshot-kimi", {"reasoning_content": ""}, [{}]),
        ("groq", None, None),
        ("openai", None, None),
    ],
)
def test_reasoning_goes_back_to_the_provider_that_made_it_alone(provider: str, fields: Any, call_fields: Any) -> None:
    history = [HumanMessage("go"), REASONED, ToolMessage("r", tool_call_id="c1")]

    reply = sent(history, PROVIDERS[provider])[1]

    assert (reply.additional_kwargs.get(SENT), reply.additional_kwargs.get(SENT_CALLS)) == (fields, call_fields)


def test_reasoning_of_a_server_that_is_not_in_the_table_goes_back_to_its_own_address_alone() -> None:
    addresses = ("http://127.0.0.1:8001/v1", "http://127.0.0.1:8002/v1")
    first, second = (endpoint_of(ChatOpenAI(model="m", api_key=KEY, base_url=url), {}) for url in addresses)
    reply = AIMessage(
        "",
        tool_calls=[{"id": "c1", "name": "search", "args": {}}],
        additional_kwargs={"reasoning_content": "Because."},
        response_metadata={"model_provider": "openai"},
    )
    history = [HumanMessage("go"), with_source(reply, first.source), ToolMessage("r", tool_call_id="c1")]

    sent_back = [
        render(history, endpoint.rules, alias_of, endpoint.source)[1].additional_kwargs.get(SENT)
        for endpoint in (first, second)
    ]

    assert sent_back == [{"reasoning_content": "Because."}, None]


def test_a_reply_of_another_provider_keeps_text_and_calls_alone() -> None:
    claude = AIMessage(
        [
            {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}},
        ],
        tool_calls=[{"id": "toolu_1", "name": "search", "args": {}}],
        response_metadata={"model_provider": "anthropic"},
    )

    foreign = sent([HumanMessage("go"), claude, ToolMessage("r", tool_call_id="toolu_1")], PROVIDERS["openai"])[1]
    own = sent([HumanMessage("go"), claude, ToolMessage("r", tool_call_id="toolu_1")], PROVIDERS["anthropic"])[1]

    assert (foreign.content, own.content) == ("Let me look.", claude.content)


class Mine(ChatOpenAI):
    """A subclass of another name."""


@pytest.mark.parametrize(
    ("make", "provider"),
    [
        (lambda: ChatOpenAI(model="gpt-4o", api_key=KEY), "openai"),
        (lambda: Mine(model="gpt-4o", api_key=KEY, base_url="https://api.deepseek.com/v1"), "deepseek"),
        (lambda: ChatOpenAI(model="m", api_key=KEY, base_url="http://127.0.0.1:8000/v1"), "unknown"),
        (lambda: ChatOpenAI(model="m", api_key=KEY, base_url="http://localhost:11434/v1"), "ollama"),
        (lambda: ChatOpenAI(model="m", api_key=KEY, base_url="https://eu.api.groq.com/openai/v1"), "groq"),
        (
            lambda: AzureChatOpenAI(
                model="m", api_key=KEY, azure_endpoint="https://mine.openai.azure.com", api_version="2024-10-21"
            ),
            "azure-openai",
        ),
        (lambda: ChatGoogleGenerativeAI(model="gemini-3-pro", api_key=KEY), "google-gemini"),
        (lambda: ChatGoogleGenerativeAI(model="gemini-3-pro", api_key=KEY, vertexai=True), "google-vertex"),
        (lambda: ScriptedChatModel(["x"]), "in-process"),
    ],
)
def test_rules_are_chosen_by_class_and_address(make: Any, provider: str) -> None:
    model: BaseChatModel = make()

    assert rules_for(model).provider == provider


def test_rules_of_a_family_hold_on_a_server_of_many_models() -> None:
    model = ChatOpenAI(model="mistralai/Mistral-Small-3.2", api_key=KEY, base_url="http://127.0.0.1:8000/v1")

    rules = rules_for(model, {"user_after_tool": True})

    assert (rules.call_ids, rules.user_after_tool, rules.is_known) == ("nine", True, False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-5", {"left_out": {"temperature", "top_p"}}),
        ("openai/gpt-5.6-mini", {"left_out": {"temperature", "top_p"}}),
        ("o4-mini", {"left_out": {"temperature", "top_p"}}),
        ("gpt-5-chat-latest", {}),
        ("gpt-4o", {}),
        ("gpt-oss-120b", {}),
        ("grok-4.6", {"left_out": {"stop"}}),
        ("grok-4-fast-non-reasoning", {"left_out": {"stop"}}),
        ("grok-4.20-0309-non-reasoning", {}),
        ("grok-2-1212", {}),
        ("kimi-k2.5", {"left_out": {"temperature"}, "choice_forced": False}),
        ("moonshotai/kimi-k2-instruct", {}),
        ("moonshot-v1-8k", {"user_media": set()}),
        ("moonshot-v1-8k-vision-preview", {}),
        ("deepseek-ai/DeepSeek-V4", {"choice_forced": False}),
        ("deepseek-ai/DeepSeek-V3", {}),
        ("anthropic/claude-opus-4-8", {"left_out": {"temperature", "top_p", "top_k"}}),
        ("claude-opus-4-20250514", {}),
        ("claude-sonnet-4-6", {}),
    ],
)
def test_what_a_model_refuses_is_known_by_its_name(name: str, expected: dict[str, Any]) -> None:
    rules = rules_for(ChatOpenAI(model=name, api_key=KEY, base_url="https://gateway.example/v1"))

    changed = rules.changes_from(WireRules())
    concerned = {field: changed[field] for field in ("left_out", "choice_forced", "user_media") if field in changed}
    assert concerned == {field: sorted(value) if isinstance(value, set) else value for field, value in expected.items()}


@pytest.mark.parametrize(("kind", "first"), [("enabled", True), ("adaptive", False)])
def test_a_reply_of_claude_begins_with_reasoning_if_there_is_a_budget_for_it(kind: str, *, first: bool) -> None:
    thinking = {"type": kind} | ({"budget_tokens": 1024} if first else {})
    model = ChatAnthropic(model_name="claude-sonnet-4-6", api_key=KEY, timeout=None, stop=None, thinking=thinking)

    rules = rules_for(model)

    assert (rules.thinking_first, rules.choice_forced, rules.left_out) == (first, False, frozenset({"temperature"}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"user_after_tools": True}, "model_rules: unknown field 'user_after_tools'; did you mean 'user_after_tool'?"),
        ({"user_after_tool": "no"}, "model_rules: user_after_tool is true or false; got 'no'."),
        ({"call_ids": "ten"}, "model_rules: call_ids is one of any, plain, nine; got 'ten'."),
        ({"user_media": ["smell"]}, "model_rules: user_media is a list of audio, file, image, pdf, video; got"),
    ],
)
def test_a_wrong_setting_of_the_rules_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        WireRules().with_fields(settings)

    assert message in str(refused.value)


@pytest.mark.parametrize("provider", ["openai", "mistral", "unknown"])
def test_fields_of_prompt_caching_are_left_out_where_they_are_refused(provider: str) -> None:
    marked = {"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}
    rules = PROVIDERS.get(provider, WireRules())

    request = sent([SystemMessage([marked]), HumanMessage([marked, IMAGE])], rules)

    assert "cache_control" not in texts(request)
