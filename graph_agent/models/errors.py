"""Classifies the errors of model calls, and describes them for users and developers, with the requested retry delay.

An error is classified by its attributes (`status_code`, `response`, `body`, `code`, its class names) and by its words
(`graph_agent.models.wire.words`), so that no provider's package is imported. A refusal by the model or its provider
because of content is an answer to the user, not an error.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Collection

from langchain_core import language_models

from graph_agent.base._internal.failure_log import exception_text
from graph_agent.base._internal.secrets import mask_secrets
from graph_agent.base._internal.text import excerpt
from graph_agent.base.errors import GraphAgentError, HookError
from graph_agent.base.finish import CUT_OFF as CUT_OFF
from graph_agent.base.finish import REFUSED as REFUSED
from graph_agent.base.finish import cut_off as cut_off
from graph_agent.base.finish import refusal_text as refusal_text
from graph_agent.base.model_error_text import MODEL_LOADING, POSTPONED, SENTENCES, UNREACHABLE, ModelErrorKind
from graph_agent.models.wire.error_parts import (
    address_of,
    class_names,
    codes_of,
    failure_text,
    header,
    is_wordless,
    provider_message,
    status_of,
)
from graph_agent.models.wire.error_parts import retry_after_s as retry_after_s
from graph_agent.models.wire.words import QUOTA_CODES, classify_words, has_words, is_quota, window_of

_SHOWN_CHARS = 300
"""Maximum characters of the provider's message in an error's description."""
_TRANSIENT_STATUSES = frozenset({408, 409, 424, 425, 429, *range(500, 600)} - {501, 505})
"""HTTP statuses after which the same request may succeed later."""
_TRANSIENT_CLASSES = frozenset(
    (
        *("APIConnectionError", "ClientConnectionError", "ClientPayloadError", "ConnectionError"),
        *("DeadlineExceeded", "InternalServerError", "JSONDecodeError", "ModelAPIError"),
        *("ModelConnectionError", "ModelRateLimitError", "ModelTimeoutError", "ProtocolError"),
        *("RateLimitError", "ResourceExhausted", "ServiceUnavailable", "ThrottlingException", "TimeoutError"),
        *("TransportError",),
    )
)
"""Names of exception classes, of any provider's client, after which the same request may succeed later."""
# Subclasses of connection errors that a retry cannot fix.
_PERMANENT_CLASSES = frozenset(
    {"InvalidURL", "LocalProtocolError", "SSLCertVerificationError", "UnicodeEncodeError", "UnsupportedProtocol"}
)
_OWN_CLASSES = frozenset({"GraphAgentError", "ModelTimeoutError"})
"""Classes of errors whose text was written by this package, and so contains no words of a provider."""
_MODELS = (os.path.dirname(__file__), os.path.dirname(language_models.__file__))
_MIDDLEWARE = os.path.join(os.path.dirname(_MODELS[0]), "core", "extensions")
FOR_USERS: frozenset[ModelErrorKind] = frozenset({"transient", "content_filter"})
"""Kinds of errors that the user can act on; all others are for the developer."""
LONGEST_WAIT_S = 60.0
"""Maximum seconds between two attempts; a longer delay requested by the provider is named in the description."""
_UNREACHABLE_CLASSES = frozenset(
    (
        *("ClientConnectorError", "ConnectError", "ConnectTimeout", "ConnectTimeoutError"),
        *("ConnectionRefusedError", "EndpointConnectionError", "gaierror"),
    )
)
"""Names of exception classes that mean that no server answered at the address."""


def classify_model_error(exc: BaseException) -> ModelErrorKind:
    """Return the kind of a model call's error.

    The words of the error come before its status, and the status before its class, except for `NotImplementedError` and
    an `AuthenticationError`, which come first.

    - `transient`: the same request may succeed later: lost connections, timeouts, rate limits, provider faults.
    - `auth`: the key is missing or wrong.
    - `permission`: the key is valid but not allowed, or its quota is used up.
    - `unknown_model`: no such model, or no such address.
    - `context_overflow`: too many tokens for the model, or for one request of this account; also 413, and 400 without
      any words.
    - `content_filter`: refused because of its content.
    - `tools_rejected`: this model or server does not support tools; includes `NotImplementedError`.
    - `other`: anything else, including errors of this package and cancellation.
    """
    if isinstance(exc, GraphAgentError) or not isinstance(exc, Exception):
        return "other"
    if isinstance(exc, NotImplementedError):
        return "tools_rejected"
    # Words come first, because a status has several meanings: 429 is a quota or a rate limit.
    status, text, classes = status_of(exc), failure_text(exc), class_names(exc)
    by_words = classify_words(status, text, codes_of(exc))
    if by_words is not None:
        return by_words
    # Cerebras refuses an overlong request with a status alone.
    if "ContextOverflowError" in classes or status == 413 or (status == 400 and is_wordless(exc)):
        return "context_overflow"
    if status == 401 or classes & {"AuthenticationError", "ModelAuthenticationError"}:
        return "auth"
    if status in {402, 403} or classes & {"PermissionDeniedError", "ModelPermissionDeniedError"}:
        return "permission"
    if status in {404, 410}:
        return "unknown_model"
    if classes & _PERMANENT_CLASSES:
        return "other"
    if status is not None:
        return "transient" if status in _TRANSIENT_STATUSES else "other"
    if classes & _TRANSIENT_CLASSES or has_words("transient", text) or has_words("damaged", text):
        return "transient"
    return "other"


def window_in_error(exc: BaseException) -> int | None:
    """Return the context window in tokens that the text of a `context_overflow` error states.

    None for errors of other kinds, and if the text has no such number.
    """
    return window_of(failure_text(exc)) if classify_model_error(exc) == "context_overflow" else None


def is_used_up(exc: BaseException) -> bool:
    """Whether the account's quota or balance is used up, so that only another account or provider can answer.

    False for a rate limit, which a retry outlasts, and for a missing permission.
    """
    if classify_model_error(exc) != "permission":
        return False
    return status_of(exc) == 402 or is_quota(status_of(exc), failure_text(exc)) or bool(QUOTA_CODES & {*codes_of(exc)})


def is_loading(exc: BaseException) -> bool:
    """Whether the error means that the server is still loading its model, and will answer after that."""
    return classify_model_error(exc) == "transient" and has_words("loading", failure_text(exc))


def is_unreachable(exc: BaseException) -> bool:
    """Whether the connection failed because no server answered at the model's address: a refused connection, an
    unknown host or a timeout while connecting, also as the cause of the error."""
    return bool(class_names(exc) & _UNREACHABLE_CLASSES) and classify_model_error(exc) == "transient"


def forbids_retry(exc: BaseException) -> bool:
    """Whether the server forbids a retry by the header `x-should-retry: false`, as OpenAI and Anthropic send it."""
    return str(header(exc, "x-should-retry")).strip().lower() == "false"


def hint_of(exc: BaseException) -> str:
    """Return advice for the developer about a transient error or a content filter; an empty text for other kinds.

    The advice on a transient error depends on its cause, such as a server that is not reachable or still loads its
    model.
    """
    kind = classify_model_error(exc)
    if kind == "content_filter":
        return "Another model, or other settings of the provider's filter, may accept the request."
    if kind != "transient":
        return ""
    if is_unreachable(exc):
        return "Start the server, or correct the model's address; `graph-agent doctor` tests it."
    if is_loading(exc):
        return "Wait until the server has loaded its model; `graph-agent doctor` tests it."
    if has_words("damaged", failure_text(exc)):
        return "The server's reply does not have the form of its API; `graph-agent doctor --ask-model` tests it."
    if (asked_s := retry_after_s(exc)) is not None and asked_s > LONGEST_WAIT_S:
        return "Set `fallback_models`, so that another model answers meanwhile."
    if "ModelTimeoutError" in class_names(exc):
        return "Raise `model_timeout_s`, or set `fallback_models`."
    return "Raise `model_retries`, or set `fallback_models`."


def is_raised_by_model(error: BaseException, *, within: Collection[str] = _MODELS) -> bool:
    """Whether an exception was raised inside a chat model, by the frames of its traceback.

    False for an error of middleware that runs inside the model's client, unless a model raised it in turn.

    Args:
        error: The exception.
        within: Folders of the code that counts as the model: by default LangChain's models and this package's folder of
            models.
    """
    found = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        folder = os.path.dirname(frame.f_code.co_filename)
        # A model's client may call middleware, which may call the model.
        found = folder in within or (found and folder != _MIDDLEWARE)
    return found


def describe_model_error(exc: BaseException, *, public: bool = False) -> str:
    """Describe a model error for the user in one sentence: the cause, the provider's text in parentheses and the fix.
    Secrets are masked.

    Args:
        exc: The error; a `HookError` gives its own text.
        public: Whether to leave out the provider's text, e.g. for the stored state of a session.
    """
    if isinstance(exc, HookError):
        return str(exc)
    what, fix = _sentence_of(exc)
    brief = brief_model_error(exc, public=public)
    return f"{what} ({brief}); {fix}." if brief else f"{what}; {fix}."


def _sentence_of(exc: BaseException) -> tuple[str, str]:
    """Return the cause and the fix of a model error, as two clauses. A transient error has clauses of its own for an
    unreachable server, a server that loads its model, and a long wait that the provider asks for.
    """
    kind = classify_model_error(exc)
    if kind == "transient" and is_unreachable(exc):
        return UNREACHABLE
    if kind == "transient" and is_loading(exc):
        return MODEL_LOADING
    asked_s = retry_after_s(exc) if kind == "transient" else None
    if asked_s is not None and asked_s > LONGEST_WAIT_S:
        return POSTPONED[0], f"{POSTPONED[1]} {_duration(asked_s)}"
    return SENTENCES[kind]


def _duration(seconds: float) -> str:
    """Return a duration in whole minutes below two hours, otherwise in whole hours, rounded up, e.g. `3 hours`."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{math.ceil(minutes / 60)} hours"


def brief_model_error(exc: BaseException, *, public: bool = False) -> str:
    """Return the HTTP status and the provider's message, for use inside a sentence. Secrets are masked.

    Args:
        exc: The error.
        public: Whether to return only the status of an error that a model raised, or an empty text if it has none. An
            error of this package, such as `ModelTimeoutError`, is described as otherwise.
    """
    if public and is_raised_by_model(exc) and not _OWN_CLASSES & class_names(exc):
        return f"HTTP {status}" if (status := status_of(exc)) is not None else ""
    return mask_secrets(_brief(exc))


def public_exception_text(error: BaseException) -> str:
    """Return the text of an exception for the stored history, without the provider's text if a model raised it."""
    # Hooks and tools run within other code of the package's models, too.
    if not is_raised_by_model(error, within=_MODELS[1:]) or _OWN_CLASSES & class_names(error):
        return exception_text(error)
    return describe_model_error(error, public=True)


def _brief(exc: BaseException) -> str:
    """Return the HTTP status, the provider's message in at most 300 characters, and the address if no server
    answered."""
    status = status_of(exc)
    message = excerpt(" ".join(provider_message(exc).split()).rstrip("."), _SHOWN_CHARS)
    details = [f"HTTP {status}"] if status is not None else []
    details.append(message or type(exc).__name__)
    brief = ": ".join(details)
    # Without an answer, the address is the first thing to check.
    return f"{brief}, at {address}" if status is None and (address := address_of(exc)) else brief


def is_content_refusal(error: BaseException) -> bool:
    """Whether an exception reports that the provider's content filter refused the request."""
    return classify_model_error(error) == "content_filter"
