"""What Anthropic's Messages API refuses."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.providers.exchange import Request
from tests.providers.provider_calls import is_signed
from tests.providers.rule import MISSING, Found, Rule, words
from tests.providers.signatures import signature

Find = Callable[[Request], Iterator[str]]
Block = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_BLOCKS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"text", "citations"}),
    "image": frozenset({"source"}),
    "document": frozenset({"source", "title", "context", "citations"}),
    "search_result": frozenset({"source", "title", "content", "citations"}),
    "tool_result": frozenset({"tool_use_id", "content", "is_error"}),
    "thinking": frozenset({"thinking", "signature"}),
    "redacted_thinking": frozenset({"data"}),
    "tool_use": frozenset({"id", "name", "input", "caller"}),
    "server_tool_use": frozenset({"id", "name", "input", "caller"}),
    "mcp_tool_use": frozenset({"id", "name", "server_name", "input"}),
    "web_search_tool_result": frozenset({"tool_use_id", "content", "caller"}),
    "code_execution_tool_result": frozenset({"tool_use_id", "content", "caller"}),
    "mcp_tool_result": frozenset({"tool_use_id", "content", "is_error"}),
}
"""The types of blocks and their fields."""
_OF_ROLE = {
    "user": ("text", "image", "document", "search_result", "tool_result"),
    "assistant": (
        *("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use"),
        *("web_search_tool_result", "code_execution_tool_result", "mcp_tool_result"),
    ),
}
_SERVER_TOOL = re.compile(r"(?P<name>web_search|web_fetch|code_execution)_\d{8}|mcp_toolset")
"""Types of tools that Anthropic runs, and the names that they need."""
_OF_RESULT = ("text", "image", "document", "search_result")
_FIELDS = words(
    "model messages max_tokens system tools tool_choice temperature top_p top_k stream stop_sequences metadata"
    " thinking output_config service_tier cache_control container context_management mcp_servers inference_geo"
)
_NOT_STRICT = ("minimum", "maximum", "multipleOf", "minLength", "maxLength", "maxItems", "minProperties")
_ADAPTIVE_ONLY = re.compile(r"opus-4-[78]|opus-5|haiku-5-5")
_WITHOUT_PREFILL = re.compile(r"-4-[678]|-5(-5)?$")


def _messages(request: Request) -> Iterator[tuple[int, str, list[Block]]]:
    """Yield index, role and blocks of each message."""
    for index, message in enumerate(request.body.get("messages") or []):
        content = message.get("content") or []
        yield index, message.get("role"), _as_blocks(content)


def _as_blocks(content: Any) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _blocks(request: Request) -> Iterator[tuple[str, str, Block]]:
    """Yield place, role and block of each block of each message."""
    for index, role, blocks in _messages(request):
        for place, block in enumerate(blocks):
            yield f"messages.{index}.content.{place}", role, block


def _parts(request: Request) -> Iterator[tuple[str, Block]]:
    """Yield place and block of each block, those in tool results included."""
    for at, _role, block in _blocks(request):
        yield at, block
        if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            for place, part in enumerate(block["content"]):
                yield f"{at}.tool_result.content.{place}", part


def _turns(request: Request) -> list[tuple[int, str, list[Block]]]:
    """Return the turns: the API joins consecutive messages of one role."""
    turns: list[tuple[int, str, list[Block]]] = []
    for index, role, blocks in _messages(request):
        if turns and turns[-1][1] == role:
            turns[-1][2].extend(blocks)
        else:
            turns.append((index, role, blocks))
    return turns


def _of(blocks: list[Block], kind: str) -> list[Block]:
    return [block for block in blocks if block.get("type") == kind]


def _calls_without_results(request: Request) -> Iterator[str]:
    turns = _turns(request)
    for (index, _role, blocks), following in zip(turns, [*turns[1:], None], strict=True):
        answered = {block["tool_use_id"] for block in _of(following[2], "tool_result")} if following else set()
        if missing := [block["id"] for block in _of(blocks, "tool_use") if block["id"] not in answered]:
            yield (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )


def _open_server_calls(request: Request) -> Iterator[str]:
    turns = _turns(request)
    for at, (index, _role, blocks) in enumerate(turns):
        ended = {block.get("tool_use_id") for block in blocks}
        for block in [*_of(blocks, "server_tool_use"), *_of(blocks, "mcp_tool_use")]:
            # A paused turn, which is sent back at the end, may have an open call.
            if block["id"] not in ended and at < len(turns) - 1:
                name = block["name"]
                yield (
                    f"messages.{index}: `{name}` tool use with id `{block['id']}` was found without a corresponding "
                    f"`{name}_tool_result` block"
                )


def _server_results(request: Request) -> Iterator[str]:
    for index, _role, blocks in _turns(request):
        called = {block["id"] for block in [*_of(blocks, "server_tool_use"), *_of(blocks, "mcp_tool_use")]}
        for place, block in enumerate(blocks):
            if not str(block.get("type")).endswith("_tool_result"):
                continue
            if block.get("tool_use_id") not in called:
                yield f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `{block['type']}` blocks"
            if not is_signed(block):
                yield f"messages.{index}.content.{place}: Invalid encrypted_content in search_result block"


def _server_tools(request: Request) -> Iterator[str]:
    for index, tool in enumerate(request.body.get("tools") or []):
        if (kind := tool.get("type")) in (None, "custom"):
            continue
        found = _SERVER_TOOL.fullmatch(kind)
        if found is None:
            yield f"tools.{index}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
        elif found["name"] and tool.get("name") != found["name"]:
            yield f"tools.{index}.{kind}.name: Input should be '{found['name']}'"
        elif kind == "mcp_toolset" and tool.get("mcp_server_name") not in {
            server.get("name") for server in request.body.get("mcp_servers") or []
        }:
            yield f"tools.{index}: MCP server '{tool.get('mcp_server_name')}' not found in mcp_servers"


def _results_without_calls(request: Request) -> Iterator[str]:
    called: set[str] = set()
    for index, _role, blocks in _turns(request):
        answered: set[str] = set()
        for place, block in enumerate(blocks):
            if block.get("type") != "tool_result":
                continue
            if block["tool_use_id"] not in called:
                yield (
                    f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` block in "
                    "the previous message."
                )
            if block["tool_use_id"] in answered:
                yield (
                    f"messages.{index}.content.{place}: each tool_use must have a single result. Found multiple "
                    f"`tool_result` blocks with id: {block['tool_use_id']}"
                )
            answered.add(block["tool_use_id"])
        called = {block["id"] for block in _of(blocks, "tool_use")}


def _results_behind_text(request: Request) -> Iterator[str]:
    for index, _role, blocks in _turns(request):
        count = len(_of(blocks, "tool_result"))
        if len(_of(blocks[:count], "tool_result")) < count:
            yield (
                f"messages.{index}: Did not find {count} `tool_result` block(s) at the beginning of this message. "
                "Messages following `tool_use` blocks must begin with a matching number of `tool_result` blocks."
            )


def _empty_text(request: Request) -> Iterator[str]:
    for block in request.body["system"] if isinstance(request.body.get("system"), list) else []:
        if not block.get("text"):
            yield "system: text content blocks must be non-empty"
    for at, block in _parts(request):
        if block.get("type") == "text" and not block.get("text"):
            yield "messages: text content blocks must be non-empty"
        elif block.get("type") == "text" and not block["text"].strip() and "tool_result" not in at:
            yield "messages: text content blocks must contain non-whitespace text"


def _empty_message(request: Request) -> Iterator[str]:
    messages = request.body.get("messages") or []
    if not messages:
        yield "messages: at least one message is required"
    for index, message in enumerate(messages):
        optional = index == len(messages) - 1 and message.get("role") == "assistant"
        if not message.get("content") and not optional:
            yield (
                f"messages.{index}: all messages must have non-empty content except for the optional final assistant "
                "message"
            )


def _prefill(request: Request) -> Iterator[str]:
    turns = _turns(request)
    if not turns or turns[-1][1] != "assistant" or _of(turns[-1][2], "server_tool_use"):
        return  # a turn that the provider paused is sent back as it is
    if _WITHOUT_PREFILL.search(request.model):
        yield "This model does not support assistant message prefill. The conversation must end with a user message."
    if turns[-1][2] and str(turns[-1][2][-1].get("text", "")).endswith((" ", "\n", "\t")):
        yield "messages: final assistant content cannot end with trailing whitespace"


def _roles(request: Request) -> Iterator[str]:
    for index, role, _content in _messages(request):
        if role == "system":
            yield "role 'system' is not supported on this model"
        elif role not in _OF_ROLE:
            yield f'messages: Unexpected role "{role}". Allowed roles are "user" or "assistant"'
        elif index == 0 and role != "user":
            yield 'messages: first message must use the "user" role'


def _repeated_ids(request: Request) -> Iterator[str]:
    ids = [block.get("id") for _at, _role, block in _blocks(request) if block.get("type") == "tool_use"]
    if len(set(ids)) < len(ids):
        yield "messages: `tool_use` ids must be unique"


def _names(request: Request) -> Iterator[str]:
    names = [tool.get("name") or "" for tool in request.body.get("tools") or [] if tool.get("type") != "mcp_toolset"]
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            yield f"tools.{index}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
    if len(set(names)) < len(names):
        yield "tools: Tool names must be unique."
    for at, _role, block in _blocks(request):
        if block.get("type") != "tool_use":
            continue
        if not _NAME.fullmatch(block.get("name") or ""):
            yield f"{at}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if not _ID.fullmatch(block.get("id") or ""):
            yield f"{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        if not isinstance(block.get("input"), dict):
            yield f"{at}.tool_use.input: Input should be a valid dictionary"


def _schemas(request: Request) -> Iterator[tuple[str, Any]]:
    for index, tool in enumerate(request.body.get("tools") or []):
        if tool.get("type") in (None, "custom"):
            yield f"tools.{index}.custom.input_schema", tool.get("input_schema")


def _root_combinators(request: Request) -> Iterator[str]:
    for at, schema in _schemas(request):
        if not isinstance(schema, dict) or schema.get("type") != "object":
            yield f"{at}.type: Input should be 'object'"
        elif {"oneOf", "allOf", "anyOf"} & schema.keys():
            yield f"{at}: input_schema does not support oneOf, allOf, or anyOf at the top level"


def _property_keys(request: Request) -> Iterator[str]:
    for at, schema in _schemas(request):
        for properties in _properties(schema):
            if not isinstance(properties, dict):
                yield f"{at}.properties: Input should be a valid dictionary"
            elif any(not isinstance(each, dict | bool) for each in properties.values()):
                yield f"{at}: JSON schema is invalid. It must match JSON Schema draft 2020-12"
            elif any(not _KEY.fullmatch(key) for key in properties):
                yield f"{at}.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"


def _properties(schema: Any) -> Iterator[Any]:
    """Yield the `properties` of a schema and of the schemas in it."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema["properties"]
        for key, value in schema.items():
            inner = value.values() if key == "properties" and isinstance(value, dict) else [value]
            for each in inner if key not in {"enum", "const", "default", "examples"} else []:
                yield from _properties(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _properties(each)


def _strict_tools(request: Request) -> Iterator[str]:
    if sum(tool.get("strict") is True for tool in request.body.get("tools") or []) > 20:
        yield "The compiled grammar is too large"


def _result_content(request: Request) -> Iterator[str]:
    for at, _role, block in _blocks(request):
        if block.get("type") != "tool_result":
            continue
        content = block.get("content", "")
        if content == []:
            yield f"{at}.tool_result.content: content cannot be empty"
        if block.get("is_error") and not content:
            yield f"{at}.tool_result: content cannot be empty if `is_error` is true"
        for place, part in enumerate(_as_blocks(content)):
            if part.get("type") not in _OF_RESULT:
                yield f"{at}.tool_result.content.{place}: {_unexpected(part, _OF_RESULT)}"


def _block_types(request: Request) -> Iterator[str]:
    for at, role, block in _blocks(request):
        allowed = _OF_ROLE.get(role, ())
        kind = str(block.get("type"))
        if kind not in allowed:
            yield f"{at}: {_unexpected(block, allowed)}"
            continue
        for key in sorted(block.keys() - {"type", "cache_control"} - _BLOCKS[kind]):
            yield f"{at}.{kind}.{key}: Extra inputs are not permitted"
    for key in sorted(request.body.keys() - _FIELDS):
        yield f"{key}: Extra inputs are not permitted"


def _unexpected(block: Block, allowed: tuple[str, ...]) -> str:
    tags = ", ".join(f"'{each}'" for each in allowed)
    return f"Input tag '{block.get('type')}' found using 'type' does not match any of the expected tags: {tags}"


def _thinking(request: Request) -> dict[str, Any]:
    return request.body.get("thinking") or {}


def _thinking_first(request: Request) -> Iterator[str]:
    turns = _turns(request)
    if _thinking(request).get("type") != "enabled" or len(turns) < 2 or not _of(turns[-1][2], "tool_result"):
        return
    index, _role, blocks = turns[-2]
    if blocks and blocks[0].get("type") not in {"thinking", "redacted_thinking"}:
        yield (
            f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{blocks[0].get('type')}`. When `thinking` is enabled, a final `assistant` message must start with a "
            "thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). We recommend you "
            "include thinking blocks from previous turns."
        )


def _forced_while_thinking(request: Request) -> Iterator[str]:
    choice = request.body.get("tool_choice") or {}
    if _thinking(request).get("type") == "enabled" and choice.get("type") in {"any", "tool"}:
        yield "Thinking may not be enabled when tool_choice forces tool use."


def _thinking_type(request: Request) -> Iterator[str]:
    thinking = _thinking(request)
    if thinking.get("type") != "enabled":
        return
    if _ADAPTIVE_ONLY.search(request.model):
        yield "thinking.type: 'enabled' is not supported by this model"
    if thinking.get("budget_tokens", 0) >= request.body.get("max_tokens", 0):
        yield "`max_tokens` must be greater than `thinking.budget_tokens`."


def _foreign_signature(maker: str) -> Find:
    def find(request: Request) -> Iterator[str]:
        for at, _role, block in _blocks(request):
            if block.get("type") == "thinking" and block.get("signature") != signature(
                block.get("thinking", ""), maker
            ):
                yield f"{at}: Invalid `signature` in `thinking` block"

    return find


def _strict_schema(request: Request) -> Iterator[str]:
    output = (request.body.get("output_config") or {}).get("format") or {}
    if "schema" in output:
        yield from _not_strict(output["schema"], "output_config.format.schema")
    for index, tool in enumerate(request.body.get("tools") or []):
        if tool.get("strict") is True:
            yield from _not_strict(tool.get("input_schema"), f"tools.{index}.custom")


def _not_strict(schema: Any, at: str) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _not_strict(each, at)
    if not isinstance(schema, dict):
        return
    for key in _NOT_STRICT:
        if isinstance(schema.get(key), int):
            yield f"{at}: For '{schema.get('type')}' type, property '{key}' is not supported"
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        yield f"{at}: For 'object' type, 'additionalProperties' must be explicitly set to false"
    for key, value in schema.items():
        for each in value.values() if key == "properties" and isinstance(value, dict) else [value]:
            yield from _not_strict(each, at)


def _sampling(request: Request) -> Iterator[str]:
    for key in ("temperature", "top_p", "top_k"):
        if key in request.body and _ADAPTIVE_ONLY.search(request.model):
            yield f"`{key}` is deprecated for this model."
    if _thinking(request).get("type") == "enabled" and request.body.get("temperature", 1) != 1:
        yield "`temperature` may only be set to 1 when thinking is enabled."


def _both_samplings(request: Request) -> Iterator[str]:
    if "temperature" in request.body and "top_p" in request.body:
        yield "`temperature` and `top_p` cannot both be specified for this model. Please use only one."


def _output_tokens(request: Request) -> Iterator[str]:
    if "max_tokens" not in request.body:
        yield "max_tokens: Field required"


def _choice_without_tools(request: Request) -> Iterator[str]:
    if request.body.get("tool_choice") and not request.body.get("tools"):
        yield "tool_choice: `tool_choice` may only be specified while providing `tools`."


def _stops(request: Request) -> Iterator[str]:
    if any(not str(stop).strip() for stop in request.body.get("stop_sequences") or []):
        yield "stop_sequences: each stop sequence must contain non-whitespace"


def _media(request: Request) -> Iterator[str]:
    for at, block in _parts(request):
        source = block.get("source") or {}
        if block.get("type") not in {"image", "document"} or source.get("type") != "base64":
            continue
        kind, size = block["type"], len(source.get("data") or "")
        if kind == "image" and source.get("media_type") not in _IMAGES:
            allowed = ", ".join(f"'{each}'" for each in _IMAGES)
            yield f"{at}.image.source.base64.media_type: Input should be {allowed}"
        if kind == "image" and size > 10_485_760:
            yield f"{at}.image.source.base64: image exceeds 10 MB maximum: {size} bytes > 10485760 bytes"
        if kind == "document" and source.get("media_type") != "application/pdf":
            yield f"{at}.document.source.base64.media_type: Input should be 'application/pdf'"


def _many_images(request: Request) -> Iterator[str]:
    images = [(at, block) for at, block in _parts(request) if block.get("type") == "image"]
    most = 2_000 if len(images) > 20 else 8_000
    for at, block in images:
        # Width and height of a PNG are its bytes 16 to 24.
        head = base64.b64decode((block.get("source") or {}).get("data", "")[:32] or "")
        if head[:4] == b"\x89PNG" and max(int.from_bytes(head[16:20]), int.from_bytes(head[20:24])) > most:
            limit = "for many-image requests: 2000" if most == 2_000 else ": 8000"
            yield (
                f"{at}.image.source.base64.data: At least one of the image dimensions exceed max allowed size {limit} "
                "pixels"
            )


def _cache_marks(request: Request) -> Iterator[str]:
    if (count := _marks(request.body)) > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {count}."


def _marks(value: Any) -> int:
    if isinstance(value, dict):
        own = value.get("cache_control") is not None
        return own + sum(_marks(each) for key, each in value.items() if key not in {"input", "input_schema"})
    return sum(map(_marks, value)) if isinstance(value, list) else 0


def _rule(
    id_: str,
    find: Find | None,
    sample: Mapping[str, Any] | None = None,
    *,
    status: int = 400,
    kind: str = "",
    **more: Any,
) -> Rule:
    """Return a rule whose words its check finds, or `words` if it has no check."""

    def check(request: Request) -> Found | None:
        return next(({"words": words} for words in find(request)), None) if find is not None else None

    error = {"type": kind or "invalid_request_error", "message": more.pop("words", "{words}")}
    body = {"type": "error", "error": error, "request_id": "req_0"}
    return Rule(id_, check if find is not None else None, status, body, sample, **more)


def _hi(*more: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, *more]}


def _called(*ids: str, name: str = "f", **block: Any) -> Block:
    calls = [{"type": "tool_use", "id": id_, "name": name, "input": {}, **block} for id_ in ids]
    return {"role": "assistant", "content": calls}


def _result(*ids: str, content: Any = "ok") -> Block:
    results = [{"type": "tool_result", "tool_use_id": id_, "content": content} for id_ in ids]
    return {"role": "user", "content": results}


def _tool(**schema: Any) -> dict[str, Any]:
    return {"tools": [{"name": "f", "input_schema": {"type": "object", **schema}}]}


_BUDGET = {"max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 1024}}
_PIXELS = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x20\x01\0\0\x20\x01").decode()
_IMAGE: Block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXELS}}


_SEARCH: Block = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tea"}}
_FOUND: Block = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def rules(maker: str = "anthropic") -> tuple[Rule, ...]:
    """Return the rules that a request may break; `maker` names the provider whose signatures are accepted."""
    unsigned = {"type": "thinking", "thinking": "t", "signature": ""}
    signed_call = {"role": "assistant", "content": [unsigned, *_called("toolu_1")["content"]]}
    return (
        _rule("anthropic-35", _output_tokens, {"max_tokens": MISSING}),
        _rule("anthropic-07", _roles, _hi({"role": "system", "content": "s"}, {"role": "user", "content": "hi"})),
        _rule("anthropic-22", _block_types, _hi({"role": "assistant", "content": [{"type": "reasoning"}]})),
        _rule("anthropic-05", _empty_message, {"messages": [{"role": "user", "content": ""}]}),
        _rule("anthropic-04", _empty_text, {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}),
        _rule("anthropic-08", _repeated_ids, _hi(*[_called("toolu_1"), _result("toolu_1")] * 2)),
        _rule("anthropic-09", _names, _hi(_called("toolu_1", name="db.query"), _result("toolu_1"))),
        _rule("anthropic-10", _root_combinators, _tool(anyOf=[{"required": ["a"]}])),
        _rule("anthropic-11", _property_keys, _tool(properties={"$filter": {"type": "string"}})),
        _rule(
            "anthropic-12",
            _strict_tools,
            {"tools": [{**_tool()["tools"][0], "strict": True, "name": f"f{n}"} for n in range(21)]},
        ),
        _rule("anthropic-13", _result_content, _hi(_called("toolu_1"), _result("toolu_1", content=[]))),
        _rule("anthropic-01", _calls_without_results, _hi(_called("toolu_1"), {"role": "user", "content": "hi"})),
        _rule(
            "anthropic-open-server-call",
            _open_server_calls,
            _hi({"role": "assistant", "content": [_SEARCH]}, {"role": "user", "content": "hi"}),
        ),
        _rule(
            "anthropic-server-result",
            _server_results,
            _hi({"role": "assistant", "content": [{**_FOUND, "tool_use_id": "other"}]}),
        ),
        _rule("anthropic-server-tool", _server_tools, {"tools": [{"type": "web_search", "name": "web_search"}]}),
        _rule("anthropic-02", _results_without_calls, {"messages": [_result("toolu_1")]}),
        _rule(
            "anthropic-03",
            _results_behind_text,
            _hi(
                _called("toolu_1"),
                {"role": "user", "content": [{"type": "text", "text": "stop"}, *_result("toolu_1")["content"]]},
            ),
        ),
        _rule("anthropic-06", _prefill, {"model": "claude-opus-4-8", **_hi({"role": "assistant", "content": "{"})}),
        _rule("anthropic-17", _foreign_signature(maker), _hi(signed_call, _result("toolu_1"))),
        _rule("anthropic-14", _thinking_first, {**_BUDGET, **_hi(_called("toolu_1"), _result("toolu_1"))}),
        _rule("anthropic-15", _forced_while_thinking, {**_BUDGET, **_tool(), "tool_choice": {"type": "any"}}),
        _rule("anthropic-16", _thinking_type, {**_BUDGET, "model": "claude-opus-4-7"}),
        _rule(
            "anthropic-32",
            _strict_schema,
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        ),
        _rule("anthropic-33", _sampling, {"model": "claude-opus-4-7", "temperature": 0.0}),
        _rule("anthropic-34", _both_samplings, {"temperature": 0.5, "top_p": 0.9}),
        _rule(
            "anthropic-38",
            _media,
            {
                "messages": [
                    {"role": "user", "content": [{**_IMAGE, "source": {**_IMAGE["source"], "media_type": "image/bmp"}}]}
                ]
            },
        ),
        _rule("anthropic-37", _many_images, {"messages": [{"role": "user", "content": [_IMAGE]}]}),
        _rule(
            "anthropic-39",
            _cache_marks,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}] * 5,
                    }
                ]
            },
        ),
        _rule("anthropic-choice", _choice_without_tools, {"tool_choice": {"type": "auto"}}),
        _rule("anthropic-stop", _stops, {"stop_sequences": ["\n"]}),
    )


FAULTS: Mapping[str, Rule] = {
    "overflow": _rule("anthropic-25", None, words="prompt is too long: {given} tokens > {limit} maximum"),
    "rate_limit": _rule(
        "anthropic-28",
        None,
        status=429,
        kind="rate_limit_error",
        words="This request would exceed your organization's rate limit",
        headers={"retry-after": "0"},
    ),
    "quota": _rule(
        "anthropic-29",
        None,
        words="Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or "
        "purchase credits.",
    ),
    "server_error": _rule("anthropic-27", None, status=529, kind="overloaded_error", words="Overloaded"),
    "auth": _rule("anthropic-30", None, status=401, kind="authentication_error", words="invalid x-api-key"),
}
"""Failures that no request causes."""
