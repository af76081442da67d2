"""Decodes an answer in JSON while it is streamed, so that the reader receives its text."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Sequence

from graph_agent.base._internal.text import clean

_OPENING = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_BEGINNING = '{"answer":"'
_ENVELOPE = re.compile(r"\A\s*(?:(?:`{3,}|~{3,})[\w-]*\s*)?(?=\{)")
_FENCE_END = re.compile(r"\s*+(?:`{3,}+|~{3,}+)?\s*+")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPECIAL = re.compile(r'["\\]')
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SHORT_ESCAPE, _LONG_ESCAPE = 2, 6
_decoder = json.JSONDecoder(strict=False)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first of the stop sequences, as an endpoint with stop sequences would.

    The whole if none occurs.
    """
    ends = [at for sequence in stop if sequence and (at := text.find(sequence)) >= 0]
    return text[: min(ends)] if ends else text


def answer_of_object(text: str) -> str | None:
    """Return the answer in a text that is one JSON object with only the key `answer`, whose value is text; None for any
    other text.

    The object may stand in a Markdown code block.
    """
    if (begin := _ENVELOPE.match(text)) is None:
        return None
    try:
        value, end = _decoder.raw_decode(text, begin.end())
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.keys() != {"answer"} or not isinstance(value["answer"], str):
        return None
    return value["answer"] if _FENCE_END.fullmatch(text, end) else None


class AnswerDecoder:
    """Decodes a streamed reply: of `{"answer": "…"}`, only the answer's text is passed on; all other text is unchanged.

    A reply that does not begin with an object counts as an answer in prose, because the server has ignored the schema.
    One object serves several replies, one after the other (`begin`).

    Args:
        stop: Sequences at which an answer ends. They are not sent to the endpoint, because they would cut the JSON.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = [sequence for sequence in stop if sequence]
        self.begin()

    def begin(self) -> None:
        """Reset the decoder for a new reply."""
        self.is_fed = False
        """Whether any part of the reply was decoded."""
        self.is_answer = False
        """Whether the reply is an object with an answer, so that its text must not be parsed for calls."""
        self.is_prose = False
        """Whether the reply begins with something other than an object."""
        self._begun = False
        """Whether the kind of reply is known."""
        self._ended = False
        """Whether the answer has ended, by its closing quote or a stop sequence."""
        self._undecoded = ""
        self._unread = ""
        """Decoded text that may be the beginning of a stop sequence."""

    def __call__(self, text: str) -> str:
        """Add the next part of the reply, and return the text that can be passed on now; empty if none.

        Prose is returned as it is, up to a stop sequence; an object that is no answer is returned with nothing cut.
        Until the kind of reply is known, and as long as text may be part of an escape or a stop sequence, it is held
        back. Nothing is returned after the answer's end.
        """
        self.is_fed = True
        self._undecoded += text
        if not self._begun:
            self._recognize()
        if not self._begun:
            return ""
        if self._ended:
            return ""
        if self.is_answer:
            return self._until_stop(self._decoded())
        new, self._undecoded = self._undecoded, ""
        return self._until_stop(new) if self.is_prose else new

    def rest(self) -> str:
        """Return the text that was held back until the reply ended, once; an incomplete escape is dropped. Empty if the
        answer's end was read.
        """
        if self._ended:
            return ""
        # Half an escape of an answer that was cut off is dropped.
        held = self._unread + ("" if self.is_answer else self._undecoded)
        self._unread = self._undecoded = ""
        return held

    def _recognize(self) -> None:
        """Decide from the beginning of the reply whether it is an answer in JSON (`is_answer`), prose (`is_prose`) or
        another object, as soon as possible.

        The opening of an answer is removed from the input. Text that begins with `{`, `<` or a backtick is no prose.
        """
        if opening := _OPENING.match(self._undecoded):
            self._begun = self.is_answer = True
            self._undecoded = self._undecoded[opening.end() :]
        elif not _BEGINNING.startswith("".join(self._undecoded.split())):
            self._begun = True
            self.is_prose = not self._undecoded.lstrip().startswith(("{", "<", "`"))

    def _decoded(self) -> str:
        """Decode the complete part of the JSON string, remove it from the input, and return it. A closing quote ends
        the answer; an incomplete escape stays in the input.
        """
        parts: list[str] = []
        text, at = self._undecoded, 0
        while found := _SPECIAL.search(text, at):
            parts.append(text[at : found.start()])
            at = found.start()
            if found[0] == '"':
                self._ended, at = True, len(text)
                break
            if (escape := self._escape(text, at)) is None:
                break
            decoded, at = escape
            parts.append(decoded)
        else:
            parts.append(text[at:])
            at = len(text)
        self._undecoded = text[at:]
        decoded = "".join(parts)
        return clean(_PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), decoded))

    def _escape(self, text: str, at: int) -> tuple[str, int] | None:
        """Return the character of the escape at an index, and the index after it; None while it is incomplete. An
        unknown escape gives the character itself, an invalid number its digits. The first half of a pair is returned
        once its second half is there.

        Args:
            text: The encoded text.
            at: Index of the backslash.
        """
        kind = text[at + 1 : at + _SHORT_ESCAPE]
        if kind in _ESCAPES:
            return _ESCAPES[kind], at + _SHORT_ESCAPE
        if kind != "u":
            return (kind, at + _SHORT_ESCAPE) if kind else None
        digits = text[at + _SHORT_ESCAPE : at + _LONG_ESCAPE]
        if len(digits) < _LONG_ESCAPE - _SHORT_ESCAPE:
            return None
        # `int` alone would accept signs, spaces and underscores.
        if not set(digits) <= {*string.hexdigits}:
            return digits, at + _LONG_ESCAPE
        character = chr(int(digits, 16))
        if "\ud800" <= character <= "\udbff":
            # The second half follows as an escape of its own.
            following = text[at + _LONG_ESCAPE : at + 2 * _LONG_ESCAPE]
            if len(following) < _LONG_ESCAPE and r"\u".startswith(following[:_SHORT_ESCAPE]):
                return None
        return character, at + _LONG_ESCAPE

    def _until_stop(self, new: str) -> str:
        """Return new text up to a stop sequence, which ends the answer; text that may be the beginning of one is held
        back.
        """
        if not self._stop:
            return new
        text, self._unread = self._unread + new, ""
        shown = cut_at_stop(text, self._stop)
        if len(shown) < len(text):
            self._ended = True
            return shown
        if self._ended:
            return text
        held = max(
            (size for sequence in self._stop for size in range(1, len(sequence)) if text.endswith(sequence[:size])),
            default=0,
        )
        if held:
            self._unread = text[-held:]
        return text[: len(text) - held]
