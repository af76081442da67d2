"""What OpenAI's Responses API refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.providers.exchange import Request
from tests.providers.rule import Found, Rule
from tests.providers.rules.bodies import openai_error
from tests.providers.signatures import signature

Find = Callable[[Request], Iterator[Mapping[str, str]]]
Item = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "reasoning": "rs",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "mcp_call": "mcp",
}
_OF_PROVIDER: Mapping[str, tuple[str, ...]] = {
    "web_search_call": ("id", "status", "action"),
    "file_search_call": ("id", "status", "queries"),
    "code_interpreter_call": ("id", "status", "code", "container_id"),
    "mcp_call": ("id", "name", "server_label", "arguments"),
}
"""Items of tools that OpenAI runs → the fields that they need in an input."""
_TOOLS: Mapping[str, tuple[str, ...]] = {
    "function": ("name",),
    "web_search": (),
    "web_search_preview": (),
    "file_search": ("vector_store_ids",),
    "code_interpreter": ("container",),
    "mcp": ("server_label",),
}
"""Types of tools → the fields that they need."""
_MARK = re.compile(r"rs\d+$")
"""The end of the id of an item that came with reasoning."""


def _items(request: Request) -> list[Item]:
    given = request.body.get("input") or []
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _kind(item: Item) -> str:
    return str(item.get("type", "message"))


def _own(item: Item) -> bool:
    """Whether the model wrote an item."""
    return _kind(item) in {"function_call", *_OF_PROVIDER} or (
        _kind(item) == "message" and item.get("role") == "assistant"
    )


def _unanswered(request: Request) -> Iterator[Mapping[str, str]]:
    answered = {item.get("call_id") for item in _items(request) if _kind(item) == "function_call_output"}
    for item in _items(request):
        if _kind(item) == "function_call" and item.get("call_id") not in answered:
            yield {"message": f"No tool output found for function call {item.get('call_id')}."}


def _orphans(request: Request) -> Iterator[Mapping[str, str]]:
    called: set[Any] = set()
    for item in _items(request):
        if _kind(item) == "function_call":
            called.add(item.get("call_id"))
        elif _kind(item) == "function_call_output" and item.get("call_id") not in called:
            yield {"message": f"No tool call found for function call output with call_id {item.get('call_id')}."}


def _no_input(request: Request) -> Iterator[Mapping[str, str]]:
    if not request.body.get("input"):
        yield {"message": 'One of "input" or "previous_response_id" or \'prompt\' must be provided.'}


def _reasoning_alone(request: Request) -> Iterator[Mapping[str, str]]:
    items = _items(request)
    for item, following in zip(items, [*items[1:], None], strict=True):
        # Several reasoning items may stand before the one that they led to.
        led = following is not None and (_own(following) or _kind(following) == "reasoning")
        if _kind(item) == "reasoning" and not led:
            words = "of type 'reasoning' was provided without its required following item."
            yield {"message": f"Item '{item.get('id')}' {words}"}


def _without_reasoning(request: Request) -> Iterator[Mapping[str, str]]:
    given = {item.get("id") for item in _items(request) if _kind(item) == "reasoning"}
    for item in _items(request):
        mark = _MARK.search(str(item.get("id") or "")) if _own(item) else None
        if mark and f"rs_{mark[0]}" not in given:
            words = f"was provided without its required 'reasoning' item: 'rs_{mark[0]}'."
            yield {"message": f"Item '{item['id']}' of type '{_kind(item)}' {words}"}


def _foreign_content(request: Request) -> Iterator[Mapping[str, str]]:
    for item in _items(request):
        if _kind(item) != "reasoning" or item.get("encrypted_content") is None:
            continue
        text = "".join(part.get("text", "") for part in item.get("summary") or [])
        if item["encrypted_content"] != signature(text, "openai"):
            yield {"message": "The encrypted content could not be verified."}


def _no_summary(request: Request) -> Iterator[Mapping[str, str]]:
    for index, item in enumerate(_items(request)):
        if _kind(item) == "reasoning" and "summary" not in item:
            yield {"message": f"Input[{index}] missing required field `summary`"}


def _ids(request: Request) -> Iterator[Mapping[str, str]]:
    seen: set[str] = set()
    for index, item in enumerate(_items(request)):
        prefix, id_ = _PREFIXES.get(_kind(item)), item.get("id")
        if prefix and id_ is not None and not str(id_).startswith(prefix):
            words = f"Expected an ID that begins with '{prefix}'."
            yield {"message": f"Invalid 'input[{index}].id': '{id_}'. {words}"}
        if id_ is not None and id_ in seen:
            yield {
                "message": f"Duplicate item found with id {id_}. Remove duplicate items from your input and try again."
            }
        seen.add(str(id_))
        if len(str(item.get("call_id") or "")) > 64:
            words = "string too long. Expected a string with maximum length 64"
            yield {"message": f"Invalid 'input[{index}].call_id': {words}, but got a longer string instead."}


def _names(request: Request) -> Iterator[Mapping[str, str]]:
    places = [(f"tools[{index}].name", tool.name) for index, tool in enumerate(request.tools)]
    places += [
        (f"input[{index}].name", str(item.get("name", "")))
        for index, item in enumerate(_items(request))
        if _kind(item) == "function_call"
    ]
    for at, name in places:
        if not _NAME.fullmatch(name or ""):
            words = "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
            yield {"message": f"Invalid '{at}': {words}"}


def _schemas(request: Request) -> Iterator[Mapping[str, str]]:
    for tool in request.tools:
        schema = tool.schema if isinstance(tool.schema, dict) else {}
        if schema.get("type") != "object" or {"oneOf", "anyOf", "allOf", "enum", "not"} & schema.keys():
            words = "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
            yield {"message": f"Invalid schema for function '{tool.name}': {words}"}
        elif not isinstance(schema.get("properties", {}), dict):
            yield {"message": f"Invalid schema for function '{tool.name}': None is not of type 'object'."}


def _forced_unknown(request: Request) -> Iterator[Mapping[str, str]]:
    choice = request.tool_choice
    name = choice.get("name") if isinstance(choice, dict) else None
    if name is not None and name not in {tool.name for tool in request.tools}:
        yield {"message": f"Tool choice '{name}' not found in 'tools' parameter."}
    elif choice not in (None, "auto", "none") and not request.body.get("tools"):
        yield {"message": "Tool choice 'required' must be specified with 'tools' parameter."}


def _parts(request: Request) -> Iterator[Mapping[str, str]]:
    for index, item in enumerate(_items(request)):
        content = item.get("output") if _kind(item) == "function_call_output" else item.get("content")
        allowed = (
            {"output_text", "refusal"}
            if item.get("role") == "assistant"
            else {"input_text", "input_image", "input_file"}
        )
        for place, part in enumerate(content if isinstance(content, list) else []):
            if part.get("type") not in allowed:
                words = f"Supported values are: {', '.join(repr(each) for each in sorted(allowed))}."
                yield {"message": f"Invalid value: '{part.get('type')}'. {words} input[{index}].content[{place}]"}
        if _kind(item) == "function_call_output" and not isinstance(content, str | list):
            yield {"message": f"Missing required parameter: 'input[{index}].output'."}
        if _kind(item) not in {*_PREFIXES, "function_call_output", "item_reference"}:
            yield {"message": f"Invalid value: '{_kind(item)}'. input[{index}].type"}


def _provider_items(request: Request) -> Iterator[Mapping[str, str]]:
    for index, item in enumerate(_items(request)):
        for name in _OF_PROVIDER.get(_kind(item), ()):
            if item.get(name) is None:
                yield {"message": f"Missing required parameter: 'input[{index}].{name}'."}
        if _kind(item) in _OF_PROVIDER and (foreign := {"index", "sub_index"} & item.keys()):
            yield {"message": f"Unknown parameter: 'input[{index}].{min(foreign)}'."}


def _tools(request: Request) -> Iterator[Mapping[str, str]]:
    for index, tool in enumerate(request.body.get("tools") or ()):
        kind = str(tool.get("type"))
        if kind not in _TOOLS:
            words = f"Supported values are: {', '.join(repr(each) for each in sorted(_TOOLS))}."
            yield {"message": f"Invalid value: '{kind}'. {words}", "param": f"tools[{index}]"}
        for name in _TOOLS.get(kind, ()):
            if name not in tool:
                yield {"message": f"Missing required parameter: 'tools[{index}].{name}'.", "param": f"tools[{index}]"}


def _sampling(request: Request) -> Iterator[Mapping[str, str]]:
    for name in ("temperature", "top_p"):
        if re.match(r"gpt-5|o\d", request.model) and request.body.get(name) not in (None, 1, 1.0):
            yield {"message": f"Unsupported parameter: '{name}' is not supported with this model.", "param": name}


def _unknown_fields(request: Request) -> Iterator[Mapping[str, str]]:
    for name in (
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "response_format",
        "reasoning_effort",
        "stream_options",
        "seed",
        "n",
    ):
        if name in request.body:
            yield {"message": f"Unsupported parameter: '{name}'.", "param": name}


def _word_json(request: Request) -> Iterator[Mapping[str, str]]:
    if (request.response_format or {}).get("type") == "json_object" and "json" not in request.text.lower():
        words = "in some form to use 'text.format' of type 'json_object'."
        yield {"message": f"Response input messages must contain the word 'json' {words}"}


def _rule(
    id_: str, find: Find, sample: Mapping[str, Any], *, param: str | None = "input", code: str | None = None
) -> Rule:
    def check(request: Request) -> Found | None:
        return next(({"param": param, **found} for found in find(request)), None)

    return Rule(id_, check, 400, openai_error("{message}", param="{param}", code=code), sample)


_HI = {"role": "user", "content": "hi"}
_CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
_OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}
_THOUGHT = {"type": "reasoning", "id": "rs_rs1", "summary": []}
_MESSAGE = {"type": "message", "id": "msg_1rs1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}

RULES: tuple[Rule, ...] = (
    _rule("openai-44", _no_input, {"input": []}, param=None, code="missing_required_parameter"),
    _rule("openai-fields", _unknown_fields, {"max_completion_tokens": 10}, code="unsupported_parameter"),
    _rule("openai-52", _no_summary, {"input": [_HI, {"type": "reasoning", "id": "rs_1"}, _MESSAGE]}),
    _rule(
        "openai-parts",
        _parts,
        {"input": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        code="invalid_value",
    ),
    _rule("openai-ids", _ids, {"input": [_HI, {**_MESSAGE, "id": "lc_1"}, _HI]}, code="invalid_value"),
    _rule("openai-05", _names, {"tools": [{**_TOOL, "name": "db.query"}]}, code="invalid_value"),
    _rule(
        "openai-07",
        _schemas,
        {"tools": [{**_TOOL, "parameters": {"type": "object", "anyOf": []}}]},
        code="invalid_function_parameters",
    ),
    _rule("openai-42", _unanswered, {"input": [_HI, _CALL, _HI]}),
    _rule("openai-43", _orphans, {"input": [_HI, _OUTPUT]}),
    _rule(
        "openai-46",
        _forced_unknown,
        {"tools": [_TOOL], "tool_choice": {"type": "function", "name": "g"}},
        param="tool_choice",
    ),
    _rule("openai-47", _reasoning_alone, {"input": [_HI, _THOUGHT, _HI]}),
    _rule("openai-48", _without_reasoning, {"input": [_HI, _MESSAGE, _HI]}),
    _rule(
        "openai-49",
        _foreign_content,
        {"input": [_HI, {**_THOUGHT, "encrypted_content": "foreign"}, _MESSAGE]},
        param=None,
        code="invalid_encrypted_content",
    ),
    _rule(
        "openai-provider-items",
        _provider_items,
        {"input": [_HI, {"type": "web_search_call", "id": "ws_1", "status": "completed"}, _HI]},
        code="missing_required_parameter",
    ),
    _rule("openai-tools", _tools, {"tools": [{"type": "websearch"}]}, code="invalid_value"),
    _rule("openai-58", _sampling, {"model": "gpt-5", "temperature": 0.2}),
    _rule("openai-59", _word_json, {"text": {"format": {"type": "json_object"}}}),
)
"""Rules of every model."""

OVERFLOW = Rule(
    "openai-57",
    None,
    400,
    openai_error(
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        param="input",
        code="context_length_exceeded",
    ),
)
