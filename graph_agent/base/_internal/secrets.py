"""Masks text that looks like a key, token or password, in logs, errors, traces and recorded requests.

A text is first searched for words and prefixes that occur in secrets; patterns are tried only there, so that most texts
take some microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "cookie", "set-cookie"})
"""Names of headers with secret values, in lower case."""

_Span = tuple[int, int, int]
"""Three indexes in a text: where a match begins, where the secret in it begins, and where both end."""

_TO = r"(?:\\?[\"'])?\s{0,3}[=:]\s{0,3}(?:b(?=[\"']))?"
"""Separator of a name and its value: `name: `, `name=`, `'name': b`."""
_TO_NEXT = r"\\?[\"']\s{0,3},\s{0,3}(?:b(?=[\"']))?"
"""Separator of a name and its value in a tuple: `b'name', b`."""
_SINGLE, _DOUBLE = r"(?>(?:[^'\\]++|\\.)+)", r'(?>(?:[^"\\]++|\\.)+)'
_QUOTED = rf"(?:(?<='){_SINGLE}|(?<=\"){_DOUBLE})"
_WORD = r"[^\s'\",;)}\]]+"
_COOKIE = r"(?<![a-z])(?:set-)?cookie2?"
_AUTHORIZATION = r"(?<![a-z])(?:proxy-)?authorization"
_LONG_SCHEME = r"(?:digest|aws4-hmac-sha256|signature|oauth|hawk)"
_SCHEME = rf"(?:(?:bearer|basic|token|apikey|negotiate|ntlm|{_LONG_SCHEME})\s{{1,3}})?"
_PASSWORDS = (
    *("password", "passwd", "passphrase", "mysql_pwd", "passwort", "kennwort", "contraseña", "contrasena"),
    *("mot de passe", "mot_de_passe", "motdepasse", "senha", "wachtwoord", "lösenord", "losenord", "passord"),
    *("adgangskode", "salasana", "hasło", "haslo", "heslo", "jelszó", "jelszo", "parola", "şifre", "sifre"),
    *("пароль", "κωδικός", "密码", "密碼", "口令", "パスワード", "비밀번호", "kata sandi", "mật khẩu"),
)
"""Words for password, in lower case; those of other languages are the words of sign-in forms."""
_PASSWORD = rf"\b[\w-]{{0,30}}(?:{'|'.join(_PASSWORDS)})"
_KEY = r"(?:api|access|account|secret|private|encryption|signing|master|shared[ _-]?access)[ _-]?key"

_NAMED = re.compile(
    "|".join(
        (
            rf"(?P<cookie>{_COOKIE}(?:{_TO}|{_TO_NEXT})\\?[\"']){_QUOTED}",
            rf"(?P<cookie_line>{_COOKIE}{_TO})[^\s\"'][^\r\n]*",
            rf"(?P<authorization>{_AUTHORIZATION}(?:{_TO}|{_TO_NEXT})\\?'{_SCHEME}){_SINGLE}",
            rf"(?P<authorization_double>{_AUTHORIZATION}(?:{_TO}|{_TO_NEXT})\\?\"{_SCHEME}){_DOUBLE}",
            rf"(?P<authorization_line>{_AUTHORIZATION}{_TO}{_LONG_SCHEME}\s{{1,3}})[^\r\n]+",
            rf"(?P<authorization_word>{_AUTHORIZATION}{_TO}{_SCHEME}){_WORD}",
            rf"(?P<api_key>\bx-api-key(?:{_TO}|{_TO_NEXT})\\?[\"']){_QUOTED}",
            rf"(?P<api_key_word>\bx-api-key{_TO}){_WORD}",
            rf"(?P<password>{_PASSWORD}(?:{_TO}|{_TO_NEXT})\\?[\"']){_QUOTED}",
            # The forms of libpq (`host=… password=…`) and of URL queries.
            rf"(?P<password_word>{_PASSWORD}\s{{0,3}}=\s{{0,3}})"
            r"(?![\"'])(?:\\(?:.|(?!.))|[^\s&\\])+?(?=[\"']?[),.;:\]}]{0,3}(?:\s|&|$))",
            r"(?P<scheme>\b(?:bearer|basic)\s{1,9})(?-i:(?=[a-z_.~*-]{0,80}[\dA-Z=+/]))[\w.~+/=*-]{6,}",
            rf"(?P<field>(?:\b(?:[\w-]{{0,30}}(?:{_KEY}(?: provided)?|token|secret|password|authorization)|key|sig)"
            rf"|{_PASSWORD})[\"']?\s{{0,3}}[=:]\s{{0,3}}[\"']?)"
            r"(?!bearer\b|basic\b)[\w.~+/%*-]{6,}(?:={1,2}(?!\w))?",
        )
    ),
    re.IGNORECASE,
)
_AFTER_NAME = re.compile(r"[\w ]{0,9}+(?:\\?[\"'])?\s{0,3}[=:]|\\?[\"']\s{0,3},")
_AFTER_SCHEME = re.compile(r"\s{1,9}(?=[a-z_.~*-]{0,80}[\dA-Z=+/])[\w.~+/=*-]{6}")
_QUOTED_NAME = re.compile(r"[\"']\s{0,3},")
_SCHEMES = dict.fromkeys(("bearer", "basic"), _AFTER_SCHEME)
_NAMES = {
    **dict.fromkeys((*_PASSWORDS, "cookie", "authorization", "token", "secret", "key", "sig"), _AFTER_NAME),
    **_SCHEMES,
}
"""Word in the name of a secret, in lower case → pattern of what follows such a name before its value."""
_LONGEST_NAME = 60
"""Maximum characters of a secret's name before the word in `_NAMES`."""

# A password may hold a slash or an @; a port number is not a password.
_USER = re.compile(r"(?P<user>://)[^\s/@:?#'\"]{0,200}:(?!\d{1,5}(?:[/?#\s]|$))[^\s\"']{1,500}(?=@)")
_ACCOUNT = re.compile(r"(?P<name>://)[^/@\s]{1,200}(?=@)")

_BODY, _MOST = r"[\w*-]{4,}", r"[\w*.-]{16,}"
_PREFIXES = {
    # From the providers' documentation of keys, and from the lists of GitHub's and GitLab's secret scanning.
    **dict.fromkeys(("sk-", "rk-", "pk-", "gsk_", "xai-", "r8_", "pplx-", "csk-", "nvapi-", "tgp_v1_", "lsv2_"), _BODY),
    **dict.fromkeys(("sk_", "rk_", "pk_", "hf_", "jina_", "tvly-", "fw_", "pcsk_", "dapi"), _MOST),
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), _BODY),
    **dict.fromkeys(("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glimt-", "glagent-", "gloas-"), _BODY),
    **dict.fromkeys(("xoxa-", "xoxb-", "xoxp-", "xoxs-", "xoxr-", "xoxe-", "xoxe.", "xapp-", "xoxa_", "xoxb_"), _BODY),
    **dict.fromkeys(("npm_", "dckr_pat_", "rubygems_", "pypi-AgE", "whsec_", "shpat_", "shpca_", "shppa_"), _BODY),
    **dict.fromkeys(("shpss_", "dop_v1_", "doo_v1_", "dor_v1_", "hvs.", "hvb.", "hvr.", "dp.pt.", "dp.st."), _BODY),
    **dict.fromkeys(("glsa_", "glc_", "NRAK-", "pscale_tkn_", "pscale_pw_", "sntrys_", "sntryu_", "sbp_"), _BODY),
    **dict.fromkeys(("lin_api_", "ntn_", "secret_", "figd_", "ATATT3x", "ATBB", "PMAK-", "sq0atp-", "sq0csp-"), _MOST),
    **dict.fromkeys(("SG.", "HRKU-", "nfp_", "GOCSPX-", "AGE-SECRET-KEY-", "aio_", "sl."), _MOST),
    **dict.fromkeys(("AKIA", "ASIA", "ABIA", "ACCA"), r"[A-Z0-9]{12,}"),
    **dict.fromkeys(("AIza", "ya29.", "LTAI", "AKID"), r"[\w-]{10,}"),
    "eyJ": r"[\w-]{10,}(?:\.[\w-]{1,2000}){0,2}",
}
"""Case-sensitive begin of a secret → pattern of the rest of it."""
_STARTS = tuple(_PREFIXES)
_BODIES = {prefix: re.compile(body) for prefix, body in _PREFIXES.items()}
_PIECE = re.compile(r"[A-Za-z0-9][\w*.-]{7,}")
"""Matches text that may begin with a prefix, or contain one after `-` or `.`."""
_FIXED = (
    re.compile(r"hooks\.slack\.com/services/(?P<hook>)[\w/]{8,}"),
    re.compile(
        r"-----BEGIN (?:[A-Z]+ ){0,2}PRIVATE KEY(?: BLOCK)?-----(?P<pem>)"
        r"(?>(?:[^-]++|-(?!----))*)(?:-----END [^\n-]*-----)?"
    ),
    re.compile(r"FlyV1 (?P<fly>)fm[\w,+/=-]{16,}"),
)
_TELEGRAM = re.compile(r"\d{8,10}:AA[\w-]{30,}")
_LONG = re.compile(r"\b(?=[A-Za-z]{0,200}\d)(?=\d{0,200}[A-Za-z])\w{32,}")
_SHORTEST, _PLAIN, _LONG_CHARS = 8, 14, 32
"""Minimum characters of a word that may be a secret: by its prefix, by one without `-`, `_` or `.`, by length alone."""


def mask_secrets(text: str) -> str:
    """Return a text in which everything that looks like a key, token or password is replaced by `***`.

    The name before a secret is kept, as in `password=***`. Words of 32 letters and digits or more are also masked, so
    ids may be.
    """
    return _masked(text, [*_named(text), *_shaped(text)])


def mask_named_secrets(text: str) -> str:
    """Return a text in which passwords, keys and secret headers that follow their name are replaced by `***`.

    Also masks passwords in URLs. Ids are not masked, which suits text that this package writes itself.
    """
    return _masked(text, [*_named(text)])


def _masked(text: str, spans: list[_Span]) -> str:
    """Return a text with the secret part of each span replaced by `***`; of overlapping spans, the first one counts."""
    if not spans:
        return text
    parts, at = list[str](), 0
    # A named secret, which is found first, wins over the shape of its value.
    for begin, secret, end in sorted(spans, key=lambda span: span[0]):
        if begin >= at:
            parts += [text[at:secret], "***"]
            at = end
    return "".join([*parts, text[at:]])


def _named(text: str) -> Iterator[_Span]:
    """Yield the spans of values that follow names of secrets, such as `api_key=`, and of passwords in URLs.

    The names are searched without regard to case. A text with characters that change their length in lower case is
    searched by one slower pattern.
    """
    small = text.lower()
    if len(small) != len(text) or any(letter in text for letter in _FOLDED):
        for found in _NAMED.finditer(text):
            yield _span(found)
    else:
        has_values = "=" in text or ":" in text or _QUOTED_NAME.search(text) is not None
        for name, follows in _NAMES.items() if has_values else _SCHEMES.items():
            at = small.find(name)
            while at >= 0:
                end = at + len(name)
                if follows.match(text, end) and (named := _name_at(text, at)) is not None:
                    yield _span(named)
                    end = max(end, named.end())
                at = small.find(name, end)
    if "://" in text:
        for found in _USER.finditer(text):
            yield _span(found)


_FOLDED = "\u0130\u0131\u017f\u212a"
"""Letters outside ASCII that match an ASCII letter if case is ignored, although their lower case differs."""


def _name_at(text: str, at: int) -> re.Match[str] | None:
    """Return the match of the secret whose name contains the word at an index; None if no such secret is there.

    The name is looked for from at most `_LONGEST_NAME` characters before the index on.
    """
    begin = at
    while begin > max(0, at - _LONGEST_NAME) and (text[begin - 1].isalnum() or text[begin - 1] in "_- "):
        begin -= 1
    while begin <= at:
        if (found := _NAMED.match(text, begin)) is not None:
            return found
        begin += 1
    return None


def _shaped(text: str) -> Iterator[_Span]:
    """Yield the spans of text that has the form of a secret, whatever precedes it.

    These are passwords in URLs, the forms in `_FIXED`, and the secrets that `_in_word` finds in long words.
    """
    if "://" in text:
        for found in _ACCOUNT.finditer(text):
            yield _span(found)
    for pattern in _FIXED:
        for found in pattern.finditer(text):
            yield _span(found)
    at = 0
    for word in text.split():
        if len(word) >= _PLAIN or (len(word) >= _SHORTEST and ("-" in word or "_" in word or "." in word)):
            at = text.index(word, at)
            yield from _in_word(text, at, at + len(word))


def _in_word(text: str, begin: int, end: int) -> Iterator[_Span]:
    """Yield the spans of secrets in one word, from index `begin` to `end`.

    A secret has a known prefix, or is a long mix of letters and digits, or has the form of a Telegram token.
    """
    for piece in _PIECE.finditer(text, begin, end):
        if (start := _prefixed(text, piece.start(), piece.end())) is not None:
            yield start
        elif piece.end() - piece.start() >= _LONG_CHARS:
            yield from ((long.start(), long.start(), long.end()) for long in _LONG.finditer(text, *piece.span()))
    if end - begin >= _LONG_CHARS:
        yield from ((found.start(), found.start(), found.end()) for found in _TELEGRAM.finditer(text, begin, end))


def _prefixed(text: str, begin: int, end: int) -> _Span | None:
    """Return the span of the first secret with a known prefix in `text` from index `begin` to `end`; None if there is
    none. A prefix counts at `begin` and after each `-` and `.`.
    """
    at = begin
    while at < end:
        if text.startswith(_STARTS, at):
            for prefix, body in _BODIES.items():
                if text.startswith(prefix, at) and (found := body.match(text, at + len(prefix))):
                    return at, at + len(prefix), found.end()
        at = min((place + 1 for mark in "-." if (place := text.find(mark, at, end)) >= 0), default=end)
    return None


def _span(found: re.Match[str]) -> _Span:
    assert found.lastgroup is not None
    return found.start(), found.end(found.lastgroup), found.end()
