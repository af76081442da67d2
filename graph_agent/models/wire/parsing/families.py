"""Parses the notations of model families that are neither JSON, Python nor XML parameters.

Gemma 4 and FunctionGemma (Google) write ``call:name{key:<|"|>text<|"|>,n:1}``: bare keys, and strings between tokens.
gpt-oss (OpenAI) writes messages to channels: a call is a ``commentary`` message to ``functions.name``, and the answer
is a ``final`` one. Kimi K3 (Moonshot AI) writes elements as ``<|open|>call tool="name"<|sep|>``.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from graph_agent.base._internal.lenient_json import read_json
from graph_agent.base.types import MAX_DEPTH
from graph_agent.models.wire.parsing.tags import TOOL_NAME_PATTERN, ParsedText

GEMMA_CALL = re.compile(rf"\s*+call:\s*+(?P<name>{TOOL_NAME_PATTERN})\s*+(?=\{{)")
"""Matches the beginning of a call of Gemma 4 or FunctionGemma, after its opening tag."""
_GEMMA = re.compile(
    r"""
    [\s,]*+
    (?: (?P<open>[{\[]) | (?P<close>[}\]])
    | (?:<\|"\|>|<escape>)(?P<string>.*?)(?:<\|"\|>|<escape>|(?P<cut>\Z)) (?P<quoted_key>\s*+:)?
    | (?P<key>[\w.$-]++)\s*+:
    | (?P<word>[^\s,{}\[\]<]++(?>(?:\ ++[^\s,{}\[\]<]++)*)) )
    """,
    re.VERBOSE | re.DOTALL,
)

HARMONY = re.compile(
    r"(?:<\|start\|>(?:assistant)?)?(?:\s*+to=(?P<before>[\w.:-]{1,140}+))?\s*+<\|channel\|>(?P<channel>\w++)"
    r"(?:\s++to=(?P<to>[\w.:-]{1,140}+))?[^<>\n]{0,40}+(?:<\|constrain\|>\s*+\w*+\s*+)?<\|message\|>"
)
"""Matches the header of one message of gpt-oss, with the recipient if it is a call."""
_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|(?:start|channel)\|>)")
HARMONY_TAIL = re.compile(r"(?>(?:\s*+<\|(?:end|call|return)\|>)?)")

KIMI_CALL = re.compile(
    rf"""<\|open\|>call\b[^<>]{{0,60}}?\btool="(?P<name>{TOOL_NAME_PATTERN})"[^<>]{{0,60}}<\|sep\|>"""
)
_KIMI_ARGUMENT = re.compile(
    r"""\s*+<\|open\|>(?:argument\b[^<>]{0,80}?\bkey="(?P<key>[^"<>]{1,200})"(?P<rest>[^<>]{0,80})|(?P<json>json\b)[^<>]{0,80})<\|sep\|>"""
)
_KIMI_CLOSE = re.compile(r"<\|close\|>(?:argument|json)<\|sep\|>")
_KIMI_END = re.compile(r"(?>(?:\s*+<\|close\|>(?:call|tools|message)<\|sep\|>)*)")

REASONING_BLOCKS = {
    "<|channel>": "<channel|>",
    "<|open|>think<|sep|>": "<|close|>think<|sep|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
}
"""Token that begins reasoning in a family's notation → token that ends it."""
WRAPPER = re.compile(
    r"<\|(?:open|close)\|>(?:response|tools|message)<\|sep\|>|<\|(?:end|call|return)\|>|<\|start\|>assistant"
    r"|<\|(?:START|END)_(?:RESPONSE|TEXT)\|>|<\|message_sep\|>"
    rf"|{'|'.join(re.escape(token) for pair in REASONING_BLOCKS.items() for token in pair)}"
)
"""Matches a token around the answer or the reasoning in a family's reply, which is not part of the answer."""


class FamilyCall(NamedTuple):
    """One parsed call whose name has not been compared with the known tools yet."""

    name: str
    arguments: dict[str, Any] | None
    """None if they cannot be parsed."""
    end: int
    """Index after the arguments."""


def read_gemma(page: ParsedText, named: re.Match[str]) -> FamilyCall | None:
    """Parse the arguments of a Gemma call; None if they are damaged.

    Arguments that the text cuts off are returned, and recorded in the page as unclosed.

    Args:
        page: The text.
        named: A match of ``GEMMA_CALL``.
    """
    text, start = page.text, named.end()
    root: dict[str, Any] = {}
    stack: list[dict[str, Any] | list[Any]] = [root]
    keys: list[str | None] = [None]
    position, partial = start + 1, False
    while (token := _GEMMA.match(text, position)) is not None and page.work.take(2):
        position, kind = token.end(), token.lastgroup
        top = stack[-1]
        if kind == "close":
            stack.pop()
            keys.pop()
            if not stack:
                return FamilyCall(named["name"], root, position)
            continue
        if token["key"] is not None or token["quoted_key"] is not None:
            if keys[-1] is not None or not isinstance(top, dict):
                return None
            keys[-1] = token["key"] if token["key"] is not None else token["string"]
            continue
        inner: dict[str, Any] | list[Any] = {} if token["open"] == "{" else []
        value: Any = inner
        if token["string"] is not None:
            value, partial = token["string"], token["cut"] is not None
        elif token["word"] is not None:
            value = _word(token["word"])
        if isinstance(top, list):
            top.append(value)
        elif (key := keys[-1]) is None or len(stack) > MAX_DEPTH:
            return None
        else:
            top[key], keys[-1] = value, None
        if token["open"]:
            stack.append(inner)
            keys.append(None)
    page.note_unclosed(start, position, partial=partial or keys[-1] is not None)
    return FamilyCall(named["name"], root, position) if position >= page.whole[1] else None


def _word(text: str) -> Any:
    """Return the value of an unquoted word: a JSON literal, a number (non-finite ones included), or the text itself."""
    literals = {"true": True, "false": False, "null": None}
    if text in literals:
        return literals[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def harmony_end(page: ParsedText, start: int) -> int:
    """Return the index at which the gpt-oss message with the body at ``start`` ends, before its closing token."""
    end = page.next(_HARMONY_END, start)
    return len(page.text) if end is None else end.start()


def read_kimi(page: ParsedText, named: re.Match[str]) -> FamilyCall | None:
    """Parse the arguments of a Kimi K3 call, which are one tag each or one JSON object. A value that is not JSON is
    text.

    In the result, `arguments` is None if they are damaged. A call without its end is recorded in the page as unclosed.

    Args:
        page: The text.
        named: A match of ``KIMI_CALL``.
    """
    text, position, partial = page.text, named.end(), False
    arguments: dict[str, Any] | None = {}
    while (opening := _KIMI_ARGUMENT.match(text, position)) is not None and arguments is not None:
        closing = page.next(_KIMI_CLOSE, opening.end())
        partial = closing is None
        value = text[opening.end() : closing.start() if closing else len(text)]
        position = closing.end() if closing else len(text)
        if opening["json"]:
            read = read_json(value.strip(), page.work)
            partial = partial or (read is not None and read.partial)
            is_read = read is not None and isinstance(read.value, dict) and not (read.partial and closing)
            arguments = read.value if read is not None and is_read else None
        else:
            is_text = 'type="string"' in opening["rest"]
            read = None if is_text else read_json(f"[{value}]", page.work)
            arguments[opening["key"]] = read.value[0] if read is not None and len(read.value) == 1 else value
    closed = _KIMI_END.match(text, position)
    end = closed.end() if closed else position
    if end == position:
        page.note_unclosed(named.start(), position, partial=partial)
    return FamilyCall(named["name"], arguments, end)
