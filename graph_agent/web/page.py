"""Assembles the page as one HTML file whose Content-Security-Policy permits only its own script and style."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

from graph_agent.base.model_error_text import public_value

_MODULES = (
    *("vendor/preact.js", "vendor/htm.js", "vendor/marked.js", "json.js", "html.js", "dialog.js"),
    *("markdown.js", "reasoning.js", "api.js", "feedback.js", "events.js", "layout.js", "sources.js"),
    *("facts.js", "cases.js", "axis.js", "origins.js", "attachments.js", "detail.js", "turn.js"),
    *("decisions.js", "composer.js", "conversation.js", "actions.js", "sessions.js", "app.js"),
)
"""Scripts of the page; each imports only scripts before it."""
_IMPORT = re.compile(r"""^import (?:(\w+)|\{([^{}]*)\}) from "([^"\n]+)";$""", re.MULTILINE)
"""Matches an import of a script."""
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
"""Matches the word `export` before a definition."""
_COMMENT = re.compile(r"^ *//[^\n]*\n?|^ */\*\*[^\n]*\*/\n", re.MULTILINE)
"""Matches a comment on a line of its own, which is removed from the page; a vendored script's license stays."""
_INDENTATION = re.compile(r"^ +|^\n", re.MULTILINE)
"""Matches leading spaces and empty lines, which are removed from the page."""
_LINE_ENDS = re.compile(r"(?<=[;{>])\n|\n(?=[<})])")
"""Matches line ends that neither a statement nor a template's text needs, which are removed from the page."""
_OPERATORS = re.compile(r" (=>|[!=]==|&&|\|\||[-+]?=|\?\?|[<>]=) ")
"""Matches operators with spaces around them, which are removed from the page; no text that it shows has one."""
_PROGRAMS = "actions.js"
"""The script whose templates are Python programs, so that its white space is kept."""
_EXPORT_LIST = re.compile(r"export ?\{([^{}]*)\};?")
"""Matches a list of exports."""
_MARKUP = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""Character that must not stand in a script element → its escape in JSON."""


@dataclass(frozen=True, slots=True)
class Page:
    """The HTML of a page, and the Content-Security-Policy for it."""

    html: str
    """The whole document."""
    policy: str
    """Value of the `Content-Security-Policy` header."""


def page(config: Mapping[str, Any]) -> Page:
    """Return the page that shows the sessions of an agent.

    Args:
        config: `name` and `description` of the agent, `max_body_bytes` of the server, `memory`, whether the agent
            has one, and `nodes`, which of `tools`, `delegate` and `approve` its graph has. A page for one exported
            session has `export`, the result of `export_of`, in place of the latter three.
    """
    script, style = _script(), _static("page.css")
    directives = [
        "default-src 'none'",
        f"script-src {source_hash(script)}",
        f"style-src {source_hash(style)}",
        "connect-src 'none'" if "export" in config else "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    policy = "; ".join(directives)
    data = json_in_html(config)
    name = str(config["name"]).replace("&", "&amp;").replace("<", "&lt;")
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f'<title>{name}</title><link rel="icon" href="data:,"><style>{style}</style></head><body><div id="page"></div>'
        f'<script type="application/json" id="config">{data}</script><script>{script}</script></body></html>\n'
    )
    # Browsers ignore `frame-ancestors` in a meta element, so only the header has it.
    return Page(html, f"{policy}; frame-ancestors 'none'")


def exported_page(
    session_id: str,
    events: Iterable[Mapping[str, Any]],
    name: str,
    description: str = "",
    *,
    is_interrupted: bool = False,
) -> str:
    """Return one HTML file that shows a session up to its newest event, without a server or a network.

    Args:
        session_id: Id of the session.
        events: The session's events, oldest first. Providers' words in errors are removed.
        name: Name of the agent.
        description: Purpose of the agent.
        is_interrupted: Whether a crash cut off the newest input, and no process runs it.
    """
    data = export_of(session_id, events, is_interrupted=is_interrupted)
    return page({"name": name, "description": description, "export": data}).html


def export_of(session_id: str, events: Iterable[Mapping[str, Any]], *, is_interrupted: bool = False) -> dict[str, Any]:
    """Return the data of one session for a page: `{"session", "events", "now"}`, and `"interrupted": True` if it is.

    `now` is the time of the newest event in milliseconds, because unfinished calls are shown as lasting until then;
    without a timed event it is the current time.

    Args:
        session_id: Id of the session.
        events: The session's events, oldest first. Providers' words in errors are removed.
        is_interrupted: Whether a crash cut off the newest input, and no process runs it.
    """
    shown = [public_value(each) for each in events]
    # Unfinished calls last until the newest event; whether they continued is unknown.
    newest = next((each["ts"] for each in reversed(shown) if "ts" in each), None)
    now = datetime.now(UTC) if newest is None else datetime.fromisoformat(newest)
    data = {"session": session_id, "events": shown, "now": round(now.timestamp() * 1000)}
    return {**data, "interrupted": True} if is_interrupted else data


def json_in_html(value: Any) -> str:
    """Return a value as JSON text that can stand inside a script element of an HTML document, without `<`, `>` and
    `&`.
    """
    # Only `<` could end the element; JSON may escape every character.
    return json.dumps(value, separators=(",", ":")).translate(_MARKUP)


def source_hash(text: str) -> str:
    """Return the expression that permits an inline script or style in a Content-Security-Policy: the SHA-256 of its
    text.
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _static(name: str) -> str:
    """Return the text of a file of the page; cached."""
    return (resources.files("graph_agent.web") / "static" / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """Return the page's script: all modules joined, each in a scope of its own, as a page from a file cannot import
    modules.
    """
    parts = ['"use strict";const modules={};']
    parts += [f"modules[{json.dumps(name)}]=(()=>{{{_as_function(name)}}})();" for name in _MODULES]
    return "\n".join(parts)


def _as_function(name: str) -> str:
    """Return a module as the body of a function that returns its exports.

    Comments and needless white space are removed; vendored scripts, and the script with Python programs, keep their
    white space. The default export, which only one vendored script has, becomes a constant `htm`.
    """
    # Small, because each exported session contains all of it.
    text = _COMMENT.sub("", _static(name))
    is_own = name != _PROGRAMS and not name.startswith("vendor/")
    if is_own:
        text = _INDENTATION.sub("", text)
    folder = name.rpartition("/")[0]
    exports: list[str] = []

    def imported(match: re.Match[str]) -> str:
        """Return the statement that reads the imported names from the table of scripts."""
        default, names, path = match.groups()
        source = f"modules[{json.dumps(f'{folder}/{path}'.removeprefix('/').replace('./', ''))}]"
        return f"const {default}={source}.default;" if default else f"const{{{names.replace(' as ', ':')}}}={source};"

    def exported(match: re.Match[str]) -> str:
        """Note an exported name, and remove the word `export`."""
        exports.append(match[1])
        return ""

    def listed(match: re.Match[str]) -> str:
        """Add the names in a list of exports to `exports`, and return an empty text in its place."""
        for item in match[1].split(","):
            local, _, public = item.strip().partition(" as ")
            exports.append(f"{public}:{local}" if public else local)
        return ""

    text = _EXPORT.sub(exported, _IMPORT.sub(imported, text))
    text = _EXPORT_LIST.sub(listed, text)
    if "export default " in text:
        text = text.replace("export default ", "const htm=")
        exports.append("default:htm")
    if is_own:
        text = _OPERATORS.sub(r"\1", _LINE_ENDS.sub("", text))
    return f"{text}\nreturn{{{','.join(exports)}}};"
