"""Masking of secrets in logged or displayed text: passwords, keys, tokens and the headers that hold them."""

from __future__ import annotations

import functools
import re

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "cookie", "set-cookie"})
"""Names of headers whose values are secrets, in lower case."""

_TO = r"(?:\\?[\"'])?\s{0,3}[=:]\s{0,3}(?:b(?=[\"']))?"
"""Separator of a name and its value: `name: `, `name=`, `'name': b`."""
_TO_NEXT = r"\\?[\"']\s{0,3},\s{0,3}(?:b(?=[\"']))?"
"""Separator of a name and its value in a tuple: `b'name', b`."""
_SINGLE, _DOUBLE = r"(?:[^'\\]|\\.)+", r'(?:[^"\\]|\\.)+'
_QUOTED = rf"(?:(?<='){_SINGLE}|(?<=\"){_DOUBLE})"
_WORD = r"[^\s'\",;)}\]]+"
_COOKIE = r"(?<![a-z])(?:set-)?cookie2?"
_AUTHORIZATION = r"(?<![a-z])(?:proxy-)?authorization"
_LONG_SCHEME = r"(?:digest|aws4-hmac-sha256|signature|oauth|hawk)"
_SCHEME = rf"(?:(?:bearer|basic|token|apikey|negotiate|ntlm|{_LONG_SCHEME})\s{{1,3}})?"
_PASSWORD = r"\b[\w-]{0,30}(?:password|passwd)"

_NAMED = (
    rf"(?P<cookie>{_COOKIE}(?:{_TO}|{_TO_NEXT})\\?[\"']){_QUOTED}",
    rf"(?P<cookie_line>{_COOKIE}{_TO})[^\s\"'][^\r\n]*",
    rf"(?P<authorization>{_AUTHORIZATION}(?:{_TO}|{_TO_NEXT})\\?[\"']{_SCHEME})(?:{_SINGLE}(?=')|{_DOUBLE}(?=\"))",
    rf"(?P<authorization_line>{_AUTHORIZATION}{_TO}{_LONG_SCHEME}\s{{1,3}})[^\r\n]+",
    rf"(?P<authorization_word>{_AUTHORIZATION}{_TO}{_SCHEME}){_WORD}",
    rf"(?P<api_key>\bx-api-key(?:{_TO}|{_TO_NEXT})\\?[\"']){_QUOTED}",
    rf"(?P<api_key_word>\bx-api-key{_TO}){_WORD}",
    rf"(?P<password>{_PASSWORD}(?:{_TO}|{_TO_NEXT})\\?[\"']){_QUOTED}",
    # The forms of libpq (`host=… password=…`) and of URL queries.
    rf"(?P<password_word>{_PASSWORD}\s{{0,3}}=\s{{0,3}})"
    r"(?![\"'])(?:\\.|[^\s&\\])+?(?=[\"']?[),.;:\]}]{0,3}(?:\s|&|$))",
    r"(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=*-]{6,}",
    r"(?P<field>\b(?:[\w-]{0,30}(?:api[ _-]?key(?: provided)?|token|secret|password|authorization)|key)"
    r"[\"']?\s{0,3}[=:]\s{0,3}[\"']?)"
    r"(?!bearer\b|basic\b)[\w.~+/*-]{6,}",
    # A password may hold a slash or an @; a port number is not a password.
    r"(?P<user>://)[^\s/@:?#'\"]{0,200}:(?!\d{1,5}(?:[/?#\s]|$))[^\s\"']{1,500}(?=@)",
)
_SHAPED = (
    r"(?P<name>://)[^/@\s]{1,200}(?=@)",
    r"(?P<prefix>\b(?:sk|pk|rk|gsk|xai|hf|r8|pplx|ghp|glpat|xox[abp]|lsv2)[-_])[\w*-]{4,}",
    r"(?P<cloud>\b(?:AKIA|ASIA|AIza|ya29\.))[\w-]{10,}",
    r"(?P<jwt>\beyJ)[\w-]{10,}(?:\.[\w-]{1,2000}){0,2}",
    r"(?P<long>\b(?=[A-Za-z]{0,200}\d)(?=\d{0,200}[A-Za-z]))\w{32,}",
)


def mask_secrets(text: str) -> str:
    """Replace text that looks like a key, a token or a password by `***`, and keep its name.

    Long words of letters and digits are masked too, so ids may be masked.
    """
    return _masked(_pattern(*_NAMED, *_SHAPED), text)


def mask_named_secrets(text: str) -> str:
    """Replace the values of named passwords, keys and secret headers by `***`.

    Ids are never masked, so this suits text from this package.
    """
    return _masked(_pattern(*_NAMED), text)


def _masked(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda found: f"{found[found.lastgroup] if found.lastgroup else ''}***", text)


@functools.cache
def _pattern(*alternatives: str) -> re.Pattern[str]:
    # Compiled at first use: most processes mask nothing.
    return re.compile("|".join(alternatives), re.IGNORECASE)
