"""Rules of providers that copy OpenAI's chat completions."""

from __future__ import annotations

from typing import Any

from tests.providers import checks
from tests.providers.rule import Found, Rule
from tests.providers.rules.bodies import CALL, CALLED, FUNCTION, IMAGE, RESULT, USER, openai_error

SERVER_ERROR = Rule("http-500", None, 500, openai_error("Internal server error", kind="server_error"))
RATE_LIMIT = Rule(
    "http-429", None, 429, openai_error("Rate limit reached.", kind="rate_limit_error"), headers={"retry-after": "0"}
)
AUTH = Rule("http-401", None, 401, openai_error("Invalid API key.", kind="authentication_error"))
FAULTS: dict[str, Rule] = {"server_error": SERVER_ERROR, "rate_limit": RATE_LIMIT, "auth": AUTH}

_ASSISTANT = {"role": "assistant", "content": "a"}
_BAD_CALL = {**CALLED, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a":'}}]}
_REASONED = {"messages": [USER, {**_ASSISTANT, "reasoning_content": "r"}, USER]}
_ORPHAN = {"messages": [USER, RESULT]}
_UNANSWERED = {"messages": [USER, CALLED, USER]}


def overflow(id_: str, status: int, body: Any) -> Rule:
    """Return the rule of a request that is too long; its body has `{given}` and `{limit}` tokens."""
    return Rule(id_, None, status, body)


# DeepSeek


def _deepseek(message: str) -> dict[str, Any]:
    return openai_error(message, code="invalid_request_error")


_DESERIALIZE = "Failed to deserialize the JSON body into the target type: "
DEEPSEEK = (
    Rule(
        "deepseek-01",
        checks.unknown_role("system", "user", "assistant", "tool"),
        400,
        _deepseek(f"{_DESERIALIZE}messages[{{index}}].role: unknown variant `{{role}}`, expected one of {{known}}"),
        {"messages": [{"role": "developer", "content": "s"}, USER]},
    ),
    Rule(
        "deepseek-02",
        checks.orphan_results,
        400,
        _deepseek("Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"),
        _ORPHAN,
    ),
    Rule(
        "deepseek-02-unanswered",
        checks.unanswered_calls,
        400,
        _deepseek(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. (insufficient tool messages following tool_calls message)"
        ),
        _UNANSWERED,
    ),
    Rule(
        "deepseek-05",
        checks.parts_in("*", "image", "document", "audio", "other"),
        400,
        _deepseek(f"{_DESERIALIZE}messages[{{index}}]: unknown variant `image_url`, expected `text`"),
        {"messages": [{"role": "user", "content": [IMAGE]}]},
    ),
    Rule(
        "deepseek-04",
        checks.list_as_content("tool"),
        400,
        _deepseek(f"{_DESERIALIZE}messages[{{index}}]: invalid type: sequence, expected a string"),
        {"messages": [USER, CALLED, {**RESULT, "content": [{"type": "text", "text": "ok"}]}]},
    ),
    Rule(
        "deepseek-03",
        lambda request: next(
            (
                {"index": at, "type": one.raw.get("type")}
                for at, one in enumerate(request.tools)
                if one.raw.get("type") != "function"
            ),
            None,
        ),
        400,
        _deepseek(f"{_DESERIALIZE}tools[{{index}}].type: unknown variant `{{type}}`, expected `function`"),
        {"tools": [{"type": "web_search"}]},
    ),
    Rule(
        "deepseek-15",
        lambda request: {} if (request.response_format or {}).get("type") == "json_schema" else None,
        400,
        _deepseek("This response_format type is unavailable now"),
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
    ),
)
DEEPSEEK_THINKING = (
    Rule(
        "deepseek-06",
        checks.calls_without_reasoning_content,
        400,
        _deepseek("The `reasoning_content` in the thinking mode must be passed back to the API."),
        {"messages": [USER, CALLED, RESULT], "tools": [FUNCTION]},
    ),
    Rule(
        "deepseek-14",
        checks.forced_choice,
        400,
        _deepseek("Thinking mode does not support this tool_choice"),
        {"tools": [FUNCTION], "tool_choice": "required"},
    ),
)
DEEPSEEK_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow(
        "deepseek-13",
        400,
        _deepseek(
            "This model's maximum context length is {limit} tokens. However, you requested {given} tokens ({given} in "
            "the messages, 0 in the completion). Please reduce the length of the messages or completion."
        ),
    ),
    "quota": Rule(
        "deepseek-12",
        None,
        402,
        openai_error("Insufficient Balance", kind="unknown_error", code="invalid_request_error"),
    ),
}

# Groq


def _groq_error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", **fields}}


_NAMED = {"type": "function", "function": {"name": "g"}}
GROQ = (
    Rule(
        "groq-04",
        checks.field_of_message("reasoning_content"),
        400,
        _groq_error(
            "'messages.{index}' : for 'role:{role}' the following must be satisfied[('messages.{index}' : property "
            "'reasoning_content' is unsupported)]"
        ),
        _REASONED,
    ),
    Rule(
        "groq-03",
        lambda request: (
            {}
            if isinstance(request.tool_choice, dict)
            and request.tool_choice["function"]["name"] not in [one.name for one in request.tools]
            else None
        ),
        400,
        _groq_error("requested tool does not exist"),
        {"tools": [FUNCTION], "tool_choice": _NAMED},
    ),
    Rule(
        "groq-11",
        lambda request: {} if (request.response_format or {}).get("type") == "json_object" and request.tools else None,
        400,
        _groq_error("response_format` json_object cannot be combined with tool/function calling"),
        {"response_format": {"type": "json_object"}, "tools": [FUNCTION]},
    ),
    Rule(
        "groq-11-schema",
        lambda request: (
            {}
            if (request.response_format or {}).get("type") == "json_schema" and (request.tools or request.stream)
            else None
        ),
        400,
        _groq_error("response_format `json_schema` cannot be combined with streaming or tool/function calling"),
        {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
            "tools": [FUNCTION],
        },
    ),
    Rule(
        "groq-12",
        checks.field_given("reasoning_effort", allowed=("low", "medium", "high")),
        400,
        _groq_error("`reasoning_effort` must be one of `low`, `medium`, or `high`", param="reasoning_effort"),
        {"reasoning_effort": "none"},
    ),
)
GROQ_PLAIN = (
    Rule(
        "groq-05",
        checks.field_of_message("reasoning"),
        400,
        _groq_error("messages[{index}].reasoning: reasoning is not supported with this model"),
        {"messages": [USER, {**_ASSISTANT, "reasoning": ""}, USER]},
    ),
)
GROQ_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow(
        "groq-08",
        400,
        _groq_error(
            "Please reduce the length of the messages or completion.", param="messages", code="context_length_exceeded"
        ),
    ),
    "rate_limit": Rule(
        "groq-10",
        None,
        429,
        {
            "error": {
                "message": "Rate limit reached for model `x` on tokens per minute (TPM): Limit 6000, Used 5900, "
                "Requested 300. Please try again in 20ms.",
                "type": "tokens",
                "code": "rate_limit_exceeded",
            }
        },
        headers={"retry-after": "0", "x-ratelimit-reset-tokens": "20ms"},
    ),
}

# xAI


def _xai_error(message: str) -> dict[str, Any]:
    return {"code": "Client specified an invalid argument", "error": message}


XAI = (
    Rule(
        "xai-01",
        checks.empty_message("system", "user", "assistant", "tool"),
        400,
        _xai_error("Each message must have at least one content element."),
        {"messages": [{"role": "assistant", "content": ""}, USER]},
    ),
    Rule(
        "xai-08",
        checks.field_given("presence_penalty", "frequency_penalty", "stop", "reasoning_effort"),
        400,
        _xai_error("Model grok-4.6 does not support parameter {name}."),
        {"presence_penalty": 0},
    ),
)
XAI_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow(
        "xai-07",
        400,
        _xai_error("This model's maximum prompt length is {limit} but the request contains {given} tokens."),
    ),
    "auth": Rule(
        "xai-06",
        None,
        400,
        _xai_error("Incorrect API key provided: wrong. You can obtain an API key from https://console.x.ai."),
    ),
}

# Cerebras


def _cerebras_error(message: str, param: str = "messages") -> dict[str, Any]:
    return {"message": message, "type": "invalid_request_error", "param": param, "code": "wrong_api_format"}


def _open_schema(path: tuple[str, ...], schema: dict[str, Any]) -> Found | None:
    return {} if schema.get("type") == "object" and schema.get("additionalProperties") is not False else None


def _schema_of(request: Any) -> Any:
    return ((request.response_format or {}).get("json_schema") or {}).get("schema")


def _keywords(request: Any) -> Found | None:
    for _, node in checks.schema_nodes(_schema_of(request)):
        if found := {"minItems", "prefixItems", "pattern", "format"} & node.keys():
            return {"fields": str(found)}
    return None


CEREBRAS = (
    Rule(
        "cerebras-02",
        checks.field_of_message("reasoning_content"),
        400,
        _cerebras_error(
            "messages.{index}.{role}.reasoning_content: property 'messages.{index}.{role}.reasoning_content' is "
            "unsupported",
            "validation_error",
        ),
        _REASONED,
    ),
    Rule(
        "cerebras-06",
        checks.parts_in("*", "image", "document", "audio", "other"),
        400,
        _cerebras_error("type: Input should be 'text'", "validation_error"),
        {"messages": [{"role": "user", "content": [IMAGE]}]},
    ),
    Rule(
        "cerebras-01",
        checks.list_as_content("*"),
        400,
        _cerebras_error(
            "Failed to apply chat template to messages due to error: 'list object' has no attribute 'startswith'"
        ),
        {"messages": [USER, CALLED, {**RESULT, "content": [{"type": "text", "text": "ok"}]}]},
    ),
    Rule(
        "cerebras-08",
        _keywords,
        400,
        _cerebras_error("Unsupported JSON schema fields: {fields}", "response_format"),
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "array", "minItems": 1}},
            }
        },
    ),
    Rule(
        "cerebras-07",
        lambda request: next(
            (
                _open_schema(path, node)
                for path, node in checks.schema_nodes(_schema_of(request))
                if _open_schema(path, node) is not None
            ),
            None,
        ),
        422,
        _cerebras_error("'additionalProperties' is required to be supplied and set to false.", "response_format"),
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "object", "properties": {}}},
            }
        },
    ),
)
CEREBRAS_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow(
        "cerebras-04",
        400,
        {
            "message": "Please reduce the length of the messages or completion. Current length is {given} while limit "
            "is {limit}",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        },
    ),
    "rate_limit": Rule(
        "cerebras-05",
        None,
        429,
        {
            "message": "Tokens per minute limit exceeded - too many tokens processed.",
            "type": "too_many_tokens_error",
            "param": "quota",
            "code": "token_quota_exceeded",
        },
        headers={"retry-after": "0"},
    ),
}

# Moonshot
MOONSHOT = (
    Rule(
        "moonshot-kimi-pairing",
        checks.unanswered_calls,
        400,
        openai_error(
            "Invalid request: an assistant message with 'tool_calls' must be followed by tool messages responding to "
            "each 'tool_call_id'."
        ),
        _UNANSWERED,
    ),
    Rule(
        "moonshot-kimi-07",
        checks.every(checks.field_given("thinking"), checks.field_given("reasoning_effort")),
        400,
        openai_error("cannot specify both 'thinking' and 'reasoning_effort'"),
        {"thinking": {"type": "enabled"}, "reasoning_effort": "medium"},
    ),
    Rule(
        "moonshot-kimi-08",
        checks.forced_choice,
        400,
        openai_error("tool_choice 'required' is incompatible with thinking enabled"),
        {"tools": [FUNCTION], "tool_choice": "required"},
    ),
    Rule(
        "moonshot-kimi-09",
        checks.field_given("temperature", allowed=(1, 1.0)),
        400,
        openai_error("invalid temperature: only 1 is allowed for this model"),
        {"temperature": 0},
    ),
    Rule(
        "moonshot-kimi-03",
        checks.calls_without_reasoning_content,
        400,
        openai_error(
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}"
        ),
        {"messages": [USER, CALLED, RESULT], "tools": [FUNCTION]},
    ),
)
MOONSHOT_TEXT = (
    Rule(
        "moonshot-kimi-02",
        checks.list_as_content("*"),
        400,
        openai_error("Invalid request: text content is not a string"),
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ),
)
MOONSHOT_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow(
        "moonshot-kimi-05",
        400,
        openai_error("Invalid request: Your request exceeded model token limit: {limit} (requested: {given})"),
    ),
    "quota": Rule(
        "moonshot-kimi-06",
        None,
        429,
        openai_error(
            "Your account is suspended, please check your plan and billing details", kind="exceeded_current_quota_error"
        ),
    ),
}

# Z.ai


def _zai_error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


ZAI = (
    Rule(
        "zai-glm-01",
        checks.either(checks.no_messages, checks.unanswered_calls),
        400,
        _zai_error("1214", "messages parameter is illegal. Please check the documentation."),
        {"messages": []},
    ),
    Rule(
        "zai-glm-02",
        lambda request: {} if (request.body.get("thinking") or {}).get("type") == "disabled" else None,
        400,
        _zai_error("1210", "please use low, high, or max"),
        {"thinking": {"type": "disabled"}},
    ),
)
ZAI_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow("zai-glm-05", 400, _zai_error("1261", "Prompt exceeds max length")),
    "rate_limit": Rule(
        "zai-glm-rate", None, 429, _zai_error("1302", "Rate limit reached for requests"), headers={"retry-after": "0"}
    ),
    "quota": Rule(
        "zai-glm-04", None, 429, _zai_error("1113", "Insufficient balance or no resource package. Please recharge.")
    ),
}

# MiniMax


def _minimax_error(message: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": "bad_request_error", "message": f"invalid params, {message} (2013)", "http_code": "400"},
        "request_id": "x",
    }


MINIMAX = (
    Rule(
        "minimax-02",
        checks.every(checks.orphan_results, checks.unknown_result_id),
        400,
        _minimax_error("tool result's tool id({id}) not found"),
        {"messages": [USER, {**RESULT, "tool_call_id": "call_x"}]},
    ),
    Rule(
        "minimax-01",
        checks.either(checks.orphan_results, checks.unanswered_calls),
        400,
        _minimax_error("tool call result does not follow tool call"),
        {"messages": [USER, CALLED, USER, RESULT]},
    ),
    Rule(
        "minimax-03",
        checks.arguments_no_json,
        400,
        _minimax_error("invalid function arguments json string, tool_call_id: {id}"),
        {"messages": [USER, _BAD_CALL, RESULT]},
    ),
    Rule(
        "minimax-04",
        lambda request: {} if any(not one.schema for one in request.tools) else None,
        400,
        _minimax_error("function parameters is empty"),
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ),
)
MINIMAX_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow("minimax-08", 400, _minimax_error("context window exceeds limit")),
}

# Qwen


def _qwen_error(message: str, *, wrapped: bool = True) -> dict[str, Any]:
    prefix = "<400> InternalError.Algo.InvalidParameter: " if wrapped else ""
    return {
        "error": {
            "code": "invalid_parameter_error",
            "param": None,
            "message": prefix + message,
            "type": "invalid_request_error",
        },
        "id": "chatcmpl-x",
        "request_id": "x",
    }


QWEN = (
    Rule(
        "qwen-dashscope-01",
        checks.orphan_results,
        400,
        _qwen_error('messages with role "tool" must be a response to a preceeding message with "tool_calls".'),
        _ORPHAN,
    ),
    Rule(
        "qwen-dashscope-01-unanswered",
        checks.unanswered_calls,
        400,
        _qwen_error(
            'An assistant message with "tool_calls" must be followed by tool messages responding to each '
            '"tool_call_id". The following tool_call_ids did not have response messages: {ids}'
        ),
        _UNANSWERED,
    ),
    Rule(
        "qwen-dashscope-02",
        checks.parts_in("*", "document"),
        400,
        _qwen_error("Unsupported content type: file"),
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
    ),
    Rule(
        "qwen-dashscope-06",
        checks.forced_choice,
        400,
        _qwen_error("The tool_choice parameter does not support being set to required or object in thinking mode"),
        {"tools": [FUNCTION], "tool_choice": "required"},
    ),
)
QWEN_OPEN = (
    Rule(
        "qwen-dashscope-07",
        lambda request: None if request.stream or request.body.get("enable_thinking") is False else {},
        400,
        _qwen_error("parameter.enable_thinking must be set to false for non-streaming calls", wrapped=False),
        {"stream": False},
    ),
)
QWEN_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow("qwen-dashscope-04", 400, _qwen_error("Range of input length should be [1, {limit}]")),
    "filter": Rule(
        "qwen-dashscope-05",
        None,
        400,
        openai_error(
            "Input data may contain inappropriate content.",
            kind="data_inspection_failed",
            code="data_inspection_failed",
        ),
    ),
}
