"""Content blocks that Anthropic's servers and tool search make, and choices of allowed tools."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints, is_typeddict

import anthropic
import openai
import pytest
from anthropic.types.beta import BetaContentBlockParam

from tests.support.chat_client import PIXEL

QUESTION = {"role": "user", "content": "!history"}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "teas of Assam"}}
FOUND = {"type": "web_search_result", "url": "https://tea.example", "title": "Teas", "encrypted_content": "c2VjcmV0"}
TEXT = {"type": "text", "text": "Strong."}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Page 1"}, "title": "A"}
SEARCH_RESULT = {"type": "search_result", "source": "https://tea.example", "title": "Teas", "content": [TEXT]}
ERROR = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
LOAD: Any = {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {"query": "paint"}}
TOOLS: Any = [{"name": name, "input_schema": {"type": "object"}} for name in ("ToolSearch", "paint")]


def result(kind: str, content: Any) -> dict[str, Any]:
    """The result of the call `SEARCH`."""
    return {"type": f"{kind}_tool_result", "tool_use_id": "srvtoolu_1", "content": content}


MADE_BY_SERVERS: dict[str, tuple[dict[str, Any], str]] = {
    "server_tool_use": (SEARCH, '[Call of web_search: {"query": "teas of Assam"}]'),
    "web_search_tool_result": (result("web_search", [FOUND]), "[Result of web_search: Teas\nhttps://tea.example]"),
    "web_fetch_tool_result": (
        result("web_fetch", {"type": "web_fetch_result", "url": "https://tea.example", "content": DOCUMENT}),
        "[Result of web_fetch: https://tea.example\nA\nPage 1]",
    ),
    "advisor_tool_result": (
        result("advisor", {"type": "advisor_result", "text": "Wait."}),
        "[Result of advisor: Wait.]",
    ),
    "code_execution_tool_result": (
        result("code_execution", {"type": "code_execution_result", "stdout": "4", "stderr": "", "return_code": 0}),
        "[Result of code_execution: 4]",
    ),
    "bash_code_execution_tool_result": (
        result("bash_code_execution", {"type": "bash_code_execution_result", "stdout": "", "stderr": "no file"}),
        "[Result of bash_code_execution: no file]",
    ),
    "text_editor_code_execution_tool_result": (
        result("text_editor_code_execution", {"type": "text_editor_code_execution_view_result", "content": "line 1"}),
        "[Result of text_editor_code_execution: line 1]",
    ),
    "tool_search_tool_result": (
        result(
            "tool_search",
            {
                "type": "tool_search_tool_search_result",
                "tool_references": [{"type": "tool_reference", "tool_name": "paint"}],
            },
        ),
        "[Result of tool_search: paint]",
    ),
    "mcp_tool_use": (
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "find", "server_name": "shop", "input": {"q": 1}},
        '[Call of find: {"q": 1}]',
    ),
    "mcp_tool_result": (result("mcp", [TEXT]), "[Result of mcp: Strong.]"),
    "compaction": ({"type": "compaction", "content": "They spoke of tea."}, "They spoke of tea."),
    "container_upload": ({"type": "container_upload", "file_id": "file_1"}, ""),
    "mcp_tool_listing": ({"type": "mcp_tool_listing", "mcp_server_name": "shop", "tools": []}, ""),
    "fallback": ({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": {}}, ""),
    "thinking": ({"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, ""),
    "redacted_thinking": ({"type": "redacted_thinking", "data": "c2ln"}, ""),
}
"""Type of a block in an assistant's message → a block, and what the model reads of it."""
OF_OTHER_MESSAGES = {
    "text", "image", "document", "search_result", "tool_use", "tool_result", "tool_addition", "tool_removal",
}  # fmt: skip


def ask(client: anthropic.Anthropic, *messages: Any, **options: Any) -> Any:
    return client.beta.messages.create(model="parrot", max_tokens=100, messages=list(messages), **options)


def of_assistant(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": "Which tea?"}, {"role": "assistant", "content": list(blocks)}, QUESTION]


@pytest.mark.parametrize("kind", MADE_BY_SERVERS)
def test_a_conversation_with_a_block_of_a_provider_goes_on(anthropic_client: anthropic.Anthropic, kind: str) -> None:
    block, text = MADE_BY_SERVERS[kind]
    answer = ask(anthropic_client, *of_assistant({"type": "text", "text": "Well."}, block))

    assert answer.content[0].text == "human: Which tea?\n\nai: Well." + (f"\n\n{text}" if text else "")


def test_every_block_that_the_api_publishes_is_tested() -> None:
    published = {
        get_args(get_type_hints(each)["type"])[0] for each in get_args(BetaContentBlockParam) if is_typeddict(each)
    }

    assert published - set(MADE_BY_SERVERS) - OF_OTHER_MESSAGES == set()


def test_results_are_named_by_their_call(anthropic_client: anthropic.Anthropic) -> None:
    last = {"type": "text", "text": "Assam."}
    answer = ask(anthropic_client, *of_assistant(SEARCH, result("web_search", ERROR), last))

    assert answer.content[0].text.partition("ai: ")[2] == (
        '[Call of web_search: {"query": "teas of Assam"}]\n\n[Result of web_search: max_uses_exceeded]\n\nAssam.'
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "tool_reference", "tool_name": "paint"}], "The tool paint can be called now."),
        ([SEARCH_RESULT], "Teas\nhttps://tea.example\nStrong."),
        ([TEXT, SEARCH_RESULT], "Strong.Teas\nhttps://tea.example\nStrong."),
        ([DOCUMENT], "A\n\nPage 1"),
    ],
    ids=["reference", "search result", "two", "document"],
)
def test_results_of_calls_hold_references_and_search_results(
    anthropic_client: anthropic.Anthropic, content: Any, text: str
) -> None:
    returned = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content}
    conversation = [
        {"role": "user", "content": "Paint it."},
        {"role": "assistant", "content": [LOAD]},
        {"role": "user", "content": [returned, {"type": "text", "text": "!history"}]},
    ]
    answer = ask(anthropic_client, *conversation, tools=TOOLS)

    assert answer.content[0].text == f"human: Paint it.\n\nai: \n\ntool: {text}"


def test_a_found_tool_is_called(anthropic_client: anthropic.Anthropic) -> None:
    returned = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "tool_reference", "tool_name": "paint"}],
    }
    found = [
        {"role": "user", "content": "Paint it."},
        {"role": "assistant", "content": [LOAD]},
        {"role": "user", "content": [returned]},
        {"role": "assistant", "content": "Now."},
        {"role": "user", "content": '!call paint {"color": "red"}'},
    ]
    tools: Any = [TOOLS[0], {**TOOLS[1], "defer_loading": True}]
    answer = ask(anthropic_client, *found, tools=tools)

    assert [(each.name, each.input) for each in answer.content if each.type == "tool_use"] == [
        ("paint", {"color": "red"})
    ]


@pytest.mark.parametrize(
    "block",
    [
        SEARCH_RESULT,
        {**DOCUMENT, "source": {"type": "content", "content": "Page 1"}},
        {**DOCUMENT, "source": {"type": "content", "content": [TEXT, TEXT]}},
    ],
)
def test_a_message_of_the_user_holds_it(anthropic_client: anthropic.Anthropic, block: Any) -> None:
    answer = ask(anthropic_client, {"role": "user", "content": [block]})
    counted = anthropic_client.messages.count_tokens(model="parrot", messages=[{"role": "user", "content": [block]}])

    assert (answer.content[0].text.startswith("You said: "), counted.input_tokens > 1) == (True, True)


@pytest.mark.parametrize(
    ("role", "block", "named"),
    [
        ("user", {"type": "container_upload", "file_id": "file_1"}, "container_upload"),
        ("user", {"type": "video", "url": "https://tea.example"}, "messages.0.content.0.type: Input should be 'text'"),
        ("user", SEARCH, "'server_tool_use'"),
        ("assistant", {"type": "audio"}, "messages.0.content.0.type"),
        ("assistant", {"type": "tool_removal", "tool": {}}, "tool_removal"),
        ("user", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL + "%"}}, ""),
        ("user", {"type": "image", "source": "https://tea.example"}, "image"),
        ("user", {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "video"}]}, "content.0.type"),
    ],
)
def test_what_would_be_lost_is_refused(
    anthropic_client: anthropic.Anthropic, role: str, block: Any, named: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(anthropic_client, {"role": role, "content": [block, {"type": "text", "text": "Hi."}]}, QUESTION)

    assert named in str(caught.value.body["error"]["message"])  # type: ignore[index]  # the SDK declares an object


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def allowed(mode: str, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def chat(client: openai.OpenAI, content: str, *tools: Any, choice: Any) -> Any:
    return client.chat.completions.create(
        model="parrot", messages=[{"role": "user", "content": content}], tools=list(tools), tool_choice=choice
    )


@pytest.mark.parametrize(("name", "calls"), [("draw", []), ("paint", ["paint"])])
def test_a_chat_completion_calls_only_allowed_tools(openai_client: openai.OpenAI, name: str, calls: list[str]) -> None:
    choice = allowed("auto", {"type": "function", "function": {"name": name}})
    answer = chat(openai_client, "!call paint {}", function("paint"), function("draw"), choice=choice)

    assert [call.function.name for call in answer.choices[0].message.tool_calls or []] == calls


def test_allowed_tools_may_be_required(openai_client: openai.OpenAI) -> None:
    search = {"type": "web_search"}
    auto, required = [
        chat(openai_client, "hi", search, function("paint"), choice=allowed(mode, function("paint"))).choices[0]
        for mode in ("auto", "required")
    ]
    with pytest.raises(openai.BadRequestError, match="no function to call"):
        chat(openai_client, "hi", search, function("paint"), choice=allowed("required", search))

    assert (auto.message.content, required.message.content) == ("You said: hi", "You said: hi")


@pytest.mark.parametrize(
    "choice",
    [
        allowed("auto", function("none")),
        allowed("auto"),
        allowed("sometimes", function("paint")),
        {"type": "allowed_tools"},
        allowed("auto", {"type": "web_search"}),
    ],
)
def test_allowed_tools_that_are_not_offered_are_refused(openai_client: openai.OpenAI, choice: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        chat(openai_client, "hi", function("paint"), choice=choice)


def test_allowed_tools_may_name_an_offered_tool_that_is_left_out(openai_client: openai.OpenAI) -> None:
    search: Any = {"type": "web_search"}
    both: Any = {"type": "allowed_tools", "mode": "auto", "tools": [search, {"type": "function", "name": "paint"}]}
    paint: Any = {"type": "function", "name": "paint", "parameters": {"type": "object", "properties": {}}}
    response = openai_client.responses.create(
        model="parrot", input="!call paint {}", tools=[search, paint], tool_choice=both
    )

    assert [item.name for item in response.output if item.type == "function_call"] == ["paint"]
