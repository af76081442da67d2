"""Classification of provider errors: by shape, by wording, and from the real client over HTTP."""

from __future__ import annotations

import asyncio
import email.utils
import ssl
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from graph_agent.base._internal.secrets import mask_secrets
from graph_agent.errors import McpServerError, ScriptError
from graph_agent.models.errors import classify_model_error, describe_model_error, retry_after_s
from tests.support.openai_stub import Failure, Reply, StubFactory, error_of, openai_stub

__all__ = ["openai_stub"]


class ProviderError(Exception):
    """An error in the shape that OpenAI's client and its imitators share."""

    def __init__(self, status: int | None, message: str = "", code: Any = None, **attributes: Any) -> None:
        super().__init__(f"Error code: {status} - {message}" if status else message)
        self.code = code
        self.body = {"message": message, "code": code}
        if status:
            self.status_code = status
        vars(self).update(attributes)


def named(name: str, *bases: type[Exception]) -> type[Exception]:
    return type(name, bases or (Exception,), {})


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


async def read(model: ChatOpenAI) -> None:
    async for _ in model.astream("hi"):
        pass


KINDS: list[tuple[str, BaseException]] = [
    ("transient", ProviderError(408)),
    ("transient", ProviderError(409)),
    ("transient", ProviderError(429, "Rate limit reached on tokens per min (TPM): Limit 10000, Used 9000.")),
    ("transient", ProviderError(429, "You exceeded your current quota. Please retry in 20.3s.")),
    ("transient", ProviderError(500, "The server had an error while processing your request.")),
    ("transient", ProviderError(503)),
    ("transient", ProviderError(529, "Overloaded", "overloaded_error")),
    ("transient", ProviderError(None, "Provider returned error", 502)),
    ("transient", ProviderError(None, "Overloaded", "server_error")),
    ("transient", TimeoutError()),
    ("transient", RuntimeError("<asyncio.locks.Event object> is bound to a different event loop")),
    ("transient", RuntimeError("Event loop is closed")),
    ("transient", ValueError("No generations found in stream.")),
    ("transient", ConnectionResetError("Connection reset by peer")),
    ("transient", named("RemoteProtocolError", named("TransportError"))("peer closed connection")),
    ("transient", caused(named("APIConnectionError")("Connection error."), ConnectionRefusedError(111, "refused"))),
    ("transient", named("ThrottlingException")("Too many requests")),
    ("auth", ProviderError(401, "Incorrect API key provided: sk-abc***xyz.", "invalid_api_key")),
    ("auth", ProviderError(401, "This model does not support tools")),
    ("auth", ProviderError(400, "API key not valid. Please pass a valid API key.")),
    ("auth", named("OpenAIError")("The api_key client option must be set")),
    ("auth", named("OpenAIError")("Missing credentials. Please pass an `api_key`")),
    ("permission", ProviderError(403, "Country, region, or territory not supported", "unsupported_country")),
    ("permission", ProviderError(402, "Insufficient Balance")),
    ("permission", ProviderError(429, "You exceeded your current quota.", "insufficient_quota")),
    ("permission", ProviderError(400, "Your credit balance is too low to access the API.")),
    ("unknown_model", ProviderError(404, "The model `gpt-9.1` does not exist", "model_not_found")),
    ("unknown_model", ProviderError(404, 'model "llama9.1" not found, try pulling it first')),
    ("unknown_model", ProviderError(404, "Not Found")),
    ("unknown_model", ProviderError(400, "foo/bar is not a valid model ID")),
    ("unknown_model", ProviderError(400, "Invalid model: mistral-huge")),
    ("context_overflow", ProviderError(400, "This model's maximum context length is 8192 tokens.")),
    ("context_overflow", ProviderError(400, "prompt is too long: 210266 tokens > 200000 maximum")),
    ("context_overflow", ProviderError(400, "input length and `max_tokens` exceed context limit: 199759 + 8192")),
    ("context_overflow", ProviderError(400, "the request exceeds the available context size.")),
    ("context_overflow", ProviderError(400, "Your input exceeds the context window of this model.")),
    ("context_overflow", ProviderError(400, "length of prompt_tokens (163280) must be less than max_seq_len (32768).")),
    ("context_overflow", ProviderError(400, "The input token count (1200000) exceeds the maximum number of tokens")),
    ("context_overflow", ProviderError(429, "Request too large for gpt-4 on tokens per min (TPM): Limit 10000")),
    ("context_overflow", ProviderError(413)),
    ("context_overflow", named("ContextOverflowError")("too much")),
    ("content_filter", ProviderError(400, "triggering Azure OpenAI's content management policy.", "content_filter")),
    ("content_filter", ProviderError(403, 'This model requires moderation and your input was flagged for "x".')),
    ("content_filter", named("ContentFilterFinishReasonError")("the request was rejected by the content filter")),
    ("other", ProviderError(400, "Invalid type for 'messages[0].content'.")),
    ("other", ProviderError(501)),
    ("other", ValueError("temperature must be below 2")),
    ("other", caused(named("APIConnectionError")("Connection error."), named("UnsupportedProtocol")("no http://"))),
    ("other", caused(named("APIConnectionError")("Connection error."), ssl.SSLCertVerificationError("self-signed"))),
    ("other", asyncio.CancelledError()),
    ("other", KeyboardInterrupt()),
    ("other", ScriptError('The script has 1 reply. Last request: human message "it does not support tools"')),
    ("other", McpServerError("gave up")),
]


@pytest.mark.parametrize(("kind", "error"), KINDS, ids=[f"{kind}-{n}" for n, (kind, _) in enumerate(KINDS)])
def test_kinds(kind: str, error: BaseException) -> None:
    assert classify_model_error(error) == kind


def test_botocore_errors_are_read_from_their_response_dict() -> None:
    error = named("ClientError")("An error occurred (AccessDeniedException) when calling the Converse operation")
    vars(error)["response"] = {
        "Error": {"Code": "AccessDeniedException", "Message": "You may not use this model."},
        "ResponseMetadata": {"HTTPStatusCode": 403},
    }

    assert (classify_model_error(error), describe_model_error(error)) == (
        "permission",
        "The model provider does not allow this request (HTTP 403: You may not use this model); "
        "check the account's access, quota and billing.",
    )


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ProviderError(401, "Incorrect API key provided: sk-proj-0123456789abcdef.", "invalid_api_key"),
            "The model provider refused the API key (HTTP 401: Incorrect API key provided: ***); "
            "check the key and the address it is sent to.",
        ),
        (
            caused(named("APIConnectionError")("Connection error."), OSError("[Errno 111] Connection refused")),
            "The model provider did not answer as it should (Connection error: [Errno 111] Connection refused); "
            "try again later.",
        ),
        (
            ProviderError(422, body={"detail": [{"loc": ["body"], "msg": "bad"}]}),
            'The model call failed (HTTP 422: [{"loc": ["body"], "msg": "bad"}]); see the provider\'s documentation.',
        ),
        (
            ProviderError(400, "a\n  b " + "c" * 1000),
            f"The model call failed (HTTP 400: a b {'c' * 296}…); see the provider's documentation.",
        ),
        (TimeoutError(), "The model provider did not answer as it should (TimeoutError); try again later."),
    ],
)
def test_the_error_message_is_one_sentence(error: BaseException, sentence: str) -> None:
    assert describe_model_error(error) == sentence


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("key sk-proj-AbC_123-xyz9 refused", "key sk-*** refused"),
        ("Authorization: Bearer abc.def-123==", "Authorization: Bearer ***"),
        ("{'x-api-key': 'topsecret1'}", "{'x-api-key': '***'}"),
        ("Incorrect API key provided: plain-words-here", "Incorrect API key provided: ***"),
        ("GET https://me:pass@host/v1?key=AIzaSyA1234567890abc", "GET https://***@host/v1?key=***"),
        ("AIzaSyA1234567890abc and AKIAABCDEFGHIJKLMNOP", "AIza*** and AKIA***"),
        (f"gsk_abcdefgh, xai-abcdefgh, hf_{'abcdefgh' * 4}", "gsk_***, xai-***, hf_***"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig", "jwt eyJ***"),
        ("token 0123456789abcdef0123456789abcdef", "token ***"),
        ("cookie: sid=abc; other=def", "cookie: ***"),
        ("HTTP_COOKIE=a=1\nHost: x", "HTTP_COOKIE=***\nHost: x"),
        ("{'cookie': 'sid=\"a b\"; o=d', 'host': 'x'}", "{'cookie': '***', 'host': 'x'}"),
        ("[(b'set-cookie', b'sid=abc; Path=/'), (b'host', b'x')]", "[(b'set-cookie', b'***'), (b'host', b'x')]"),
        ('{"Set-Cookie": "sid=a\\"b", "x": 1}', '{"Set-Cookie": "***", "x": 1}'),
        ('authorization: Digest username="me", response="abc"', "authorization: Digest ***"),
        ("Proxy-Authorization: Basic Zm9v", "Proxy-Authorization: Basic ***"),
        ("x-api-key: p!w, next", "x-api-key: ***, next"),
        ("db='host=h password=s3!@#c user=me': no", "db='host=h password=*** user=me': no"),
        ("host=h password='two words' sslpassword=x", "host=h password='***' sslpassword=***"),
        ("postgresql://me:a/b@c@host/db", "postgresql://***@host/db"),
        ("http://localhost:8000/a@b", "http://localhost:8000/a@b"),
        ("max_tokens: 4096 is too large for gpt-4o-mini", "max_tokens: 4096 is too large for gpt-4o-mini"),
    ],
)
def test_secrets_are_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


_NAMES = (
    *("Cookie: ", "AUTHORIZATION=", "x-api-key: ", "passwd=", "PASSWORD='", "tokeN=", "Secret: ", "Bearer ", "basic "),
    *("://", "://me:", "sk-", "PK_", "rk-", "gsk_", "xai-", "hf_", "r8_", "pplx-", "ghp_", "glpat-", "xoxb-", "xoxa_"),
    *("xoxp-", "lsv2_", "AKIA", "asia", "AIza", "ya29.", "eyJ", "\u017fecret=", "to\u212aen=", "bas\u0131c ", "ü", ""),
)
_VALUES = ("Zm9vYmFyYmF6", "s3!@host", "a b=c", "abcdef0123456789" * 2, "\n'x'")


def test_a_text_is_masked_the_same_after_a_word_that_names_secrets() -> None:
    texts = [f"see {name}{value}" for name in _NAMES for value in _VALUES]

    after = [mask_secrets(f"key . {text}") for text in texts]

    assert after == [f"key . {mask_secrets(text)}" for text in texts]


@pytest.mark.timeout(60)  # a quadratic search takes many minutes
def test_a_long_adversarial_text_is_read_in_linear_time() -> None:
    error = ProviderError(400, "exceeds the " * 40_000 + "model " * 40_000 + "a1" * 40_000)

    kind, description, masked = classify_model_error(error), describe_model_error(error), mask_secrets(str(error))

    assert (kind, description[:44], masked[-9:]) == (
        "other",
        "The model call failed (HTTP 400: exceeds the",
        "model ***",
    )


@pytest.mark.parametrize(
    ("headers", "message", "expected"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, "", 1.5),
        ({"Retry-After": "20"}, "", 20.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, "", 0.0),
        ({"retry-after": "-3"}, "", None),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "nan"}, "Please try again in 7.66s.", 7.66),
        ({}, "Please try again in 20ms. Visit the docs.", 0.02),
        ({}, "Please try again in 1m12.5s.", 72.5),
        ({}, "Please try again in 2h3m.", 7380.0),
        ({}, "Please retry after 5 seconds.", 5.0),
        ({}, '"retryDelay": "17s"', 17.0),
        ({}, "Please try again in a while.", None),
        ({}, "Slow down.", None),
    ],
)
def test_retry_after_is_parsed(headers: dict[str, str], message: str, expected: float | None) -> None:
    error = ProviderError(429, message, response=SimpleNamespace(headers=headers, status_code=429))

    assert retry_after_s(error) == expected


def test_retry_after_dates_are_relative_to_now() -> None:
    later = email.utils.formatdate(time.time() + 100, usegmt=True)
    error = ProviderError(503, response=SimpleNamespace(headers={"retry-after": later}, status_code=503))

    waiting = retry_after_s(error)

    assert waiting is not None
    assert 90 < waiting <= 100


@pytest.mark.parametrize(
    ("failure", "kind", "wait"),
    [
        (Failure(401, "Incorrect API key provided: sk-stub-key.", "invalid_api_key"), "auth", None),
        (Failure(403, "Not yours.", type="permission_error"), "permission", None),
        (Failure(404, "The model `stub-model` does not exist", "model_not_found"), "unknown_model", None),
        (Failure(404, body="404 page not found"), "unknown_model", None),
        (Failure(400, "maximum context length is 10 tokens", "context_length_exceeded"), "context_overflow", None),
        (Failure(400, "Filtered.", "content_filter"), "content_filter", None),
        (Failure(400, "stub-model does not support tools", type="api_error"), "tools_rejected", None),
        (Failure(500, "tools param requires --jinja flag", type="server_error"), "tools_rejected", None),
        (Failure(429, "Slow down.", "rate_limit_exceeded", headers={"retry-after": "2"}), "transient", 2.0),
        (Failure(429, "Pay.", "insufficient_quota"), "permission", None),
        (Failure(503, body="<html>upstream is down</html>"), "transient", None),
    ],
    ids=lambda value: getattr(value, "code", None) or str(value)[:40],
)
@pytest.mark.parametrize("streaming", [False, True], ids=["invoke", "stream"])
async def test_errors_of_the_real_client(
    openai_stub: StubFactory, failure: Failure, kind: str, wait: float | None, streaming: bool
) -> None:
    async with openai_stub(failure).chat_model() as model:
        error = await error_of(read(model) if streaming else model.ainvoke("hi"))

    assert (classify_model_error(error), retry_after_s(error)) == (kind, wait)
    assert "sk-stub-key" not in describe_model_error(error)


@pytest.mark.parametrize("reply", [Reply("Hello there, world", cut_after=2), Reply("Hello there", error_after=2)])
async def test_a_stream_that_breaks_in_the_middle_is_transient(openai_stub: StubFactory, reply: Reply) -> None:
    async with openai_stub(reply).chat_model() as model:
        error = await error_of(read(model))

    assert classify_model_error(error) == "transient"


async def test_a_server_that_is_not_there_is_transient(openai_stub: StubFactory) -> None:
    stub = openai_stub()
    async with stub.chat_model(base_url="http://127.0.0.1:1/v1") as model:
        error = await error_of(model.ainvoke("hi"))

    assert classify_model_error(error) == "transient"


async def test_an_address_without_http_is_not_retried(openai_stub: StubFactory) -> None:
    stub = openai_stub()
    async with stub.chat_model(base_url="localhost:1/v1") as model:
        error = await error_of(model.ainvoke("hi"))

    assert classify_model_error(error) == "other"


def test_errors_are_read_without_any_provider_package() -> None:
    code = "import sys, graph_agent.models.errors; print({'openai', 'langchain_openai', 'httpx'} & {*sys.modules})"

    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert out.stdout.strip() == "set()"
