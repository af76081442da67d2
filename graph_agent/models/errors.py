"""Classifies how model calls end: errors, described for users, with the requested retry delay; cut-offs; refusals.

An error is classified by its attributes (`status_code`, `response`, `body`, `code`, its class names) and by its text,
so that no provider's package is imported. A refusal by the model or its provider because of content is an answer to the
user, not an error.
"""

from __future__ import annotations

import email.utils
import json
import math
import os
import re
import time
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, assert_never

from langchain_core import language_models
from langchain_core.messages import AIMessage

from graph_agent._internal.failure_log import exception_text, leaves, mask_secrets
from graph_agent._internal.text import excerpt
from graph_agent.errors import GraphAgentError, HookError
from graph_agent.parsing.tolerant import WorkBudget, arguments_end_inside_value, read_json
from graph_agent.types import CutOff

ModelErrorKind = Literal[
    "transient", "auth", "permission", "unknown_model", "context_overflow", "content_filter", "tools_rejected", "other"
]

_READ_CHARS = 20_000
"""Maximum characters that are searched of each text of an error."""
_SHOWN_CHARS = 300
"""Maximum characters of the provider's message in a description."""
_CAUSES = 6
"""Maximum number of errors that are read: the error itself, its causes, and members of groups."""
_NOT_ABOUT_TOOLS = frozenset({401, 402, 403, 408, 413, 425, 429})
"""HTTP statuses of errors that are never refusals of tools."""
_ABOUT_MODELS = frozenset({None, 400, 404, 410, 422})
"""HTTP statuses of errors that may be about an unknown model; None is an error without a status."""
_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)} - {501, 505})
"""HTTP statuses of errors that a later attempt may not have."""
_TRANSIENT_CLASSES = frozenset(
    {
        "APIConnectionError",
        "ConnectionError",
        "DeadlineExceeded",
        "InternalServerError",
        "JSONDecodeError",
        "ModelAPIError",
        "ModelConnectionError",
        "ModelRateLimitError",
        "ModelTimeoutError",
        "RateLimitError",
        "ResourceExhausted",
        "ServiceUnavailable",
        "ThrottlingException",
        "TimeoutError",
        "TransportError",
    }
)
# Subclasses of connection errors that a retry cannot fix.
_PERMANENT_CLASSES = frozenset(
    {"InvalidURL", "LocalProtocolError", "SSLCertVerificationError", "UnicodeEncodeError", "UnsupportedProtocol"}
)
SENTENCES: dict[ModelErrorKind, tuple[str, str]] = {
    "transient": ("The model provider did not answer as it should", "try again later"),
    "auth": ("The model provider refused the API key", "check the key and the address it is sent to"),
    "permission": ("The model provider does not allow this request", "check the account's access, quota and billing"),
    "unknown_model": ("The model or the address is unknown to the provider", "check the model's name and the base URL"),
    "context_overflow": ("The request is longer than the model can read", "shorten the history or the tools' output"),
    "content_filter": ("The provider's content filter stopped the request", "put the request in other words"),
    "tools_rejected": ("This model or its server does not take tools", "set tool_calling to 'text'"),
    "other": ("The model call failed", "see the provider's documentation"),
}
"""The text before and after the provider's words, by category."""
_OWN_CLASSES = frozenset({"GraphAgentError", "ModelTimeoutError"})
"""Classes of errors whose text is the package's own."""
_MODELS = (os.path.dirname(__file__), os.path.dirname(language_models.__file__))
_MIDDLEWARE = os.path.join(os.path.dirname(_MODELS[0]), "middleware")
FOR_USERS: frozenset[ModelErrorKind] = frozenset({"transient", "content_filter"})
"""Categories whose fix is the user's own; that of the others is the developer's."""
FALLBACK_SENTENCE = ("does not answer", "going on with")
"""The text before and after the provider's words in the warning of a change to a fallback model."""


def _any_of(*wordings: str) -> re.Pattern[str]:
    return re.compile("|".join(wordings), re.IGNORECASE)


# Wordings of refusals that a status alone does not identify. Each alternative is sent by some provider; each repetition
# is bounded, so that a search in a long text stays cheap.
_TOOLS = r"(?<!parallel )\b(?:tools|tool[ _-]?(?:use|usage|call(?:s|ing)?)|functions?[ _-]?call(?:s|ing)?|functions)\b"
_QUOTE = r"[`'\"]?"

_TOOLS_REJECTED_WORDS = _any_of(
    # Ollama, DeepSeek, Bedrock, xAI
    rf"(?:does not|doesn['’]t|do not|don['’]t) support (?:the )?(?:use of )?{_QUOTE}{_TOOLS}",
    # Groq, OpenAI, Azure, DeepInfra, Gemini
    rf"{_TOOLS}{_QUOTE} (?:is |are )?(?:not supported|unsupported|not enabled|not available)",
    # OpenRouter
    r"endpoints? found that supports? tool use",
    # vLLM
    r"requires --enable-auto-tool-choice|requires --tool-call-parser",
    # llama.cpp
    r"tools param requires --jinja|tools param is not fully supported|unsupported param: tools\b",
    # OpenAI and compatible servers
    r"(?:unsupported|unknown|unrecognized) (?:request )?(?:parameter|argument)(?: supplied)?: "
    rf"{_QUOTE}tools(?![\w\[.])",
    # LiteLLM
    r"does not support parameters: \[[^\]]{0,200}'tools'",
    # Servers that validate the request against a schema
    r"extra_forbidden.{1,20}\['body', 'tools'\]|property 'tools' is unsupported",
    # A client without support for tools
    r"unexpected keyword argument '(?:tools|tool_choice)'",
)

_CONTEXT_OVERFLOW_WORDS = _any_of(
    r"context_length_exceeded|exceed_context_size|maximum (?:context|prompt) length|than the maximum model length",
    r"exceeds? (?:the |this )?(?:available |maximum |model'?s )*context|context (?:window|length|limit|size) exceeded",
    r"(?:prompt|input|request) (?:is )?too (?:long|large)|too many tokens:|must be less than max_seq_len",
    r"input token count .{0,40}exceeds|reduce the length of the (?:messages|prompt|input)|tokens \+ .{0,40} must be <=",
)

_CONTENT_FILTER_WORDS = _any_of(
    r"content[_ ]filter|content[_ ](?:management )?policy|responsibleaipolicyviolation|data_inspection_failed",
    r"(?:input|prompt) was flagged|rejected by (?:the|our) safety system",
)

_QUOTA_WORDS = _any_of(
    r"insufficient_quota|insufficient[_ ](?:balance|credits?|funds)|billing_hard_limit",
    r"billing_not_active|credit balance is too low|payment required",
)

_AUTH_WORDS = _any_of(
    r"invalid_api_key|(?:invalid|incorrect|missing|expired|no) api[ _-]?key|missing credentials|authentication_error",
    r"api[ _-]?key.{0,40}(?:not valid|invalid|expired|must be set|missing|required)|unauthenticated",
)

_UNKNOWN_MODEL_WORDS = _any_of(
    r"model_not_found|model_decommissioned|deploymentnotfound|no endpoints found for|not a valid model|no such model",
    r"(?:invalid|unknown) model\b|\bmodel\b.{0,120}(?:does not exist|not found|decommissioned)",
)

_TRANSIENT_WORDS = _any_of(
    r"\b(?:overloaded|overloaded_error|server_error|internal_server_error|rate_limit_exceeded|rate_limit_error)\b",
    r"\b(?:resource_exhausted|service[_ ]?unavailable|deadline_exceeded|throttling\w{0,20})\b",
    # A client with a connection of another event loop; it drops that connection, and the next attempt opens another.
    r"(?:bound|attached) to a different (?:event )?loop|event loop is closed",
    # LangChain's error for a stream that the provider ended before its first token.
    r"no generations found in stream|no generation chunks were returned|null value for 'choices'",
    # LangChain's errors for a reply with damaged fields, such as arguments that are a list.
    r"validation errors? for (?:AI|Chat)Message",
)
_WAIT_IN_TEXT = re.compile(
    r"(?:try again|retry) (?:in|after) (?:(\d{1,4})h)?(?:(\d{1,5})m(?!s))?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?) ?(ms|s\b|seconds?))?"
    r"|retryDelay\W{1,6}(\d{1,9}(?:\.\d{1,9})?)s",
    re.IGNORECASE,
)


def classify_model_error(exc: BaseException) -> ModelErrorKind:
    """Classify the error of a model call.

    - `transient`: the same request may succeed later: lost connections, timeouts, rate limits, provider faults.
    - `auth`: the key is missing or wrong.
    - `permission`: the key is valid but not allowed, or its quota is used up.
    - `unknown_model`: no such model, or no such address.
    - `context_overflow`: too many tokens for the model, or for one request of this account.
    - `content_filter`: refused because of its content.
    - `tools_rejected`: this model or server does not support tools; includes a `NotImplementedError` of `bind_tools`.
    - `other`: anything else, including errors of this package and cancellation.
    """
    if isinstance(exc, GraphAgentError) or not isinstance(exc, Exception):
        return "other"
    if isinstance(exc, NotImplementedError):
        return "tools_rejected"
    status, text, classes = _status(exc), _text(exc), _class_names(exc)
    by_text = _classify_text(status, text)
    if by_text is not None:
        return by_text
    if "ContextOverflowError" in classes or status == 413:
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
    if classes & _TRANSIENT_CLASSES or _TRANSIENT_WORDS.search(text):
        return "transient"
    return "other"


def is_raised_by_model(error: BaseException, *, within: Collection[str] = _MODELS) -> bool:
    """Whether an exception left a chat model, or code that calls models only (`within`), not e.g. middleware."""
    found = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        folder = os.path.dirname(frame.f_code.co_filename)
        # A model's client may call middleware, which may call the model.
        found = folder in within or (found and folder != _MIDDLEWARE)
    return found


def describe_model_error(exc: BaseException, *, public: bool = False) -> str:
    """Describe the error and its fix in one sentence for a user; text that looks like a secret is masked.

    With `public`, as in the state of a session, the provider's words are omitted.
    """
    if isinstance(exc, HookError):
        return str(exc)
    what, fix = SENTENCES[classify_model_error(exc)]
    brief = brief_model_error(exc, public=public)
    return f"{what} ({brief}); {fix}." if brief else f"{what}; {fix}."


def brief_model_error(exc: BaseException, *, public: bool = False) -> str:
    """Return the provider's status and message, for use inside a sentence; text that looks like a secret is masked.

    With `public`, a model's own error has the status alone.
    """
    if public and is_raised_by_model(exc) and not _OWN_CLASSES & _class_names(exc):
        return f"HTTP {status}" if (status := _status(exc)) is not None else ""
    return mask_secrets(_brief(exc))


def public_exception_text(error: BaseException) -> str:
    """Behaves like `exception_text`, without a provider's words if a model raised the exception."""
    # Hooks and tools run within other code of the package's models, too.
    if not is_raised_by_model(error, within=_MODELS[1:]) or _OWN_CLASSES & _class_names(error):
        return exception_text(error)
    return describe_model_error(error, public=True)


def _brief(exc: BaseException) -> str:
    status = _status(exc)
    message = excerpt(" ".join(_message(exc).split()).rstrip("."), _SHOWN_CHARS)
    details = [f"HTTP {status}"] if status is not None else []
    details.append(message or type(exc).__name__)
    return ": ".join(details)


def retry_after_s(exc: BaseException) -> float | None:
    """Return the retry delay that the provider requests, in seconds, at least 0; None if there is none.

    Sources are the headers `retry-after-ms` and `retry-after` (seconds or a date), then the error's text.
    """
    for error in _causes(exc):
        headers = _headers(error)
        if (ms := _number(headers.get("retry-after-ms"))) is not None:
            return ms / 1000
        after = headers.get("retry-after", getattr(error, "retry_after", None))
        if (seconds := _number(after)) is not None:
            return seconds
        try:
            return max(0.0, email.utils.parsedate_to_datetime(str(after)).timestamp() - time.time())
        except (ValueError, OverflowError):
            continue
    found = _WAIT_IN_TEXT.search(_text(exc))
    if found is None or not any(found.groups()):
        return None
    hours, minutes, amount, unit, delay = found.groups()
    seconds = float(amount or delay or 0) / (1000 if (unit or "").lower() == "ms" else 1)
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds


def _classify_text(status: int | None, text: str) -> ModelErrorKind | None:
    """Classify by the provider's text if it is more specific than the status; else None."""
    if status == 401:
        return None
    if status not in _NOT_ABOUT_TOOLS and _TOOLS_REJECTED_WORDS.search(text):
        return "tools_rejected"
    # Groq, with status 400: the model's reply held no valid call, and another one may.
    if "tool_use_failed" in text:
        return "transient"
    if _CONTENT_FILTER_WORDS.search(text):
        return "content_filter"
    if _QUOTA_WORDS.search(text):
        return "permission"
    if _CONTEXT_OVERFLOW_WORDS.search(text):
        return "context_overflow"
    if status in {None, 400, 403} and _AUTH_WORDS.search(text):
        return "auth"
    if status in _ABOUT_MODELS and _UNKNOWN_MODEL_WORDS.search(text):
        return "unknown_model"
    return None


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and the members of exception groups; outermost first."""
    waiting = [exc]
    for _ in range(_CAUSES):
        if not waiting:
            return
        error = waiting.pop(0)
        yield error
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        if error.__cause__ is not None:
            waiting.append(error.__cause__)


def _class_names(exc: BaseException) -> set[str]:
    return {cls.__name__ for error in _causes(exc) for cls in type(error).__mro__}


def _status(exc: BaseException) -> int | None:
    for error in _causes(exc):
        response = getattr(error, "response", None)
        # botocore's response is a dict.
        meta = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        for value in (
            getattr(error, "status_code", None),
            getattr(response, "status_code", None),
            meta.get("HTTPStatusCode"),
            getattr(error, "status", None),
            getattr(error, "code", None),
        ):
            number = _number(value)
            if number is not None and 400 <= number < 600:
                return int(number)
    return None


def _headers(error: BaseException) -> Mapping[str, Any]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    return {str(key).lower(): value for key, value in headers.items()} if isinstance(headers, Mapping) else {}


def _number(value: object) -> float | None:
    """Parse a finite number of at least 0, from a number or its text; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _text(exc: BaseException) -> str:
    """Return the text of the error and its causes, for matching."""
    texts: list[str] = []
    for error in _causes(exc):
        texts += [type(error).__name__, str(error), str(getattr(error, "code", None) or "")]
        body = getattr(error, "body", None) or getattr(error, "response", None)
        texts.append(str(body) if isinstance(body, dict | list | str) else "")
    return "\n".join(part[:_READ_CHARS] for part in texts if part)


def _message(exc: BaseException) -> str:
    """Return the provider's message without its JSON envelope; a connection error includes its cause."""
    if isinstance(exc, BaseExceptionGroup):
        inner = list(leaves(exc))
        return _message(inner[0]) if len(inner) == 1 else exception_text(exc)
    body = getattr(exc, "body", None) or getattr(exc, "response", None)
    for _ in range(3):
        if not isinstance(body, dict):
            break
        if isinstance(message := body.get("message", body.get("Message")), str) and message:
            return message
        body = body.get("error", body.get("Error", body.get("detail")))
    if isinstance(body, str) and body:
        return body
    if isinstance(body, list):
        return json.dumps(body, default=str)
    texts = [text for error in _causes(exc) if (text := str(error).strip())]
    return (
        f"{texts[0].rstrip('.')}: {texts[-1]}" if len(texts) > 1 and texts[-1] not in texts[0] else "".join(texts[:1])
    )


_MOST_CHARS = 1000
"""Longest text in parentheses; more than an error's text can have."""
_BOUNDS = [*SENTENCES.values(), FALLBACK_SENTENCE]
# Greedy, so that a provider's text that repeats the end of the sentence is removed as a whole.
_QUOTES = re.compile(
    "|".join(
        rf"(?:(?<={re.escape(before)}) \((?!HTTP \d{{1,5}}\))(?:HTTP (\d{{1,5}}): )?.{{0,{_MOST_CHARS}}}\)"
        rf"(?=; {re.escape(after)}))"
        for before, after in _BOUNDS
    )
)


def public_text(text: str) -> str:
    """Return a text without the provider's words in each description of a model's error."""
    if not any(before in text for before, _ in _BOUNDS):
        return text
    return _QUOTES.sub(lambda found: f" (HTTP {found[found.lastindex]})" if found.lastindex else "", text)


def public_value(value: Any) -> Any:
    """Return JSON data with `public_text` applied to each of its texts."""
    match value:
        case str():
            return public_text(value)
        case list():
            return [public_value(each) for each in value]
        case dict():
            return {key: public_value(each) for key, each in value.items()}
        case _:
            return value


INCOMPLETE = "graph_agent_incomplete"
"""Key in `response_metadata` of a streamed reply that ended inside a call's arguments."""
UNENDED = "graph_agent_unended"
"""Key in `response_metadata` of a streamed text without a finish reason that may hold calls, or should have one."""

REFUSED = "The model's provider refused this request because of its content; put it in other words."
REFUSAL_WARNING = "or its provider refused to answer because of the content of the request."
"""End of the warning event of a refusal."""
LONGER = "A larger max_output_tokens allows a longer one."
CUT_OFF = "The model's provider stopped the answer here because of its content."

_CALL_MARK = re.compile(r"[{\[<]")
_KEYS = frozenset({"finishreason", "stopreason", "donereason", "completionreason"})
"""Metadata keys of the finish reason, in lower case without underscores."""


def _repeated(*reasons: str) -> re.Pattern[str]:
    # A reason in two chunks of a stream occurs twice, because LangChain concatenates strings of chunks.
    return re.compile(f"(?:{'|'.join(reasons)})+")


_REASONS: dict[CutOff, re.Pattern[str]] = {
    "length": _repeated(
        "length|max_length|model_length|max_(?:output_|new_|completion_)?tokens|token_limit",
        "(?:model_)?context_(?:window|length)_exceeded",
    ),
    "content_filter": _repeated(
        "blocklist|content_filter(?:ed)?|error_toxic|guardrail_intervened|(?:image_)?prohibited_content|recitation",
        "refusal|(?:image_)?safety|sensitive|spii",
    ),
    "interrupted": _repeated(
        "abort(?:ed)?|cancell?ed|error(?:_limit)?|failed|incomplete|insufficient_system_resource",
        "malformed_(?:function_call|model_output|tool_use)|network_error|time(?:out|_limit)",
    ),
}


def cut_off(reply: AIMessage) -> CutOff | None:
    """Return the cause of a cut-off reply; None if the reply is complete or its end is unknown.

    A reply is also cut off if the arguments of a call end inside a value, regardless of the finish reason.
    """
    for reason in _reasons(reply.response_metadata):
        for kind, pattern in _REASONS.items():
            if pattern.fullmatch(reason):
                return kind
    if reply.response_metadata.get(INCOMPLETE) or any(
        _ends_inside_value(call["args"] or "") for call in reply.invalid_tool_calls
    ):
        return "interrupted"
    return None


def cause_of(cut: CutOff, reply: AIMessage, max_tokens: int | None = None) -> str:
    """Return the cause, as `cut_off` found it, as the end of a sentence that starts with "was cut off"."""
    match cut:
        case "length":
            if max_tokens is not None:
                return f"at the longest length allowed, {max_tokens:,} tokens"
            used = reply.usage_metadata["output_tokens"] if reply.usage_metadata else 0
            return f"at the longest length allowed, after {used:,} tokens" if used else "at the longest length allowed"
        case "content_filter":
            return "by the provider's content filter"
        case "interrupted":
            interrupted = _REASONS["interrupted"]
            reason = next(filter(interrupted.fullmatch, _reasons(reply.response_metadata)), "")
            return f"by the provider ({reason})" if reason else "before it was complete"
        case _:
            assert_never(cut)


def cut_off_warning(cut: CutOff, answer: AIMessage, max_tokens: int | None = None) -> str:
    """Return the warning to the user about a cut-off answer; arguments as for `cause_of`."""
    warning = f"The answer was cut off {cause_of(cut, answer, max_tokens)}."
    return f"{warning} {LONGER}" if cut == "length" else warning


def mark_incomplete(reply: AIMessage, arguments: Iterable[str], *, streamed: bool = True) -> AIMessage:
    """Mark a streamed reply as incomplete if its stream ended inside a call.

    LangChain completes the arguments of streamed calls, so the reply itself does not show it.
    """
    given = any(True for _ in _reasons(reply.response_metadata))
    if any(_ends_inside_value(raw) or (not given and not _is_whole(raw)) for raw in arguments):
        key = INCOMPLETE
    elif (
        streamed and not given and not reply.tool_calls and (_ends_with_reason(reply) or _CALL_MARK.search(reply.text))
    ):
        key = UNENDED
    else:
        return reply
    return reply.model_copy(update={"response_metadata": {**reply.response_metadata, key: True}})


def answer_cut_off(answer: AIMessage) -> CutOff | None:
    """Return the cause of a cut-off answer, which has no calls; None if it is complete or its end is unknown.

    Streams of OpenAI's and Anthropic's API end with a finish reason. One without it has lost its connection.
    """
    lost = answer.response_metadata.get(UNENDED) and _ends_with_reason(answer)
    return cut_off(answer) or ("interrupted" if lost else None)


def _ends_with_reason(reply: AIMessage) -> bool:
    return reply.response_metadata.get("model_provider") in {"anthropic", "openai"}


def text_cut_off(reply: AIMessage, *, unclosed: bool, partial: bool) -> CutOff | None:
    """Return the cause of a cut-off reply whose calls are in its text; None if it is complete.

    An `unclosed` call is repaired, except in a stream without a finish reason; `partial` is a text that ends inside a
    value of a call.
    """
    ended = partial or (unclosed and bool(reply.response_metadata.get(UNENDED)))
    return cut_off(reply) or ("interrupted" if ended else None)


def refusal_text(reply: AIMessage, *, visible: bool) -> str | None:
    """Return the text to the user for a reply that refuses; None if the reply does not refuse.

    It is the provider's if it gives one, else a sentence, below the text so far if that is `visible` to the user.
    """
    if text := _refusal_of(reply):
        return text
    if cut_off(reply) != "content_filter":
        return None
    return f"{reply.text}\n\n{CUT_OFF}" if visible and reply.text.strip() else REFUSED


def is_content_refusal(error: BaseException) -> bool:
    """Whether an exception reports that the provider's content filter refused the request."""
    return classify_model_error(error) == "content_filter"


def _refusal_of(reply: AIMessage) -> str:
    """Return OpenAI's refusal, from `additional_kwargs` or the content blocks; empty if there is none."""
    refusal: Any = reply.additional_kwargs.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        return refusal
    blocks = reply.content if isinstance(reply.content, list) else []
    return "".join(
        str(block.get("refusal", "")) for block in blocks if isinstance(block, dict) and block.get("type") == "refusal"
    )


def _reasons(metadata: dict[str, Any]) -> Iterator[str]:
    """Yield the finish reasons in a reply's metadata, in lower case."""
    details = metadata.get("incomplete_details")
    if isinstance(details, dict) and isinstance(details.get("reason"), str):
        yield _plain(details["reason"])
    for key, value in metadata.items():
        given = getattr(value, "name", value)
        if isinstance(given, str) and given and key.replace("_", "").casefold() in _KEYS:
            yield _plain(given)
    # The status of the Responses API.
    if isinstance(status := metadata.get("status"), str):
        yield _plain(status)


def _plain(reason: str) -> str:
    # Some clients give the name of an enum member, such as FinishReason.MAX_TOKENS.
    return reason.rpartition(".")[2].casefold().replace("-", "_").replace(" ", "_")


def _ends_inside_value(raw: str) -> bool:
    """Whether JSON ends inside a value: a model that omits a bracket still ends its values."""
    return bool(raw.strip()) and arguments_end_inside_value(raw)


def _is_whole(raw: str) -> bool:
    """Whether arguments are closed, even if damaged; a call without arguments has an empty text."""
    text = raw.strip()
    read = read_json(text, WorkBudget(len(text))) if text else None
    return read is None or read.complete
