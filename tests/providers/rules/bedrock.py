"""What Converse of Amazon Bedrock refuses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.providers.exchange import Request
from tests.providers.rule import Found, Rule
from tests.providers.signatures import signature

Find = Callable[[Request], Iterator[str]]
Block = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_ID = re.compile(r"[a-zA-Z0-9_.:-]+")
_DOCUMENT_NAME = re.compile(r"[\w \-()\[\]]{1,200}")
_OF_RESULT = {"text", "json", "image", "document", "video", "searchResult"}
_NOT_STRICT = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "contains")
_MODEL = "The model returned the following errors: "


def _messages(request: Request) -> Iterator[tuple[int, str, list[Block]]]:
    """Yield index, role and blocks of each message."""
    for index, message in enumerate(request.body.get("messages") or []):
        yield index, message.get("role"), message.get("content") or []


def _blocks(request: Request, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield place and value of each block of a kind."""
    for index, _role, blocks in _messages(request):
        for place, block in enumerate(blocks):
            if kind in block:
                yield f"messages.{index}.content.{place}", block[kind]


def _results_together(request: Request) -> Iterator[str]:
    messages = list(_messages(request))
    for (index, _role, blocks), following in zip(messages, [*messages[1:], None], strict=True):
        called = [block["toolUse"].get("toolUseId") for block in blocks if "toolUse" in block]
        answered = _answered(following[2]) if following else []
        if missing := [id_ for id_ in called if id_ not in answered]:
            yield (
                f"Expected toolResult blocks at messages.{index + 1}.content for the following Ids: "
                f"{', '.join(missing)}"
            )


def _answered(blocks: list[Block]) -> list[str]:
    return [block["toolResult"].get("toolUseId") for block in blocks if "toolResult" in block]


def _more_results(request: Request) -> Iterator[str]:
    called: list[str] = []
    for index, _role, blocks in _messages(request):
        answered = _answered(blocks)
        if len(answered) > len(called) or any(id_ not in called for id_ in answered):
            yield (
                f"The number of toolResult blocks at messages.{index}.content exceeds the number of toolUse blocks of "
                "previous turn."
            )
        called = [block["toolUse"].get("toolUseId") for block in blocks if "toolUse" in block]


def _text_with_results(request: Request) -> Iterator[str]:
    for _index, _role, blocks in _messages(request):
        if _answered(blocks) and len(_answered(blocks)) < len(blocks) and "claude" not in request.model:
            yield "Conversation blocks and tool result blocks cannot be provided in the same turn."


def _roles(request: Request) -> Iterator[str]:
    roles = [role for _index, role, _blocks in _messages(request)]
    if roles[:1] != ["user"]:
        yield (
            "A conversation must start with a user message. Try again with a conversation that starts "
            "with a user message."
        )
    if any(one == two for one, two in itertools.pairwise(roles)):
        yield "A conversation must alternate between user and assistant roles."


def _blank_text(request: Request) -> Iterator[str]:
    for at, text in _blocks(request, "text"):
        if not str(text).strip():
            yield (
                f"The text field in the ContentBlock object at {at} is blank. Add text to the text "
                "field, and try again."
            )
    for index, _role, blocks in _messages(request):
        if not blocks:
            yield f"The content field in the Message object at messages.{index} is empty. Add a ContentBlock object."
    for index, block in enumerate(request.body.get("system") or []):
        if "text" in block and not block["text"].strip():
            yield f"The text field in the SystemContentBlock object at system.{index} is blank."


def _trailing_space(request: Request) -> Iterator[str]:
    messages = list(_messages(request))
    if messages and messages[-1][1] == "assistant":
        text = str((messages[-1][2] or [{}])[-1].get("text", ""))
        if text != text.rstrip():
            yield f"{_MODEL}messages: final assistant content cannot end with trailing whitespace"


def _calls_without_config(request: Request) -> Iterator[str]:
    has_calls = any(True for kind in ("toolUse", "toolResult") for _block in _blocks(request, kind))
    if has_calls and not request.body.get("toolConfig"):
        yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."


def _names(request: Request) -> Iterator[str]:
    failed = "failed to satisfy constraint: Member must"
    ids = [(at, "toolUse", call.get("toolUseId")) for at, call in _blocks(request, "toolUse")]
    ids += [(at, "toolResult", result.get("toolUseId")) for at, result in _blocks(request, "toolResult")]
    names = [(f"{at}.member.toolUse.name", call.get("name")) for at, call in _blocks(request, "toolUse")]
    names += [
        (f"toolConfig.tools.{number + 1}.member.toolSpec.name", tool.name) for number, tool in enumerate(request.tools)
    ]
    for pattern, values in (
        (_NAME, names),
        (_ID, [(f"{at}.member.{kind}.toolUseId", id_) for at, kind, id_ in ids]),
    ):
        for at, value in values:
            if not pattern.fullmatch(value or ""):
                words = f"{failed} satisfy regular expression pattern: {pattern.pattern}"
                yield f"1 validation error detected: Value '{value}' at '{at}' {words}"
            elif len(value) > 64:
                words = f"{failed} have length less than or equal to 64"
                yield f"1 validation error detected: Value '{value}' at '{at}' {words}"
    if len({tool.name for tool in request.tools}) < len(request.tools):
        yield f"{_MODEL}tools: Tool names must be unique."


def _inputs(request: Request) -> Iterator[str]:
    for at, call in _blocks(request, "toolUse"):
        if not isinstance(call.get("input"), dict):
            words = "is invalid. Provide a json object for the field and try again."
            yield f"The format of the value at {at}.toolUse.input {words}"


def _mistral_ids(request: Request) -> Iterator[str]:
    for _at, call in _blocks(request, "toolUse") if "mistral" in request.model else ():
        if not re.fullmatch(r"[a-zA-Z0-9]{9}", call.get("toolUseId") or ""):
            words = "must be a-z, A-Z, 0-9, with a length of 9."
            yield f"{_MODEL}Tool call id was {call.get('toolUseId')} but {words}"


def _empty_error(request: Request) -> Iterator[str]:
    for at, result in _blocks(request, "toolResult"):
        if result.get("status") == "error" and not result.get("content"):
            yield f"The content field at {at}.toolResult cannot be empty when status value is error."


def _result_content(request: Request) -> Iterator[str]:
    for at, result in _blocks(request, "toolResult"):
        for place, part in enumerate(result.get("content") or []):
            if not part.keys() <= _OF_RESULT or not part:
                yield f"The value at {at}.toolResult.content.{place} is not supported."
            elif "json" in part and not isinstance(part["json"], dict):
                yield f"The format of the value at {at}.toolResult.content.{place}.json is invalid."


def _documents(request: Request) -> Iterator[str]:
    for _index, _role, blocks in _messages(request):
        documents = [block["document"] for block in blocks if "document" in block]
        if documents and not any("text" in block for block in blocks):
            yield "A text block must be included when a document block is provided."
        names = [document.get("name") or "" for document in documents]
        if any(not _DOCUMENT_NAME.fullmatch(name) or "  " in name for name in names):
            yield (
                "The file name of a document may only contain alphanumeric characters, whitespace, "
                "hyphens and brackets."
            )
        if len(set(names)) < len(names):
            yield "Duplicate document file names are not supported."


def _reasoning(request: Request) -> Iterator[str]:
    for at, block in _blocks(request, "reasoningContent"):
        text = block.get("reasoningText") or {}
        if text.get("signature") != signature(text.get("text") or "", "bedrock"):
            yield f"{_MODEL}{at}: Invalid `signature` in `thinking` block"
    messages = list(_messages(request))
    thinks = "thinking" in (request.body.get("additionalModelRequestFields") or {})
    if thinks and len(messages) > 1 and _answered(messages[-1][2]) and "reasoningContent" not in messages[-2][2][0]:
        yield (
            f"{_MODEL}messages.{len(messages) - 2}.content.0.type: Expected `thinking` or "
            "`redacted_thinking`, but found `tool_use`."
        )


def _choice(request: Request) -> Iterator[str]:
    if (config := request.body.get("toolConfig")) is None:
        return
    if not config.get("tools"):
        yield (
            "1 validation error detected: Value at 'toolConfig.tools' failed to satisfy constraint: Member must have "
            "length greater than or equal to 1"
        )
    choice = config.get("toolChoice")
    if choice is not None and (len(choice) != 1 or not choice.keys() <= {"auto", "any", "tool"}):
        yield "Invalid value at toolConfig.toolChoice: one of auto, any, tool must be set."
    if (
        choice is not None
        and "auto" not in choice
        and "thinking" in (request.body.get("additionalModelRequestFields") or {})
    ):
        yield f"{_MODEL}Thinking may not be enabled when tool_choice forces tool use."


def _strict(request: Request) -> Iterator[str]:
    for number, tool in enumerate(request.tools):
        if tool.raw.get("strict") is True:
            yield from _not_strict(tool.schema, f"tools.{number}.custom")
        schema = tool.schema if isinstance(tool.schema, dict) else {}
        if schema.get("type") != "object":
            yield f"{_MODEL}tools.{number}.custom.input_schema.type: Field required"
        elif {"oneOf", "allOf", "anyOf"} & schema.keys():
            words = "input_schema does not support oneOf, allOf, or anyOf at the top level"
            yield f"{_MODEL}tools.{number}.custom.input_schema: {words}"


def _not_strict(schema: Any, at: str) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _not_strict(each, at)
    if not isinstance(schema, dict):
        return
    for key in _NOT_STRICT:
        if key in schema and not isinstance(schema[key], dict):
            yield f"{at}: For '{schema.get('type')}' type, property '{key}' is not supported"
    for key, value in schema.items():
        for each in value.values() if key == "properties" and isinstance(value, dict) else [value]:
            yield from _not_strict(each, at)


def _rule(
    id_: str, find: Find | None, sample: Mapping[str, Any] | None = None, *, status: int = 400, words: str = "{words}"
) -> Rule:
    return _failure(id_, "ValidationException", words, status=status, find=find, sample=sample)


def _failure(
    id_: str,
    name: str,
    words: str,
    *,
    status: int,
    find: Find | None = None,
    sample: Mapping[str, Any] | None = None,
) -> Rule:
    def check(request: Request) -> Found | None:
        return next(({"words": each} for each in find(request)), None) if find is not None else None

    body = {"__type": name, "message": words}
    headers = {"x-amzn-errortype": name}
    return Rule(id_, check if find is not None else None, status, body, sample, headers)


_USER: Block = {"role": "user", "content": [{"text": "hi"}]}
_CONFIG = {"toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]}}


def _called(*ids: str, **call: Any) -> Block:
    return {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": id_, "name": "f", "input": {}, **call}} for id_ in ids],
    }


def _given(*ids: str, **result: Any) -> Block:
    content = [
        {"toolResult": {"toolUseId": id_, "content": [{"text": "ok"}], "status": "success", **result}} for id_ in ids
    ]
    return {"role": "user", "content": content}


def _spec(**spec: Any) -> dict[str, Any]:
    return {"toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}, **spec}}]}}


_THINKING = {"additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}
_PDF = {"document": {"format": "pdf", "name": "d", "source": {"bytes": "AA=="}}}
_BOUNDED = {"json": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}}

RULES: tuple[Rule, ...] = (
    _rule("aws-bedrock-04", _roles, {"messages": [{"role": "assistant", "content": [{"text": "hi"}]}]}),
    _rule("aws-bedrock-05", _blank_text, {"messages": [{"role": "user", "content": [{"text": ""}]}]}),
    _rule("aws-bedrock-08", _names, {**_CONFIG, "messages": [_USER, _called("t1", name="db.query"), _given("t1")]}),
    _rule("aws-bedrock-09", _inputs, {**_CONFIG, "messages": [_USER, _called("t1", input="{}"), _given("t1")]}),
    _rule("aws-bedrock-01", _results_together, {**_CONFIG, "messages": [_USER, _called("t1", "t2"), _given("t1")]}),
    _rule("aws-bedrock-02", _more_results, {**_CONFIG, "messages": [_given("t1")]}),
    _rule(
        "aws-bedrock-12",
        _empty_error,
        {**_CONFIG, "messages": [_USER, _called("t1"), _given("t1", content=[], status="error")]},
    ),
    _rule(
        "aws-bedrock-13",
        _result_content,
        {**_CONFIG, "messages": [_USER, _called("t1"), _given("t1", content=[{"audio": {}}])]},
    ),
    _rule("aws-bedrock-07", _calls_without_config, {"messages": [_USER, _called("t1"), _given("t1")]}),
    _rule(
        "aws-bedrock-06",
        _trailing_space,
        {"messages": [_USER, {"role": "assistant", "content": [{"text": "a "}]}]},
    ),
    _rule("aws-bedrock-14", _documents, {"messages": [{"role": "user", "content": [_PDF]}]}),
    _rule("aws-bedrock-15", _reasoning, {**_CONFIG, **_THINKING, "messages": [_USER, _called("t1"), _given("t1")]}),
    _rule("aws-bedrock-23", _choice, {"toolConfig": {"tools": []}}),
    _rule("aws-bedrock-24", _strict, _spec(strict=True, inputSchema=_BOUNDED)),
)
"""Rules of every model of the service; that of Anthropic's thinking applies if it is on."""

OTHER_FAMILIES: tuple[Rule, ...] = (
    _rule(
        "aws-bedrock-03",
        _text_with_results,
        {
            **_CONFIG,
            "model": "mistral.mistral-large-2407-v1:0",
            "messages": [
                _USER,
                _called("abcdefghi"),
                {"role": "user", "content": [*_given("abcdefghi")["content"], {"text": "stop"}]},
            ],
        },
    ),
    _rule(
        "aws-bedrock-10",
        _mistral_ids,
        {**_CONFIG, "messages": [_USER, _called("tooluse_bpe71yCfRu2b5i"), _given("tooluse_bpe71yCfRu2b5i")]},
    ),
)
"""Rules of models of other makers than Anthropic, such as Mistral."""

FAULTS: Mapping[str, Rule] = {
    "overflow": _rule("aws-bedrock-20", None, words="Input is too long for requested model."),
    "rate_limit": _failure(
        "aws-bedrock-21", "ThrottlingException", "Too many tokens, please wait before trying again.", status=429
    ),
    "quota": _failure(
        "aws-bedrock-21",
        "ServiceQuotaExceededException",
        "Your request exceeds the service quota for your account.",
        status=400,
    ),
    "server_error": _failure(
        "aws-bedrock-21", "ServiceUnavailableException", "Bedrock is unable to process your request.", status=503
    ),
    "auth": _failure(
        "aws-bedrock-21",
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
        status=403,
    ),
}
"""Failures that no request causes."""
