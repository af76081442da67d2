"""Rules of OpenAI's chat completions."""

from __future__ import annotations

from typing import Any

from tests.providers import checks
from tests.providers.exchange import Request
from tests.providers.rule import Found, Rule
from tests.providers.rules.bodies import (
    CALL,
    CALLED,
    FILE,
    IMAGE,
    RESULT,
    USER,
    openai_error,
    tool,
)

NAME = r"[a-zA-Z0-9_-]{1,64}"
_PATTERN = "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
_COMBINATORS = ("oneOf", "anyOf", "allOf", "enum", "not")
_IN_SCHEMA = "Invalid schema for function '{name}': "


def _schema_error(message: str) -> dict[str, Any]:
    return openai_error(
        _IN_SCHEMA + message, param="tools[{index}].function.parameters", code="invalid_function_parameters"
    )


def _combined_root(path: tuple[str, ...], schema: dict[str, Any]) -> Found | None:
    return {} if not path and any(word in schema for word in _COMBINATORS) else None


def _untyped_root(path: tuple[str, ...], schema: dict[str, Any]) -> Found | None:
    return {"type": schema.get("type", "null")} if not path and schema.get("type") != "object" else None


def _array_without_items(path: tuple[str, ...], schema: dict[str, Any]) -> Found | None:
    return {} if schema.get("type") == "array" and not isinstance(schema.get("items"), dict) else None


def _strict_all_of(request: Request) -> Found | None:
    strict = [one for one in request.tools if (one.raw or {}).get("function", {}).get("strict")]
    for at, one in enumerate(strict):
        for path, node in checks.schema_nodes(one.schema):
            if path and "allOf" in node:
                return {"index": at, "name": one.name, "context": repr(path)}
    return None


def _unknown_part_field(request: Request) -> Found | None:
    for at, message in enumerate(request.messages):
        for place, part in enumerate(message.parts):
            if isinstance(part.raw, dict) and "cache_control" in part.raw:
                return {"index": at, "part": place}
    return None


def _empty_calls(request: Request) -> Found | None:
    for at, message in enumerate(request.messages):
        if (message.raw or {}).get("tool_calls") == []:
            return {"index": at}
    return None


def _no_root(request: Request) -> Found | None:
    """A tool's parameters that are given and are no schema object."""
    for at, one in enumerate(request.tools):
        function = (one.raw or {}).get("function", {})
        if "parameters" in function and not isinstance(function["parameters"], dict):
            return {"index": at, "name": one.name, "type": "null"}
    return None


PAIRING = [
    Rule(
        "openai-01",
        checks.unanswered_calls,
        400,
        openai_error(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: {ids}",
            param="messages",
        ),
        {"messages": [USER, CALLED, USER]},
    ),
    Rule(
        "openai-02",
        checks.orphan_results,
        400,
        openai_error(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
            "'tool_calls'.",
            param="messages.[{index}].role",
        ),
        {"messages": [USER, RESULT]},
    ),
]
NAMES = [
    Rule(
        "openai-05",
        checks.names_of_tools(NAME),
        400,
        openai_error(
            f"Invalid 'tools[{{index}}].function.name': {_PATTERN}",
            param="tools[{index}].function.name",
            code="invalid_value",
        ),
        {"tools": [tool(name="db.query")]},
    ),
    Rule(
        "openai-06",
        checks.names_of_calls(NAME),
        400,
        openai_error(
            f"Invalid 'messages[{{index}}].tool_calls[{{call}}].function.name': {_PATTERN}",
            param="messages[{index}].tool_calls[{call}].function.name",
            code="invalid_value",
        ),
        {
            "messages": [
                USER,
                {**CALLED, "tool_calls": [{**CALL, "function": {"name": "db.query", "arguments": "{}"}}]},
                RESULT,
            ]
        },
    ),
]
SCHEMAS = [
    Rule(
        "openai-07",
        checks.schema_of_tool(_combined_root),
        400,
        _schema_error(
            "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
        ),
        {"tools": [tool(parameters={"type": "object", "anyOf": [{"required": ["a"]}]})]},
    ),
    Rule(
        "openai-08",
        checks.either(_no_root, checks.schema_of_tool(_untyped_root)),
        400,
        _schema_error("schema must be a JSON Schema of 'type: \"object\"', got 'type: {type}'."),
        {"tools": [tool(parameters={"properties": {}})]},
    ),
    Rule(
        "openai-09",
        checks.schema_of_tool(_array_without_items),
        400,
        _schema_error("In context={context}, array schema missing items."),
        {
            "tools": [
                tool(
                    parameters={
                        "type": "object",
                        "properties": {"p": {"type": "array", "prefixItems": [{"type": "number"}]}},
                    }
                )
            ]
        },
    ),
    Rule(
        "openai-10",
        _strict_all_of,
        400,
        _schema_error("In context={context}, 'allOf' is not permitted."),
        {
            "tools": [
                tool(parameters={"type": "object", "properties": {"d": {"allOf": [{"type": "string"}]}}}, strict=True)
            ]
        },
    ),
]
IMAGES = [
    Rule(
        id_,
        checks.parts_in(role, "image", "audio", "document"),
        400,
        openai_error(
            "Invalid 'messages[{index}]'. Image URLs are only allowed for messages with role 'user', but this message "
            "with role '{role}' contains an image URL.",
            param="messages[{index}]",
            code="invalid_value",
        ),
        {"messages": messages},
    )
    for id_, role, messages in (
        ("openai-04", "assistant", [USER, {"role": "assistant", "content": [IMAGE]}, USER]),
        ("openai-11", "tool", [USER, CALLED, {**RESULT, "content": [IMAGE]}]),
    )
]
LIMITS = [
    Rule(
        "openai-35",
        checks.too_many_tools(128),
        400,
        openai_error(
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length "
            "{count} instead.",
            param="tools",
            code="array_above_max_length",
        ),
        {"tools": [tool(name=f"f{number}") for number in range(129)]},
    ),
    Rule(
        "openai-36",
        checks.too_many_calls(128),
        400,
        openai_error(
            "Invalid 'messages[{index}].tool_calls': array too long. Expected an array with maximum length 128, but "
            "got an array with length {count} instead.",
            param="messages[{index}].tool_calls",
            code="array_above_max_length",
        ),
        {
            "messages": [
                USER,
                {**CALLED, "tool_calls": [{**CALL, "id": f"call_{number}"} for number in range(129)]},
                *({**RESULT, "tool_call_id": f"call_{number}"} for number in range(129)),
            ]
        },
    ),
]
FIELDS = [
    Rule(
        "openai-32",
        checks.choice_without_tools,
        400,
        openai_error(
            "Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified.", param="{name}"
        ),
        {"tool_choice": "none"},
    ),
    Rule(
        "openai-33",
        _empty_calls,
        400,
        openai_error(
            "Invalid 'messages[{index}].tool_calls': empty array. Expected an array with minimum length 1, but got an "
            "empty array instead.",
            param="messages[{index}].tool_calls",
            code="empty_array",
        ),
        {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER]},
    ),
    Rule(
        "openai-34",
        _unknown_part_field,
        400,
        openai_error(
            "Unknown parameter: 'messages[{index}].content[{part}].cache_control'.",
            param="messages[{index}].content[{part}].cache_control",
            code="unknown_parameter",
        ),
        {
            "messages": [
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
                },
                USER,
            ]
        },
    ),
]
BASIC = (*PAIRING, *NAMES, *SCHEMAS, *IMAGES, *LIMITS, *FIELDS)
"""Rules of every model."""

REASONING = (
    Rule(
        "openai-30",
        checks.field_given("max_tokens"),
        400,
        openai_error(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
            "instead.",
            param="max_tokens",
            code="unsupported_parameter",
        ),
        {"max_tokens": 10},
    ),
    Rule(
        "openai-31",
        checks.field_given("temperature", "top_p", "presence_penalty", "frequency_penalty", allowed=(1, 1.0, None)),
        400,
        openai_error(
            "Unsupported value: '{name}' does not support {value} with this model. Only the default (1) value is "
            "supported.",
            param="{name}",
            code="unsupported_value",
        ),
        {"temperature": 0.2},
    ),
)
"""Rules of models that reason."""

FAULTS = {
    "overflow": Rule(
        "openai-21",
        None,
        400,
        openai_error(
            "This model's maximum context length is {limit} tokens. However, your messages resulted in {given} "
            "tokens. Please reduce the length of the messages.",
            param="messages",
            code="context_length_exceeded",
        ),
    ),
    "rate_limit": Rule(
        "openai-24",
        None,
        429,
        openai_error(
            "Rate limit reached for gpt-4o on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again "
            "in 20ms.",
            kind="requests",
            code="rate_limit_exceeded",
        ),
        headers={"retry-after": "0", "retry-after-ms": "20"},
    ),
    "quota": Rule(
        "openai-23",
        None,
        429,
        openai_error(
            "You exceeded your current quota, please check your plan and billing details.",
            kind="insufficient_quota",
            code="insufficient_quota",
        ),
    ),
    "server_error": Rule(
        "openai-28",
        None,
        503,
        openai_error(
            "The server is currently overloaded with other requests.",
            kind="service_unavailable_error",
            code="server_is_overloaded",
        ),
    ),
    "auth": Rule("openai-25", None, 401, openai_error("Incorrect API key provided: wrong.", code="invalid_api_key")),
    "filter": Rule(
        "openai-27",
        None,
        400,
        openai_error(
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy.", code="invalid_prompt"
        ),
    ),
}

AZURE = (
    Rule(
        "azure-openai-07",
        checks.parts_in("user", "document"),
        400,
        openai_error(
            "Invalid value: 'file'. Supported values are: 'text', 'image_url', 'input_audio', and 'refusal'.",
            param="messages[{index}].content[{part}].type",
            code="invalid_value",
        ),
        {"messages": [{"role": "user", "content": [FILE]}]},
    ),
)
AZURE_FAULTS = {
    **FAULTS,
    "rate_limit": Rule(
        "azure-openai-05",
        None,
        429,
        {
            "error": {
                "code": "429",
                "message": "Requests to the ChatCompletions_Create Operation have exceeded token rate limit of your "
                "current pricing tier. Please retry after 0 seconds.",
            }
        },
        headers={"retry-after": "0"},
    ),
    "filter": Rule(
        "azure-openai-03",
        None,
        400,
        {
            "error": {
                "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management "
                "policy. Please modify your prompt and retry.",
                "type": None,
                "param": "prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {}},
            }
        },
    ),
}
