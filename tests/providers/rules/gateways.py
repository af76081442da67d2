"""Rules of gateways and hosts of others' models that copy OpenAI's chat completions, and of Gemini's copy."""

from __future__ import annotations

from typing import Any

from tests.providers import checks
from tests.providers.rule import Rule
from tests.providers.rules.bodies import CALL, CALLED, FUNCTION, RESULT, USER, openai_error, tool
from tests.providers.rules.compatible import FAULTS, overflow

_UNANSWERED = {"messages": [USER, CALLED, USER]}

# Fireworks, Together, OpenRouter
_KNOWN_FIELDS = (
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "n", "stop", "response_format",
    "stream", "stream_options", "logprobs", "top_logprobs", "user", "seed", "reasoning_effort", "reasoning_history",
    "thinking", "service_tier", "metadata",
)  # fmt: skip
FIREWORKS = (
    Rule(
        "fireworks-04",
        checks.fields_unknown(*_KNOWN_FIELDS),
        400,
        openai_error("Extra inputs are not permitted, field: '{name}', value: {value}"),
        {"vl_high_resolution_images": True},
    ),
    Rule(
        "fireworks-05",
        lambda request: {} if request.tools and request.response_format else None,
        400,
        openai_error("You cannot specify response format and function call at the same time"),
        {"tools": [FUNCTION], "response_format": {"type": "json_object"}},
    ),
)
FIREWORKS_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow(
        "fireworks-03", 400, openai_error("The prompt is too long: {given}, model maximum context length: {limit}")
    ),
}
TOGETHER = (
    Rule(
        "together-04",
        checks.forced_choice,
        400,
        openai_error("Thinking mode does not support this tool_choice"),
        {"tools": [FUNCTION], "tool_choice": "required"},
    ),
)
TOGETHER_FAULTS: dict[str, Rule] = {
    **FAULTS,
    "overflow": overflow(
        "together-02",
        422,
        openai_error(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {given} `inputs` "
            "tokens and 512 `max_new_tokens`",
            param="max_tokens",
        ),
    ),
}


def _openrouter_error(message: str, code: int = 400, **metadata: Any) -> dict[str, Any]:
    error: dict[str, Any] = {"message": message, "code": code}
    if metadata:
        error["metadata"] = metadata
    return {"error": error, "user_id": "u"}


OPENROUTER = (
    Rule(
        "openrouter-06",
        checks.unanswered_calls,
        400,
        _openrouter_error(
            "Provider returned error",
            raw='{"error":{"message":"No tool output found for function call {ids}."}}',
            provider_name="x",
        ),
        _UNANSWERED,
    ),
    Rule(
        "openrouter-01",
        checks.calls_without_reasoning_details("call_or"),
        400,
        _openrouter_error(
            "Provider returned error",
            raw="The `reasoning_content` in the thinking mode must be passed back to the API.",
        ),
        {
            "messages": [
                USER,
                {**CALLED, "tool_calls": [{**CALL, "id": "call_or1"}]},
                {**RESULT, "tool_call_id": "call_or1"},
            ]
        },
    ),
    Rule(
        "openrouter-12",
        lambda request: {} if (request.body.get("reasoning") or {}).get("effort") == "none" else None,
        400,
        _openrouter_error("Reasoning is mandatory for this endpoint and cannot be disabled."),
        {"reasoning": {"effort": "none"}},
    ),
)
OPENROUTER_FAULTS: dict[str, Rule] = {
    "overflow": overflow(
        "openrouter-09",
        400,
        _openrouter_error(
            "This endpoint's maximum context length is {limit} tokens. However, you requested about {given} tokens "
            "({given} of text input, 0 in the output). Please reduce the length of either one, or use the "
            '"middle-out" transform to compress your prompt automatically.'
        ),
    ),
    "quota": Rule(
        "openrouter-07-credits",
        None,
        402,
        _openrouter_error("Insufficient credits. Add more using https://openrouter.ai/settings/credits", 402),
    ),
    "filter": Rule(
        "openrouter-08",
        None,
        403,
        _openrouter_error("Input was flagged", 403, reasons=["violence"], flagged_input="...", provider_name="x"),
    ),
    "server_error": Rule("openrouter-502", None, 502, _openrouter_error("Provider returned error", 502)),
    "rate_limit": Rule(
        "openrouter-429",
        None,
        429,
        _openrouter_error("Provider returned error", 429, raw="x is temporarily rate-limited upstream."),
        headers={"retry-after": "0"},
    ),
    "auth": Rule("openrouter-401", None, 401, _openrouter_error("No auth credentials found", 401)),
}

# Gemini's API in OpenAI's form


def _google_error(message: str, code: int = 400, status: str = "INVALID_ARGUMENT") -> list[Any]:
    return [{"error": {"code": code, "message": message, "status": status}}]


GEMINI = (
    Rule(
        "google-gemini-27",
        checks.unanswered_calls,
        400,
        _google_error(
            "Please ensure that the number of function response parts is equal to the number of function call parts of "
            "the function call turn."
        ),
        _UNANSWERED,
    ),
    Rule(
        "google-gemini-28",
        checks.first_call_without_signature,
        400,
        _google_error("Function call is missing a thought_signature in functionCall parts."),
        {"messages": [USER, CALLED, RESULT], "tools": [FUNCTION]},
    ),
    Rule(
        "google-gemini-27-names",
        checks.names_of_tools(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"),
        400,
        _google_error("Invalid function name. Must start with a letter or an underscore."),
        {"tools": [tool(name="9lives")]},
    ),
)
GEMINI_FAULTS: dict[str, Rule] = {
    "overflow": overflow(
        "google-gemini-overflow",
        400,
        _google_error("The input token count ({given}) exceeds the maximum number of tokens allowed ({limit})."),
    ),
    "rate_limit": Rule(
        "google-gemini-429",
        None,
        429,
        _google_error("You exceeded your current quota. Please retry in 0.02s.", 429, "RESOURCE_EXHAUSTED"),
    ),
    "server_error": Rule(
        "google-gemini-503",
        None,
        503,
        _google_error("The model is overloaded. Please try again later.", 503, "UNAVAILABLE"),
    ),
    "auth": Rule("google-gemini-key", None, 400, _google_error("API key not valid. Please pass a valid API key.")),
}

TOGETHER_OVERFLOWS = (
    overflow(
        "together-03",
        400,
        openai_error("The input ({given} tokens) is longer than the model's context length ({limit} tokens)."),
    ),
)
COPILOT_OVERFLOWS = (
    overflow(
        "github-copilot-01",
        400,
        {
            "error": {
                "message": "prompt token count of {given} exceeds the limit of {limit}",
                "code": "model_max_prompt_tokens_exceeded",
            }
        },
    ),
)
