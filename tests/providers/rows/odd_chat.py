"""Answers in place of a reply that providers of chat completions are known for."""

from __future__ import annotations

import json
from typing import Any

from tests.providers.exchange import Call, Raw, Refusal, Reply
from tests.providers.row import OddAnswer
from tests.providers.rules.bodies import openai_error, vllm_error

_CALL = Reply(calls=(Call("weather", {"city": "Paris"}),))


def _raw(body: Any, *, event: str = "") -> Raw:
    """An error in a stream of status 200, or in its place."""
    text = json.dumps(body)
    return Raw((f"{event}data: {text}\n\n".encode(),), text.encode())


def _chunk(choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "gen-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **fields}


def _ended(reason: str) -> Reply:
    return Reply(calls=_CALL.calls, finish=reason)


OPENAI = (
    OddAnswer(
        "openai-29",
        _raw(openai_error("The server had an error while processing your request.", kind="server_error")),
        "goes on",
    ),
    OddAnswer(
        "openai-22",
        Refusal(
            "openai-22",
            429,
            openai_error(
                "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested "
                "45000. The input or output tokens must be reduced in order to run successfully.",
                kind="tokens",
                code="rate_limit_exceeded",
            ),
        ),
        "fails",
        "Request too large",
    ),
    OddAnswer(
        "openai-26",
        Refusal(
            "openai-26",
            404,
            openai_error("The model `nope` does not exist or you do not have access to it.", code="model_not_found"),
        ),
        "fails",
        "does not exist",
    ),
)
AZURE = (
    OddAnswer(
        "azure-openai-04",
        _raw(
            {
                "error": {
                    "message": "The response was filtered due to the prompt triggering the content policy.",
                    "code": "content_filter",
                    "innererror": {"code": "ResponsibleAIPolicyViolation"},
                }
            }
        ),
        "is refused",
    ),
    OddAnswer(
        "azure-openai-06",
        Refusal(
            "azure-openai-06",
            404,
            {
                "error": {
                    "code": "DeploymentNotFound",
                    "message": "The API deployment for this resource does not exist.",
                }
            },
        ),
        "fails",
        "does not exist",
    ),
)
DEEPSEEK = (OddAnswer("deepseek-10", _ended("insufficient_system_resource"), "runs no call"),)
_FAILED_CALL = {
    "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
    "type": "invalid_request_error",
    "code": "tool_use_failed",
    "failed_generation": "<function=f{}</function>",
}
GROQ = (
    OddAnswer("groq-01", Refusal("groq-01", 400, {"error": _FAILED_CALL}), "goes on"),
    OddAnswer("groq-07", _raw({"error": {**_FAILED_CALL, "status_code": 400}}, event="event: error\n"), "goes on"),
    OddAnswer(
        "groq-09",
        Refusal(
            "groq-09",
            413,
            {
                "error": {
                    "message": "Request too large for model `x` on tokens per minute (TPM): Limit 12000, Requested "
                    "20000, please reduce your message size and try again.",
                    "type": "tokens",
                    "code": "rate_limit_exceeded",
                }
            },
        ),
        "fails",
        "Request too large",
    ),
)
XAI = (OddAnswer("xai-04", Reply(calls=_CALL.calls, finish=" "), "runs the call"),)
ZAI = (
    OddAnswer("zai-glm-03", _ended("network_error"), "runs no call"),
    OddAnswer("zai-glm-03", _ended("sensitive"), "runs no call"),
)
MINIMAX = (
    OddAnswer(
        "minimax-07",
        _raw({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}, "choices": None}),
        "fails",
        "insufficient balance",
    ),
)
OPENROUTER = (
    OddAnswer(
        "openrouter-03",
        _raw(
            _chunk(
                {"index": 0, "delta": {"content": ""}, "finish_reason": "error"},
                error={
                    "code": 502,
                    "message": "Worker local total request limit reached (33/32)",
                    "metadata": {"error_type": "provider_unavailable"},
                },
            )
        ),
        "goes on",
    ),
    OddAnswer(
        "openrouter-04",
        _raw(
            _chunk(
                {
                    "index": 0,
                    "delta": {},
                    "finish_reason": "error",
                    "error": {"code": 503, "message": "overloaded"},
                }
            )
        ),
        "goes on",
    ),
    OddAnswer("openrouter-10", _raw({"id": "gen-1", "choices": None}), "goes on"),
    OddAnswer(
        "openrouter-11",
        Refusal("openrouter-11", 404, {"error": {"message": "No endpoints found that support tool use.", "code": 404}}),
        "goes on",
    ),
)
NIM = (
    OddAnswer(
        "nvidia-nim-02",
        _raw({"error": {"code": 502, "message": "Worker local total request limit reached (33/32)"}, "choices": []}),
        "goes on",
    ),
    OddAnswer(
        "nvidia-nim-03",
        Refusal(
            "nvidia-nim-03",
            400,
            vllm_error('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        ),
        "goes on",
    ),
    OddAnswer(
        "nvidia-nim-05",
        Refusal(
            "nvidia-nim-05",
            410,
            {
                "status": 410,
                "title": "Gone",
                "detail": "The model has reached its end of life and is no longer available.",
            },
        ),
        "fails",
        "end of life",
    ),
)
LLAMA_CPP = (
    OddAnswer(
        "llama.cpp-loading",
        _raw({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),
        "goes on",
    ),
)
