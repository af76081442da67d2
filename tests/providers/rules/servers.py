"""Rules of servers of open models."""

from __future__ import annotations

from typing import Any

from tests.providers import checks
from tests.providers.exchange import Request
from tests.providers.rule import Found, Rule
from tests.providers.rules.bodies import (
    CALL,
    CALLED,
    FUNCTION,
    RESULT,
    USER,
    flat_error,
    openai_error,
    tool,
    vllm_error,
)
from tests.providers.rules.compatible import FAULTS, overflow

_SYSTEM = {"role": "system", "content": "s"}
_ASSISTANT = {"role": "assistant", "content": "a"}
_BAD_CALL = {**CALLED, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a":'}}]}
_TWO_USERS = {"messages": [USER, _ASSISTANT, USER, USER]}
_USER_BEHIND_TOOL = {"messages": [USER, CALLED, RESULT, USER]}
_LATE_SYSTEM = {"messages": [USER, _SYSTEM]}
_NO_USER = {"messages": [_SYSTEM, CALLED, RESULT]}
_FILE_PART = {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}
_ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
_NO_QUERY = "No user query found in messages."

# vLLM
VLLM_FILE = Rule(
    "vllm-08",
    checks.parts_in("*", "document"),
    400,
    vllm_error("Unknown part type: file"),
    _FILE_PART,
)
VLLM_QWEN = (
    Rule("vllm-02", checks.system_not_first, 400, vllm_error("System message must be at the beginning."), _LATE_SYSTEM),
    Rule("vllm-04", checks.no_user, 400, vllm_error(_NO_QUERY), _NO_USER),
    VLLM_FILE,
)
VLLM_GEMMA = (
    Rule(
        "vllm-06",
        checks.tools_offered,
        400,
        vllm_error('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        {"tools": [FUNCTION]},
    ),
    Rule(
        "vllm-03",
        lambda request: {} if any(message.role == "system" for message in request.messages) else None,
        400,
        vllm_error("System role not supported"),
        {"messages": [_SYSTEM, USER]},
    ),
    Rule("vllm-01", checks.roles_do_not_alternate, 400, vllm_error(_ALTERNATE), _TWO_USERS),
)
VLLM_MISTRAL = (
    Rule(
        "vllm-05",
        checks.role_behind("user", "tool"),
        400,
        vllm_error("Unexpected role 'user' after role 'tool'"),
        _USER_BEHIND_TOOL,
    ),
    Rule(
        "vllm-05-ids",
        checks.ids_of_calls(r"[a-zA-Z0-9]{9}"),
        400,
        vllm_error("Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9."),
        {"messages": [USER, CALLED, RESULT]},
    ),
    Rule(
        "vllm-14",
        checks.field_given("chat_template_kwargs"),
        400,
        vllm_error("chat_template is not supported for Mistral tokenizers."),
        {"chat_template_kwargs": {"enable_thinking": False}},
    ),
)
VLLM_FAULTS = {
    **FAULTS,
    "overflow": overflow(
        "vllm-10",
        400,
        vllm_error(
            "This model's maximum context length is {limit} tokens. However, your request has {given} input tokens. "
            "Please reduce the length of the input messages."
        ),
    ),
    "server_error": Rule("vllm-13", None, 503, openai_error("queue is full", kind="ServiceUnavailableError", code=503)),
}

# NVIDIA NIM
_NIM_FIELDS = (
    "model", "messages", "tools", "tool_choice", "max_tokens", "temperature", "top_p", "frequency_penalty",
    "presence_penalty", "stop", "stream", "stream_options", "seed", "response_format", "reasoning_effort",
    "parallel_tool_calls",
)  # fmt: skip
NIM = (
    Rule(
        "nvidia-nim-07",
        checks.fields_unknown(*_NIM_FIELDS),
        400,
        vllm_error("Unsupported parameter(s): `{name}`"),
        {"enable_thinking": True},
    ),
    Rule(
        "nvidia-nim-01",
        checks.role_behind("user", "tool"),
        400,
        vllm_error("Unexpected role 'user' after role 'tool'"),
        _USER_BEHIND_TOOL,
    ),
)
NIM_FAULTS = {
    **VLLM_FAULTS,
    "overflow": overflow("nvidia-nim-06", 400, VLLM_FAULTS["overflow"].body),
}

# SGLang


def _sglang_error(message: str, kind: str = "BadRequestError") -> dict[str, Any]:
    return flat_error(message, kind=kind, code=400)


def _odd_type(path: tuple[str, ...], schema: dict[str, Any]) -> Found | None:
    types = schema.get("type", "object")
    names = types if isinstance(types, list) else [types]
    known = {"object", "array", "string", "number", "integer", "boolean", "null"}
    if odd := [name for name in names if name not in known]:
        return {"type": odd[0]}
    if "properties" in schema and not isinstance(schema["properties"], dict):
        return {"type": schema["properties"]}
    return None


SGLANG = (
    Rule("sglang-01", checks.no_messages, 400, _sglang_error("Messages cannot be empty."), {"messages": []}),
    Rule(
        "sglang-02",
        checks.unanswered_calls,
        400,
        _sglang_error("Tool calls {list} have no tool message answering them."),
        {"messages": [USER, CALLED, USER]},
    ),
    Rule(
        "sglang-03",
        checks.arguments_no_object,
        400,
        _sglang_error("Assistant tool call function.arguments must be valid JSON.", "BadRequest"),
        {"messages": [USER, _BAD_CALL, RESULT]},
    ),
    Rule(
        "sglang-04",
        checks.every(checks.forced_choice, lambda request: {} if not request.tools else None),
        400,
        _sglang_error("Tools cannot be empty if tool choice is set to required."),
        {"tool_choice": "required", "tools": []},
    ),
    Rule(
        "sglang-04-names",
        checks.repeated_tools,
        400,
        _sglang_error("Tool names must be unique: {name}"),
        {"tools": [FUNCTION, FUNCTION]},
    ),
    Rule(
        "sglang-05",
        checks.schema_of_tool(_odd_type),
        400,
        _sglang_error(
            "Tool {index} function has invalid 'parameters' schema: '{type}' is not valid under any of the given "
            "schemas"
        ),
        {"tools": [tool(parameters={"type": "nonsense"})]},
    ),
)
SGLANG_FAULTS = {
    **FAULTS,
    "overflow": overflow(
        "sglang-06",
        400,
        _sglang_error(
            "The input ({given} tokens) is longer than the model's context length ({limit} tokens).", "BadRequest"
        ),
    ),
}

# llama.cpp


def _llama_error(message: str, code: int = 400, kind: str = "invalid_request_error", **more: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "type": kind, **more}}


def _prefill(request: Request) -> Found | None:
    return {} if request.messages and request.messages[-1].role == "assistant" else None


LLAMA_CPP = (
    Rule(
        "llama.cpp-02",
        checks.two_assistants_at_end,
        400,
        _llama_error("Cannot have 2 or more assistant messages at the end of the list."),
        {"messages": [USER, _ASSISTANT, _ASSISTANT]},
    ),
    Rule(
        "llama.cpp-01",
        _prefill,
        400,
        _llama_error("Assistant response prefill is incompatible with enable_thinking."),
        {"messages": [USER, _ASSISTANT]},
    ),
)
LLAMA_CPP_GEMMA = (
    Rule(
        "llama.cpp-04",
        checks.tools_offered,
        500,
        _llama_error("tools param requires --jinja flag", 500, "server_error"),
        {"tools": [FUNCTION]},
    ),
    Rule(
        "llama.cpp-03",
        checks.roles_do_not_alternate,
        500,
        _llama_error(
            "\n------------\nWhile executing CallExpression at line 46, column 32 in source:\n"
            "...raise_exception('After the optional system message, con...\nError: Jinja Exception: After the optional "
            "system message, conversation roles must alternate user and assistant roles except for tool calls and "
            "results.",
            500,
            "server_error",
        ),
        {"messages": [USER, USER]},
    ),
)
LLAMA_CPP_FAULTS = {
    **FAULTS,
    "overflow": overflow(
        "llama.cpp-07",
        400,
        _llama_error(
            "request ({given} tokens) exceeds the available context size ({limit} tokens), try increasing it",
            kind="exceed_context_size_error",
            n_prompt_tokens="{given}",
            n_ctx="{limit}",
        ),
    ),
    "server_error": Rule("llama.cpp-loading", None, 503, _llama_error("Loading model", 503, "unavailable_error")),
}

# LM Studio
LM_STUDIO = (
    Rule(
        "lm-studio-02",
        checks.choice_as_object,
        400,
        {"error": "Invalid tool_choice type: 'object'. Supported string values: none, auto, required"},
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    Rule(
        "lm-studio-06",
        lambda request: {} if (request.response_format or {}).get("type") == "json_object" else None,
        400,
        {"error": "'response_format.type' must be 'json_schema' or 'text'"},
        {"response_format": {"type": "json_object"}},
    ),
    Rule(
        "lm-studio-03",
        lambda request: next(
            (
                {"index": at}
                for at, one in enumerate(request.tools)
                if not isinstance(one.schema, dict)
                or one.schema.get("type") != "object"
                or not isinstance(one.schema.get("properties"), dict)
            ),
            None,
        ),
        400,
        [
            {
                "code": "invalid_union_discriminator",
                "options": ["object"],
                "path": ["{index}", "function", "parameters", "type"],
                "message": "Invalid discriminator value. Expected 'object'",
            }
        ],
        {"tools": [tool(parameters={"anyOf": []})]},
    ),
    Rule(
        "lm-studio-01",
        checks.no_user,
        400,
        {
            "error": 'Engine protocol predict request returned 400: {"error":{"code":400,"message":"Unable to generate '
            "parser for this template. Automatic parser generation failed: ... raise_exception('No user query found in "
            "messages.')\"}}"
        },
        _NO_USER,
    ),
)
LM_STUDIO_FAULTS = {
    **FAULTS,
    "overflow": overflow(
        "lm-studio-05",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length. Try to "
            "load the model with a larger context length, or provide a shorter input"
        },
    ),
    "server_error": Rule(
        "lm-studio-500", None, 500, {"error": "The model has crashed without additional information."}
    ),
}

# TGI
TGI = (
    Rule(
        "tgi-01",
        checks.roles_do_not_alternate,
        422,
        {"error": f"Template error: template error: {_ALTERNATE}", "error_type": "template_error"},
        {"messages": [USER, USER]},
    ),
)
TGI_FAULTS = {
    **FAULTS,
    "overflow": overflow(
        "tgi-02",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {given} "
            "`inputs` tokens and 512 `max_new_tokens`",
            "error_type": "validation",
        },
    ),
    "rate_limit": Rule("tgi-04", None, 429, {"error": "Model is overloaded", "error_type": "overloaded"}),
    "server_error": Rule(
        "tgi-500", None, 500, {"error": "Request failed during generation: Server error", "error_type": "generation"}
    ),
}

# Ollama's API in OpenAI's form


def _null_content(request: Request) -> Found | None:
    for at, message in enumerate(request.messages):
        if message.raw.get("content") is None and not message.calls:
            return {"index": at}
    return None


def _image_by_url(request: Request) -> Found | None:
    for message in request.messages:
        for part in message.parts:
            if part.kind == "image" and not str(part.raw.get("image_url", {}).get("url", "")).startswith("data:"):
                return {}
    return None


def _lost_ids(request: Request) -> Found | None:
    """A result as a list: Ollama makes messages of its own of the parts, without the call's id."""
    return checks.list_as_content("tool")(request)


OLLAMA = (
    Rule(
        "ollama-01",
        _null_content,
        400,
        openai_error("invalid message content type: <nil>"),
        {"messages": [{"role": "assistant", "content": None}, USER]},
    ),
    Rule(
        "ollama-02",
        checks.arguments_no_object,
        400,
        openai_error("invalid tool call arguments"),
        {"messages": [USER, _BAD_CALL, RESULT]},
    ),
    Rule(
        "ollama-05",
        _image_by_url,
        400,
        openai_error("image URLs are not currently supported, please use base64 encoded data instead"),
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]},
    ),
    Rule(
        "ollama-05-parts",
        checks.parts_in("*", "document", "other"),
        400,
        openai_error("invalid message format"),
        _FILE_PART,
    ),
    Rule(
        "ollama-04",
        _lost_ids,
        400,
        openai_error("the emulator refuses a list as a result: its parts would lose the id of the call"),
        {"messages": [USER, CALLED, {**RESULT, "content": [{"type": "text", "text": "a"}]}]},
    ),
    Rule(
        "ollama-10",
        checks.field_given(
            "reasoning_effort", allowed=("none", "minimal", "low", "medium", "high", "max", "xhigh", "ultra")
        ),
        400,
        openai_error(
            'invalid reasoning value: "{value}" (must be "minimal", "low", "medium", "high", "xhigh", "ultra", "max", '
            'or "none")'
        ),
        {"reasoning_effort": "huge"},
    ),
)
OLLAMA_TEXT = (
    Rule(
        "ollama-03",
        checks.tools_offered,
        400,
        openai_error("registry.ollama.ai/library/gemma:2b does not support tools", kind="api_error"),
        {"tools": [FUNCTION]},
    ),
)
OLLAMA_FAULTS = {
    **FAULTS,
    "server_error": Rule(
        "ollama-500", None, 500, openai_error("model runner has unexpectedly stopped", kind="api_error")
    ),
    "quota": Rule(
        "ollama-09",
        None,
        429,
        '"you (name) have reached your session usage limit, please wait or upgrade to continue"',
    ),
}

# Further words for a request that is too long
VLLM_OVERFLOWS = (
    overflow(
        "vllm-11",
        400,
        vllm_error(
            "'max_tokens' or 'max_completion_tokens' is too large: 64000. This model's maximum context length is "
            "{limit} tokens and your request has {given} input tokens (64000 > {limit} - {given})."
        ),
    ),
    overflow(
        "vllm-12",
        400,
        vllm_error(
            "This model's maximum context length is {limit} tokens. However, you requested 64000 output tokens and "
            "your prompt contains at least {given} input tokens."
        ),
    ),
)
SGLANG_OVERFLOWS = (
    overflow(
        "sglang-07",
        400,
        _sglang_error(
            "Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total "
            "of {given} tokens: {given} tokens from the input messages and 0 tokens for the completion. Please reduce "
            "the number of tokens in the input messages or the completion to fit within the limit.",
            "BadRequest",
        ),
    ),
)
LLAMA_CPP_OVERFLOWS = (
    overflow(
        "llama.cpp-08",
        200,
        _llama_error(
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            kind="exceed_context_size_error",
            n_prompt_tokens="{given}",
            n_ctx="{limit}",
        ),
    ),
)
TGI_OVERFLOWS = (
    overflow(
        "tgi-03",
        422,
        {
            "error": "Input validation error: `inputs` must have less than {limit} tokens. Given: {given}",
            "error_type": "validation",
        },
    ),
)
