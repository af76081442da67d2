"""The error bodies of OpenAI and of those that copy its API."""

from __future__ import annotations

from typing import Any

CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
USER: dict[str, Any] = {"role": "user", "content": "hi"}
CALLED: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "ok"}
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
FILE: dict[str, Any] = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}}


def tool(**function: Any) -> dict[str, Any]:
    """Return the function tool `f` with some fields replaced."""
    return {"type": "function", "function": {**FUNCTION["function"], **function}}


def openai_error(
    message: str, *, param: str | None = None, code: Any = None, kind: str | None = "invalid_request_error"
) -> dict[str, Any]:
    """Return OpenAI's body of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def flat_error(message: Any, *, kind: str, code: Any = None, param: str | None = None) -> dict[str, Any]:
    """Return a body whose error stands at the top, as of Mistral and SGLang."""
    return {"object": "error", "message": message, "type": kind, "param": param, "code": code}


def vllm_error(message: str) -> dict[str, Any]:
    """Return vLLM's body of a 400."""
    return openai_error(message, kind="BadRequestError", code=400)
