"""Reads the parts of a provider's exception by their names: status, headers, body, codes, words, address, and delay.

The packages of providers use the same few names. An exception is read together with its causes and the members of its
groups, because LangChain's packages wrap the errors of the clients.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from graph_agent.base._internal.failure_log import exception_text, leaves

_READ_CHARS = 20_000
"""Maximum characters that are searched of each text of an error."""
_CAUSES = 6
"""Maximum number of errors that are read: the exception itself, its causes, and members of groups."""
_DEPTH = 4
"""Maximum nesting of objects that are read in a body."""
_CODE_KEYS = frozenset({"code", "type", "__type", "status", "reason", "error_type", "status_code"})
"""Keys of a body, in lower case, whose values are codes."""
_MESSAGE_KEYS = ("message", "Message", "error_message", "errorMessage", "error_msg", "status_msg")
"""Keys of a body whose values are messages, in order of precedence."""
_INNER_KEYS = ("error", "Error", "detail", "message", "base_resp", "errors")
"""Keys of a body whose values may contain the error, in order of precedence."""
_PATHS = re.compile(r"/(?:chat/completions|completions|responses|v1/messages|messages|api/chat|v2/chat)/?\Z")
"""The part of a request's path that follows the base URL."""
_WAIT_IN_TEXT = re.compile(
    r"(?:try again|retry) (?:in|after) (?:(\d{1,4})h)?(?:(\d{1,5})m(?!s))?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?) ?(ms|s\b|seconds?))?"
    r"|(?:retryDelay|retry_after(?:_seconds)?)\W{1,6}(\d{1,9}(?:\.\d{1,9})?)",
    re.IGNORECASE,
)
"""Matches a delay in the text of an error, such as `try again in 1m30s`."""
_WORDLESS = re.compile(r"(?:Error code: )?\d{3}(?: status code)?(?: - (?:\{\}|None|null|''|\"\"))?|Bad Request|")
"""The text of an exception whose response had no body."""


def causes_of(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes (`__cause__`) and the members of exception groups, outermost first; at most 6."""
    waiting = [exc]
    # Bounded, because the causes of an exception may form a circle.
    for _ in range(_CAUSES):
        if not waiting:
            return
        error = waiting.pop(0)
        yield error
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        if error.__cause__ is not None:
            waiting.append(error.__cause__)


def class_names(exc: BaseException) -> set[str]:
    """Return the names of the classes, base classes included, of an exception and its causes."""
    return {cls.__name__ for error in causes_of(exc) for cls in type(error).__mro__}


_CONNECTION_CLASSES = frozenset({"ClientPayloadError", "TransferEncodingError", "ContentLengthError"})
"""Errors of aiohttp for a reply that ended early; their `code` of 400 is not a status sent by the server."""


_LEADING_STATUS = re.compile(r"\[(\d{3})\]")


def _status_in_text(error: BaseException) -> str | None:
    """Return the HTTP status at the beginning of the text of a plain `Exception`, e.g. `[403] …` of NVIDIA's client;
    None if it has none.
    """
    found = _LEADING_STATUS.match(_str(error)) if type(error) is Exception else None
    return None if found is None else found[1]


def status_of(exc: BaseException) -> int | None:
    """Return the HTTP status (400 to 599) that an exception or one of its causes has; None if there is none.

    Attributes, response, body and message are searched, outermost exception first. Errors of aiohttp for a lost
    connection are skipped, because their code is no status of the server.
    """
    for error in causes_of(exc):
        if type(error).__name__ in _CONNECTION_CLASSES:
            continue
        response = getattr(error, "response", None)
        # botocore's response is a dict.
        meta = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        body = _body(error)
        for value in (
            getattr(error, "status_code", None),
            getattr(response, "status_code", None),
            meta.get("HTTPStatusCode"),
            getattr(error, "status", None),
            getattr(error, "code", None),
            body.get("code") if isinstance(body, dict) else None,
            _status_in_text(error),
        ):
            number = _number(value)
            if number is not None and 400 <= number < 600:
                return int(number)
    return None


def codes_of(exc: BaseException) -> list[str]:
    """Return the error codes and types in an exception's `code` and body, in lower case, for comparison with known
    ones."""
    found = [str(getattr(error, "code", None) or "") for error in causes_of(exc)]
    for error in causes_of(exc):
        _collect_codes(_body(error), found, _DEPTH)
    return [code.casefold() for code in found if code]


def _collect_codes(body: Any, found: list[str], depth: int) -> None:
    """Append the codes in a body to `found`, down to `depth` levels: the texts and integers of known keys, each as at
    most 100 characters.
    """
    if depth == 0:
        return
    if isinstance(body, list):
        for each in body[:_CAUSES]:
            _collect_codes(each, found, depth - 1)
    elif isinstance(body, dict):
        for key, value in body.items():
            if isinstance(value, dict | list):
                _collect_codes(value, found, depth - 1)
            elif isinstance(value, str | int) and str(key).casefold() in _CODE_KEYS:
                found.append(str(value)[:100])


def failure_text(exc: BaseException) -> str:
    """Return class names, messages, codes and bodies of an exception and its causes as one text, in which patterns are
    searched.

    One part a line; each is cut to 20,000 characters.
    """
    texts: list[str] = []
    for error in causes_of(exc):
        texts += [type(error).__name__, _str(error), str(getattr(error, "code", None) or "")]
        body = _body(error)
        texts.append("" if body is None else str(body))
    return "\n".join(part[:_READ_CHARS] for part in texts if part)


def provider_message(exc: BaseException) -> str:
    """Return the provider's own message in an exception, without its JSON envelope; empty if the exception has no text.

    - From the body of the outermost cause that has one.
    - Without a body, the exception's own text, followed by the text of its innermost cause unless it contains that
      already.
    - For a group of several exceptions, `exception_text`; for a group of one, that one's message.
    """
    if isinstance(exc, BaseExceptionGroup):
        inner = list(leaves(exc))
        return provider_message(inner[0]) if len(inner) == 1 else exception_text(exc)
    bodies = [body for error in causes_of(exc) if (body := _body(error))]
    if bodies and (words := _words_in(bodies[0])):
        return words
    texts = [text for error in causes_of(exc) if (text := _str(error).strip())]
    return (
        f"{texts[0].rstrip('.')}: {texts[-1]}" if len(texts) > 1 and texts[-1] not in texts[0] else "".join(texts[:1])
    )


def _words_in(body: Any, depth: int = _DEPTH) -> str:
    """Return the message in a body; the body as JSON if it has none. OpenRouter's message is followed by that of the
    provider behind it.

    Args:
        body: An object, a list of one object, or a text.
        depth: Levels of nested objects to search.
    """
    if isinstance(body, str):
        return body
    if isinstance(body, list) and len(body) == 1 and isinstance(body[0], dict) and "error" in body[0]:
        return _words_in(body[0], depth)
    if not isinstance(body, dict) or not depth:
        return json.dumps(body, default=str) if body else ""
    message: str = next((each for key in _MESSAGE_KEYS if isinstance(each := body.get(key), str) and each), "")
    if not message:
        inner = next((each for key in _INNER_KEYS if (each := body.get(key))), None)
        return _words_in(inner, depth - 1) if inner else json.dumps(body, default=str)
    metadata = body.get("metadata")
    # OpenRouter's, with the words of the provider behind it.
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f"{message}: {_words_in(_parsed(raw), depth - 1)}" if isinstance(raw, str) and raw else message


def _parsed(text: str) -> Any:
    """Parse a text as JSON; the text itself if it is none."""
    try:
        return json.loads(text) or text
    except (ValueError, RecursionError):
        return text


def is_wordless(exc: BaseException) -> bool:
    """Whether an exception and its causes have no body and no text beyond an HTTP status."""
    return all(not _body(error) and _WORDLESS.fullmatch(_str(error).strip()) is not None for error in causes_of(exc))


def address_of(exc: BaseException) -> str:
    """Return the base URL of a failed request, without user, path of the API and query; empty if unknown."""
    for error in causes_of(exc):
        try:
            url = urlsplit(str(getattr(getattr(error, "request", None), "url", "")))
        except (RuntimeError, ValueError):
            continue  # httpx raises for an error without a request
        if url.scheme and url.hostname:
            host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
            port = f":{url.port}" if url.port else ""
            return f"{url.scheme}://{host}{port}{_PATHS.sub('', url.path).rstrip('/')}"
    return ""


def header(exc: BaseException, name: str) -> Any:
    """Return a header of the error's response, by its name in lower case; None if it has none."""
    return next((value for error in causes_of(exc) if (value := _headers(error).get(name)) is not None), None)


def retry_after_s(exc: BaseException) -> float | None:
    """Return the retry delay in seconds that the provider requests, at least 0; None if it requests none.

    Read from the header `retry-after-ms`, then the header `retry-after` or else the attribute `retry_after` (seconds or
    a date), then the error's text, such as `try again in 1h2m3s`.
    """
    for error in causes_of(exc):
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
    found = _WAIT_IN_TEXT.search(failure_text(exc))
    if found is None or not any(found.groups()):
        return None
    hours, minutes, amount, unit, delay = found.groups()
    seconds = float(amount or delay or 0) / (1000 if (unit or "").lower() == "ms" else 1)
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds


def _body(error: BaseException) -> Any:
    """Return the decoded body of an exception's response: a dict, a list or a text; None if there is none.

    JSON at the end of the exception's own text counts, too.
    """
    # google-genai names it `details`; LangChain raises the error of a reply as the argument of a `ValueError`.
    for value in (
        getattr(error, "body", None),
        getattr(error, "response", None),
        getattr(error, "details", None),
        *error.args[:1],
    ):
        if isinstance(value, dict | list):
            return value
    body = getattr(error, "body", None) or getattr(error, "response", None)
    if isinstance(body, str):
        return body
    # Packages that use httpx itself write the body at the end of their own text.
    _, brace, rest = _str(error)[:_READ_CHARS].partition("{") if body is not None else ("", "", "")
    found = _parsed(brace + rest)
    return found if isinstance(found, dict) else None


def _headers(error: BaseException) -> Mapping[str, Any]:
    """Return the headers of an exception's response, with names in lower case; empty if it has none."""
    for owner in (getattr(error, "response", None), error):
        headers = getattr(owner, "headers", None)
        if isinstance(headers, Mapping):
            return {str(key).lower(): value for key, value in headers.items()}
    return {}


def _number(value: object) -> float | None:
    """Return a finite number of at least 0 from a number or numeric text; None for anything else, and for a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _str(error: BaseException) -> str:
    """Return the text of an exception; empty if its `__str__` raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a custom __str__ may raise anything
        return ""
