"""The words of each model server's errors, raised as the server's own package raises them."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from graph_agent.models.errors import (
    classify_model_error,
    describe_model_error,
    is_used_up,
    retry_after_s,
    window_in_error,
)
from graph_agent.models.wire import words
from tests.support import __file__ as _support

# The clients of OpenAI and Anthropic use it.
httpx: Any = import_module("httpx2")

_FILE = Path(_support).parents[1] / "fixtures" / "model_errors.json"
SAMPLES: list[dict[str, Any]] = json.loads(_FILE.read_text())
"""`server`, `status`, `body` (JSON, a text, or empty), and what they mean: `kind`, `window`."""


_URL = "http://127.0.0.1:9/v1/chat/completions"


def _response(sample: dict[str, Any]) -> Any:
    body = sample["body"] if isinstance(sample["body"], str) else json.dumps(sample["body"])
    return httpx.Response(sample["status"], content=body.encode(), request=httpx.Request("POST", _URL))


def openai_error(sample: dict[str, Any]) -> Exception:
    return openai.OpenAI(api_key="x")._make_status_error_from_response(_response(sample))


def anthropic_error(sample: dict[str, Any]) -> Exception:
    return anthropic.Anthropic(api_key="x")._make_status_error_from_response(_response(sample))


class ClientError(Exception):
    """The error of `botocore`."""

    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__(f"An error occurred ({response['Error']['Code']}) when calling the Converse operation")
        self.response = response


def bedrock_error(sample: dict[str, Any]) -> Exception:
    body = sample["body"] if isinstance(sample["body"], dict) else {"message": sample["body"]}
    error = {"Code": body.get("__type", "ValidationException"), "Message": body["message"]}
    return ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": sample["status"]}})


class GoogleError(Exception):
    """The error of `google-genai`."""

    def __init__(self, status: int, body: Any, response: Any) -> None:
        super().__init__(f"{status} INVALID_ARGUMENT. {body}")
        self.code, self.details, self.response = status, body[0] if isinstance(body, list) else body, response


def google_error(sample: dict[str, Any]) -> Exception:
    """The error that `langchain-google-genai` raises from that of the client."""
    cause = GoogleError(sample["status"], sample["body"], _response(sample))
    error = RuntimeError(f"Error calling model 'gemini' (INVALID_ARGUMENT): {cause}")
    error.__cause__ = cause
    return error


def http_error(sample: dict[str, Any]) -> Exception:
    """The error that `langchain-mistralai` raises: the body is in the text only."""
    response = _response(sample)
    text = f"Error response {response.status_code} while fetching {response.url}: {response.text}"
    error: Exception = httpx.HTTPStatusError(text, request=response.request, response=response)
    return error


RAISED = {
    "Anthropic": anthropic_error,
    "Bedrock": bedrock_error,
    "Gemini": google_error,
    "Vertex": google_error,
    "Mistral": http_error,
}


def _ids(sample: dict[str, Any]) -> str:
    return f"{sample['server']}-{sample['status']}-{sample['kind']}"


@pytest.mark.parametrize("raised", [openai_error, None], ids=["openai", "own"])
def test_each_error_is_classified_with_the_window_that_it_names(raised: Any) -> None:
    errors = [(raised or RAISED.get(each["server"], openai_error))(each) for each in SAMPLES]

    found = [(classify_model_error(error), window_in_error(error)) for error in errors]

    expected = [(each["kind"], each["window"]) for each in SAMPLES]
    wrong = [(_ids(a), b, c) for a, b, c in zip(SAMPLES, found, expected, strict=True) if b != c]
    assert wrong == []


_KINDS: dict[str, words.Words] = {
    "tools_rejected": "tools_rejected",
    "content_filter": "content_filter",
    "permission": "quota",
    "context_overflow": "context_overflow",
    "auth": "auth",
    "unknown_model": "unknown_model",
}


@pytest.mark.parametrize("kind", _KINDS)
def test_no_wording_of_a_kind_is_in_an_error_of_another_kind(kind: str) -> None:
    others = [each for each in SAMPLES if each["kind"] != kind]

    found = [_ids(each) for each in others if words.has_words(_KINDS[kind], json.dumps(each["body"]))]

    assert found == []


@pytest.mark.parametrize("sample", [each for each in SAMPLES if each["body"]], ids=_ids)
def test_the_servers_words_are_in_the_description(sample: dict[str, Any]) -> None:
    error = openai_error(sample)

    description = describe_model_error(error)

    body = json.dumps(sample["body"], ensure_ascii=False)
    message = description.partition(f"HTTP {sample['status']}: ")[2].partition("); ")[0]
    # Without the rest of a cut sentence, masked keys, and what stands before OpenRouter's inner message.
    parts = [part.strip(" ….") for part in message.replace("Provider returned error: ", "").split("***")]
    assert [part for part in parts if part not in body.replace('\\\\\\"', '"').replace('\\"', '"')] == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("transient", "server_error: The server had an error while processing your request."),
        ("transient", "ResponseError(code='server_error', message='Something went wrong')"),
        ("transient", "rate_limit_exceeded: Rate limit reached for gpt-5"),
        ("context_overflow", "context_length_exceeded: Your input exceeds the context window of this model."),
        ("permission", "insufficient_quota: You exceeded your current quota"),
        ("content_filter", "invalid_prompt: Invalid prompt"),
        ("other", "invalid_request_error: Unknown parameter"),
    ],
)
def test_an_error_in_a_stream_of_responses_is_read_by_its_text(kind: str, text: str) -> None:
    assert classify_model_error(ValueError(text)) == kind


@pytest.mark.parametrize(
    ("kind", "window", "message", "body"),
    [
        (
            "context_overflow",
            8192,
            "the request exceeds the available context size",
            {"code": 400, "message": "the request exceeds the available context size", "n_ctx": 8192},
        ),
        ("transient", None, "HTTP 502: upstream", {"code": 502, "message": "upstream"}),
        ("transient", None, "Overloaded", {"type": "overloaded_error", "message": "Overloaded"}),
        ("permission", None, "Pay", {"type": "billing_error", "message": "Pay"}),
        ("content_filter", None, "filtered", {"code": "content_filter", "message": "filtered"}),
    ],
)
def test_an_error_inside_a_reply_with_status_200_is_read_by_its_body(
    kind: str, window: int | None, message: str, body: dict[str, Any]
) -> None:
    # As `langchain-openai` raises it for a whole reply, and the client for one of a stream.
    request = httpx.Request("POST", _URL)
    errors = [ValueError(body), openai.APIError(body["message"], request, body=body)]

    found = [(classify_model_error(error), window_in_error(error)) for error in errors]

    assert found == [(kind, window)] * 2
    assert all(message in describe_model_error(error) for error in errors)


def test_an_error_in_a_stream_of_anthropic_is_read_by_its_type() -> None:
    sample = {"status": 200, "body": {"type": "error", "error": {"type": "api_error", "message": "Internal error"}}}

    error = anthropic_error(sample)

    assert (classify_model_error(error), describe_model_error(error)) == (
        "transient",
        "The model provider did not answer as it should (Internal error, at http://127.0.0.1:9/v1); try again later.",
    )


def test_a_used_up_account_differs_from_one_without_access() -> None:
    used_up = [openai_error(each) for each in SAMPLES if each["kind"] == "permission"]
    forbidden = openai_error({"status": 403, "body": {"error": {"message": "Not yours.", "type": "permission_error"}}})

    assert ([is_used_up(error) for error in used_up], is_used_up(forbidden)) == ([True] * len(used_up), False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("'retryDelay': '34.4s'", 34.4),
        ('{"error": {"message": "Slow down", "metadata": {"retry_after_seconds": 30}}}', 30.0),
        ("Please retry after 20 seconds.", 20.0),
        ("Please try again in 2m59.56s.", 179.56),
    ],
)
def test_a_delay_in_the_words_is_read(text: str, seconds: float) -> None:
    assert retry_after_s(RuntimeError(text)) == seconds
