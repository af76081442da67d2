"""What Google's generateContent refuses, on the Gemini API and on Vertex AI."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.providers.exchange import Request
from tests.providers.protocols.gemini import field
from tests.providers.rule import Found, Rule, words
from tests.providers.signatures import signature

Find = Callable[[Request], Iterator[str]]
Part = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_FOREIGN_CALL = "skip_thought_signature_validator"
"""The signature that is accepted on calls of another model."""
_KEYWORDS = words(
    "type format title description nullable enum maxItems minItems properties required minProperties"
    " maxProperties minLength maxLength pattern example anyOf propertyOrdering default items minimum maximum"
)
"""The fields of a schema in `parameters`."""
_BUDGET_0 = "Budget 0 is invalid. This model only works in thinking mode."


def _turns(request: Request) -> Iterator[tuple[int, str, list[Part]]]:
    """Yield index, role and parts of each content."""
    for index, content in enumerate(request.body.get("contents") or []):
        yield index, content.get("role", "user"), content.get("parts") or []


def _with(parts: list[Part], name: str) -> list[Part]:
    return [part for part in parts if field(part, name) is not None]


def _call_order(request: Request) -> Iterator[str]:
    before: tuple[str, list[Part]] | None = None
    for _index, role, parts in _turns(request):
        if _with(parts, "functionCall") and (before is None or before[0] == "model"):
            yield (
                "Please ensure that function call turn comes immediately after a user turn or after a "
                "function response turn."
            )
        before = role, parts


def _response_order(request: Request) -> Iterator[str]:
    before: list[Part] = []
    for _index, _role, parts in _turns(request):
        if _with(parts, "functionResponse") and not _with(before, "functionCall"):
            yield "Please ensure that function response turn comes immediately after a function call turn."
        before = parts


def _response_count(request: Request) -> Iterator[str]:
    turns = list(_turns(request))
    for (_index, _role, parts), following in zip(turns, [*turns[1:], None], strict=True):
        called = len(_with(parts, "functionCall"))
        if not called:
            continue
        # Before Gemini 3, an image in the turn of the responses counts as one of them.
        answered = len(_with(following[2], "functionResponse")) if following else 0
        others = [part for part in following[2] if "text" not in part] if following else []
        if called != (answered if _third(request) else len(others)) or called != answered:
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )


def _third(request: Request) -> bool:
    """Whether the model is of the third generation or later."""
    return re.match(r"gemini-[3-9]", request.model) is not None


def _empty_part(request: Request) -> Iterator[str]:
    for index, _role, parts in _turns(request):
        at = f"* GenerateContentRequest.contents[{index}].parts"
        if not parts:
            yield f"{at}: contents.parts must not be empty.\n"
        for place, part in enumerate(parts):
            if not any(value not in ("", None) for key, value in part.items() if "thought" not in key):
                yield f"{at}[{place}].data: required oneof field 'data' must have one initialized field\n"
    for part in (field(request.body, "systemInstruction") or {}).get("parts") or []:
        if not part.get("text"):
            where = "GenerateContentRequest.system_instruction.parts[0]"
            yield f"* {where}.data: required oneof field 'data' must have one initialized field\n"


def _no_contents(request: Request) -> Iterator[str]:
    if not request.body.get("contents"):
        yield "* GenerateContentRequest.contents: contents is not specified\n"


def _roles(request: Request) -> Iterator[str]:
    if any(role not in {"user", "model", "function"} for _index, role, _parts in _turns(request)):
        yield "Please use a valid role: user, model."


def _last_role(request: Request) -> Iterator[str]:
    last = [role for _index, role, _parts in _turns(request)][-1:]
    if last == ["model"]:
        yield "Please ensure that the conversation ends with a user turn."


def _names(request: Request) -> Iterator[str]:
    names = [tool.name for tool in request.tools]
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            yield (
                f"* GenerateContentRequest.tools[0].function_declarations[{index}].name: Invalid function name. Must "
                "start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), underscores "
                "(_), dots (.) or dashes (-), with a maximum length of 64.\n"
            )
    if twice := [name for name in names if names.count(name) > 1]:
        yield f"Duplicate function declaration found: {twice[0]}"
    for index, _role, parts in _turns(request):
        for place, part in enumerate(_with(parts, "functionCall") + _with(parts, "functionResponse")):
            called = field(part, "functionCall") or field(part, "functionResponse")
            if not _NAME.fullmatch(called.get("name") or ""):
                yield f"* GenerateContentRequest.contents[{index}].parts[{place}].name: Invalid function name.\n"


def _schemas(request: Request) -> Iterator[tuple[str, Any]]:
    for index, tool in enumerate(request.tools):
        if "parameters" in tool.raw:
            yield f"tools[0].function_declarations[{index}].parameters", tool.raw["parameters"]
    config = field(request.body, "generationConfig") or {}
    if (schema := field(config, "responseSchema")) is not None:
        yield "generation_config.response_schema", schema


def _nodes(schema: Any, at: str) -> Iterator[tuple[str, Any]]:
    """Yield place and schema of each schema in one, itself first."""
    yield at, schema
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("properties"), dict):
        for number, value in enumerate(schema["properties"].values()):
            yield from _nodes(value, f"{at}.properties[{number}].value")
    if "items" in schema:
        yield from _nodes(schema["items"], f"{at}.items")
    for number, value in enumerate(field(schema, "anyOf") or []):
        yield from _nodes(value, f"{at}.any_of[{number}]")


def _keywords(request: Request) -> Iterator[str]:
    for root, schema in _schemas(request):
        for at, node in _nodes(schema, root):
            if not isinstance(node, dict):
                yield (
                    f"Invalid value at '{at}' (type.googleapis.com/google.ai.generativelanguage.v1beta.Schema), {node}"
                )
                continue
            for key in node:
                if re.sub(r"_([a-z])", lambda match: match[1].upper(), key) not in _KEYWORDS:
                    yield f"Invalid JSON payload received. Unknown name \"{key}\" at '{at}': Cannot find field."


def _enums(request: Request) -> Iterator[str]:
    for root, schema in _schemas(request):
        for at, node in _nodes(schema, root):
            if not isinstance(node, dict):
                continue
            for number, value in enumerate(node.get("enum") or []):
                if not isinstance(value, str):
                    yield f"Invalid value at '{at}.enum[{number}]' (TYPE_STRING), {value}"
            if str(node.get("type", "")).upper() == "ARRAY" and not node.get("items"):
                yield f"* GenerateContentRequest.{at}.items: missing field.\n"
            if not isinstance(node.get("type", ""), str):
                yield f"Invalid value at '{at}.type' (type.googleapis.com/google.ai.generativelanguage.v1beta.Type)"


def _choice_without_functions(request: Request) -> Iterator[str]:
    if request.tool_choice is not None and not request.tools:
        yield "Function calling config is set without function_declarations."


def _response_object(request: Request) -> Iterator[str]:
    for index, _role, parts in _turns(request):
        for place, part in enumerate(_with(parts, "functionResponse")):
            response = field(part, "functionResponse")
            if not isinstance(response.get("response"), dict):
                at = f"contents[{index}].parts[{place}].function_response.response"
                yield (
                    f"Invalid value at '{at}' (type.googleapis.com/google.protobuf.Struct), "
                    f"{response.get('response')!r}"
                )
            if response.get("parts") and not _third(request):
                yield f"Multimodal function responses are not supported for this model: contents[{index}]"


def _missing_signature(words: str) -> Find:
    """Signatures are needed in the current turn: behind the newest message of the user that is no response."""

    def find(request: Request) -> Iterator[str]:
        turns = list(_turns(request)) if _third(request) else []
        asked = [index for index, role, parts in turns if role == "user" and not _with(parts, "functionResponse")]
        for index, _role, parts in turns:
            called = _with(parts, "functionCall") if index > max(asked, default=-1) else []
            if called and not field(called[0], "thoughtSignature"):
                yield words.format(name=field(called[0], "functionCall").get("name"), position=index + 1)

    return find


def _foreign_signature(maker: str) -> Find:
    def find(request: Request) -> Iterator[str]:
        for _index, _role, parts in _turns(request):
            for part in parts:
                given = field(part, "thoughtSignature")
                if given and given not in {signature("call", maker), _FOREIGN_CALL}:
                    yield "Invalid thought signature."

    return find


def _thinking(request: Request) -> Iterator[str]:
    config = field(field(request.body, "generationConfig") or {}, "thinkingConfig") or {}
    if field(config, "thinkingBudget") == 0 and "pro" in request.model:
        yield _BUDGET_0
    if field(config, "thinkingLevel") is not None and not _third(request):
        yield "Thinking level is not supported for this model."


def _json_with_functions(request: Request) -> Iterator[str]:
    kind = field(field(request.body, "generationConfig") or {}, "responseMimeType")
    if kind == "application/json" and request.tools and not _third(request):
        yield "Function calling with a response mime type: 'application/json' is unsupported"


def _error(message: str, *, status: int = 400, name: str = "INVALID_ARGUMENT", **more: Any) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "status": name, **more}}


def _rule(id_: str, find: Find, sample: Mapping[str, Any]) -> Rule:
    def check(request: Request) -> Found | None:
        return next(({"words": words} for words in find(request)), None)

    return Rule(id_, check, 400, _error("{words}"), sample)


_USER = {"role": "user", "parts": [{"text": "hi"}]}
_CALL: Part = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": _FOREIGN_CALL}
_RESPONSE: Part = {"functionResponse": {"name": "f", "response": {"output": "ok"}}}


def _called(*parts: Part) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts or [_CALL])}


def _answered(*parts: Part) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts or [_RESPONSE])}


def _mixed_tools(request: Request) -> Iterator[str]:
    kinds = {re.sub(r"_(.)", lambda match: match[1].upper(), key) for tool in _tools(request) for key in tool}
    if "functionDeclarations" in kinds and len(kinds) > 1:
        yield (
            "Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with Function "
            "calling."
            if request.model.startswith("gemini-3")
            else "Tool use with function calling is unsupported by the model."
        )
    if unknown := kinds - {"functionDeclarations", "googleSearch", "codeExecution", "urlContext", "googleMaps"}:
        yield f"Invalid JSON payload received. Unknown name \"{min(unknown)}\" at 'tools[0]': Cannot find field."


def _tools(request: Request) -> list[dict[str, Any]]:
    return request.body.get("tools") or []


def _function(**function: Any) -> dict[str, Any]:
    return {"tools": [{"functionDeclarations": [{"name": "f", **function}]}]}


def _property(**schema: Any) -> dict[str, Any]:
    return _function(parameters={"type": "OBJECT", "properties": {"n": schema}})


def rules(maker: str = "gemini") -> tuple[Rule, ...]:
    """Return the rules that a request may break; `maker` is `gemini`, or `vertex` with its signatures and words."""
    vertex = maker == "vertex"
    unsigned = {
        "model": "gemini-3-pro-preview",
        "contents": [_USER, _called({"functionCall": {"name": "f", "args": {}}}), _answered()],
    }
    foreign = {"contents": [_USER, _called({**_CALL, "thoughtSignature": "of-another"}), _answered()]}
    missing = (
        "Unable to submit request because function call `{name}` in the {position}. content block is missing a "
        "`thought_signature`."
        if vertex
        else "Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
        "correctly, and missing thought_signature may lead to degraded model performance. Additional data, function "
        "call `default_api:{name}` , position {position}."
    )
    json_only = {"generationConfig": {"responseMimeType": "application/json"}}
    return (
        _rule("google-gemini-05", _no_contents, {"contents": []}),
        _rule("google-gemini-roles", _roles, {"contents": [{"role": "assistant", "parts": [{"text": "hi"}]}]}),
        _rule("google-gemini-04", _empty_part, {"contents": [_USER, _called({"text": ""}), _USER]}),
        _rule("google-gemini-01", _call_order, {"contents": [_called(), _answered()]}),
        _rule("google-gemini-02", _response_order, {"contents": [_USER, _answered()]}),
        _rule("google-gemini-03", _response_count, {"contents": [_USER, _called(_CALL, _CALL), _answered()]}),
        _rule("google-gemini-06", _last_role, {"contents": [_USER, _called({"text": "a"})]}),
        _rule("google-gemini-07", _names, _function(name="get /x")),
        _rule("google-gemini-08", _keywords, _property(type="INTEGER", exclusiveMinimum=0)),
        _rule("google-gemini-09", _enums, _property(type="INTEGER", enum=[1, 2])),
        _rule(
            "google-gemini-10", _choice_without_functions, {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}
        ),
        _rule(
            "google-gemini-11",
            _response_object,
            {"contents": [_USER, _called(), _answered({"functionResponse": {"name": "f", "response": "text"}})]},
        ),
        _rule("google-vertex-02" if vertex else "google-gemini-12", _missing_signature(missing), unsigned),
        _rule("google-gemini-13", _foreign_signature(maker), foreign),
        _rule(
            "google-gemini-14",
            _thinking,
            {"model": "gemini-3-pro-preview", "generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}},
        ),
        _rule("google-gemini-mixed", _mixed_tools, {"tools": [*_function()["tools"], {"googleSearch": {}}]}),
        _rule("google-gemini-26", _json_with_functions, {"model": "gemini-2.5-flash", **json_only, **_function()}),
    )


def _quota(period: str) -> dict[str, Any]:
    violation = {"quotaId": f"GenerateRequestsPer{period}PerProjectPerModel-FreeTier"}
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}


_QUOTA_WORDS = "You exceeded your current quota, please check your plan."
_RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.1s"}
_EXHAUSTED = "RESOURCE_EXHAUSTED"

FAULTS: Mapping[str, Rule] = {
    "overflow": Rule(
        "google-gemini-22",
        None,
        400,
        _error("The input token count ({given}) exceeds the maximum number of tokens allowed ({limit})."),
    ),
    "rate_limit": Rule(
        "google-gemini-19",
        None,
        429,
        _error(_QUOTA_WORDS, status=429, name=_EXHAUSTED, details=[_quota("Minute"), _RETRY]),
    ),
    "quota": Rule(
        "google-gemini-20", None, 429, _error(_QUOTA_WORDS, status=429, name=_EXHAUSTED, details=[_quota("Day")])
    ),
    "server_error": Rule(
        "google-gemini-23",
        None,
        503,
        _error("The model is overloaded. Please try again later.", status=503, name="UNAVAILABLE"),
    ),
    "auth": Rule(
        "google-gemini-21",
        None,
        400,
        _error(
            "API key not valid. Please pass a valid API key.",
            details=[{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
        ),
    ),
}
"""Failures that no request causes."""
