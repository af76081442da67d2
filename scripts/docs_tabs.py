"""Extends Markdown for the site: flowcharts, and a tab `Without a key` with the script of an example's model.

The replies are in the comment before the example, with which the tests run the page (`tests/support/doc_pages.py`).
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

from graph_agent.base._internal.svg import Edge, graph_svg, image_html

_PARTS = re.compile(
    r"^<!-- (?P<key>script|file|not run|output): (?P<value>.*?) -->\n"
    r"|^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
_EDGE = re.compile(r'^ *(?P<source>\w+) --(?: "(?P<label>[^"]*)" --)?> (?P<target>\w+)$', re.M)
CALL_KEYS = frozenset({"name", "tool_calls"})
"""Keys of which a reply has one if it is a call or has calls; any other object is an answer."""
_VARIABLE = "DEBUG_MOCK_RESPONSES"
_NOTE = "Run this before the example, and before the ones that follow up to the next such tab:"


_BEFORE_FENCES = 100
"""Priority of the preprocessor; that of the extension which reads fenced blocks is 25."""


def makeExtension(**_: Any) -> Extension:  # noqa: N802 - Python-Markdown looks this name up
    """Return the extension; Python-Markdown calls this function."""
    return _Tabs()


class _Tabs(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name of Python-Markdown
        md.preprocessors.register(_TabsBeforeFences(md), "without_a_key", _BEFORE_FENCES)


class _TabsBeforeFences(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return with_tabs("\n".join(lines)).split("\n")


def flowchart(source: str, *_: Any, **__: Any) -> str:
    """Return a flowchart of Mermaid as an image, so that the site loads nothing from another server.

    Args:
        source: Lines of the form `a --> b` and `a -- "label" --> b`; other lines are not drawn.
    """
    edges = [Edge(each["source"], each["target"], each["label"] or "") for each in _EDGE.finditer(source)]
    nodes = dict.fromkeys(name for edge in edges for name in (edge.source, edge.target))
    return image_html(graph_svg({name: name for name in nodes}, edges), "flowchart: " + source)


def with_tabs(markdown: str) -> str:
    """Return a page with tabs, and without the comments that the tests read."""
    replies: list[Any] = []
    comments: set[str] = set()

    def replaced(part: re.Match[str]) -> str:
        nonlocal replies
        if part["key"] is not None:
            if part["key"] == "script":
                replies = json.loads(part["value"])
            comments.add(part["key"])
            return ""
        is_run = part["language"] == "console" or (part["language"] == "python" and "file" not in comments)
        is_run, given = is_run and "not run" not in comments, replies
        comments.clear()
        if not is_run or not given:
            return part[0]
        replies = []
        return f"{_tab('Example', part[0])}\n\n{_tab('Without a key', script_block(part['language'], given))}\n"

    return _PARTS.sub(replaced, markdown)


def script_block(language: str, replies: list[Any]) -> str:
    """Return the code that scripts the model of an example.

    Args:
        language: The example's: `python` or `console`.
        replies: The replies, each a text or a JSON object.
    """
    # An object without calls is an answer, which a model writes as text.
    given = [reply if isinstance(reply, str) or reply.keys() & CALL_KEYS else json.dumps(reply) for reply in replies]
    if language == "console":
        listed = ",\n  ".join(json.dumps(reply) for reply in given)
        array = f"[\n  {listed}\n]"
        code = f"export {_VARIABLE}={shlex.quote(array)}"
    else:
        listed = "".join(f"    {reply!r},\n" for reply in given)
        code = f'import json\nimport os\n\nos.environ["{_VARIABLE}"] = json.dumps([\n{listed}])'
    return f"{_NOTE}\n\n```{language}\n{code}\n```"


def _tab(title: str, content: str) -> str:
    return f'=== "{title}"\n\n{textwrap.indent(content, "    ")}'
