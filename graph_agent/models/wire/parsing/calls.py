"""Parses the calls in a model's answer, and separates the surrounding prose.

A scanner runs once from left to right and parses each region to its end: a tag, a fence, reasoning, a bracket. A tag
inside a JSON string, or JSON inside a code sample, is therefore part of that region.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from graph_agent.base._internal.lenient_json import ParsedValue, arguments_of, read_json
from graph_agent.base.calls import known_name, with_unique_ids
from graph_agent.base.types import Call
from graph_agent.models.wire.parsing import families, tags
from graph_agent.models.wire.parsing.payload import (
    PYTHONIC_LIST,
    Payload,
    after_closing_tags,
    payload_of,
    pythonic_calls,
    read_function,
    read_payload,
)
from graph_agent.models.wire.parsing.shapes import ParseContext, ParsedCall, calls_in, envelope_content, is_envelope
from graph_agent.models.wire.parsing.turns import SPEAKER_LABEL, TURN, ProseEnd, in_quotation, line_end_before

_OPENER = re.compile(
    r"(?P<fence>`{3,}+|~{3,}+)"
    # A bracket only where a value may follow: runs of brackets are skipped at once.
    r"|(?P<brace>\{(?=\s*+[\"'“A-Za-z_/#}]))"
    rf"|(?P<tag>{tags.TAG.pattern})"
    rf"|(?P<function>{tags.FUNCTION_START.pattern})"
    rf"|(?P<family>{tags.FAMILY.pattern})"
    # Reasoning, and tool results that a model repeats or invents.
    r"|(?P<quoted><(?:seed:)?(?:think|thinking|thought|reasoning)>|◁think▷|\[THINK\]"
    r"|<(?:tool_response|tool_results?|function_results?)>|\[TOOL_RESULTS\]|\[AVAILABLE_TOOLS\])"
    r"|(?P<reasoned></(?:seed:)?think>|</thinking>|◁/think▷|\[/THINK\])"
    r"|(?P<bracket>\[(?=\s*+[{\"'\-\dA-Za-z_]))"
)
_SPACE = re.compile(r"\s*+")
_SEPARATORS = re.compile(r"[\s,;]*+")
# Marks a bracket as part of a program or of other JSON: an assignment, a call, a return, a key.
_CODE_BEFORE = re.compile(r"(?:=>?|\breturn|[\w)\]]\(|[\"']\s*:)\s*\Z")
_LOOK_BACK = 40
_ENVELOPE = re.compile(r"""\{\s*+["'“]?tool_calls["'”]?\s*+:\s*+\[""")
_TOKEN = re.compile(r"<[|｜]|<start_|\[TOOL|\[unused|\]<\]")
_QUOTES = ("`", '"', "'", "“", "«")


class Cut(NamedTuple):
    """A part of the text that is removed from the prose, because it is a call or its tags."""

    start: int
    end: int
    prose: str = ""
    """Text that replaces the part: the content of a message written completely as JSON; otherwise empty."""


class Scanner:
    """Parses one text in a single pass from left to right. `run` fills the attributes.

    Args:
        page: The text, with the known tool names. One scanner serves one text.
    """

    def __init__(self, page: tags.ParsedText) -> None:
        self.found: list[ParsedCall] = []
        self.cuts: list[Cut] = []
        self.unclosed = False
        """Whether the text ends in a call without its closing bracket or tag."""
        self.partial = False
        """Whether the text ends inside a value of a call."""
        self.end: int | None = None
        """Index of the reply's end, after which the model invents a result or turn; None if it is the text's end."""
        self._page = page
        self._text = page.text
        self._fence: tags.Fence | None = None
        self._cuts_before_fence = 0
        # Start of a tag that holds only other tags, and the required start of the first of them.
        self._lead = (0, -1)
        self._reasoned = False
        self._data_end = 0
        self.damage: list[Cut] = []
        """Parts with calls that cannot be parsed, each up to the next call or the end of the text."""
        self._damaged_at = -1
        # Whether a call, readable or not, has begun; a marker of a turn may follow it.
        self._called = False
        self._call_end = -1
        self._prose_end = ProseEnd().end(page.text)

    def run(self) -> None:
        """Parse the text up to an invented result or turn; fill ``found`` and ``cuts`` in text order.

        At the end, a damaged call that is still open is closed, and so is an open fenced block, which is cut if it has
        only calls.
        """
        position = 0
        while (opener := _OPENER.search(self._text, position)) is not None:
            if (after := self._turn_before(position, opener.start())) is not None:
                if self.end is not None:
                    break
                position = after
                continue
            match opener.lastgroup:
                case "brace" | "bracket":
                    position = self._bracket(opener.start())
                case "fence":
                    position = self._fence_marks(opener)
                case "tag":
                    position = self._tag(opener)
                case "function":
                    position = self._function(opener)
                case "family":
                    position = self._family(opener)
                case "quoted":
                    position = self._quoted(opener)
                case _:
                    position = self._reasoned_end(opener)
        else:
            while (after := self._turn_before(position, len(self._text))) is not None and self.end is None:
                position = after
        end = len(self._text) if self.end is None else self.end
        self._close_damage(end)
        self._close_fence(end, end)

    def _turn_before(self, start: int, stop: int) -> int | None:
        """Return the index after the first marker of an invented result or turn between two indexes; None if there is
        none.

        Most markers count only after a call. A marker that ends the reply sets ``end``; one in a quotation does not. A
        fenced block that contains a marker and no call is a quotation, and is skipped.
        """
        prose_end = self._prose_end
        turn = self._page.next(TURN, start) if self._called else None
        if turn is not None and turn.start() > stop:
            turn = None
        if start == self._call_end and SPEAKER_LABEL.match(self._text, start):
            self.end = line_end_before(self._text, start)
            return start
        if prose_end is not None and start <= prose_end <= stop and (turn is None or prose_end <= turn.start()):
            self.end = prose_end
            return prose_end
        if turn is None:
            return None
        fence = self._fence
        if fence is not None and len(self.cuts) == self._cuts_before_fence:
            self._fence = None
            return max(tags.code_end(self._page, fence), turn.end())
        if not in_quotation(self._text, turn.start()):
            self.end = line_end_before(self._text, turn.start())
        return turn.end()

    def _record(self, start: int, end: int, calls: Sequence[ParsedCall], prose: str = "") -> int:
        """Record the calls in a region, and cut the region, its backticks and tags before it that belong to it
        (`_lead`) from the prose.

        `unclosed` and `partial` are set by the newest region.

        Args:
            start: Index at which the region starts.
            end: Index after it.
            calls: The calls; empty for markup without a call.
            prose: Text that replaces the region.

        Returns:
            The index at which the scan continues.
        """
        self.unclosed = bool(calls) and start <= self._page.unclosed_at < end
        self.partial = bool(calls) and start <= self._page.partial_at < end
        begin, expected = self._lead
        begin, end = self._with_backticks(begin if expected == start else start, end)
        self.found += calls
        if calls:
            self._close_damage(begin)
            self._called, self._call_end = True, end
        self.cuts.append(Cut(begin, end, prose))
        return end

    def _with_backticks(self, start: int, end: int) -> tuple[int, int]:
        """Extend a region by a backtick at each end, if it is inline code and not in a fenced block."""
        if self._fence is None and self._text.endswith("`", 0, start) and self._text.startswith("`", end):
            return start - 1, end + 1
        return start, end

    def _record_payload(self, opener: re.Match[str], payload: Payload | None) -> int:
        """Record the calls after an opening tag, and return where the scan continues.

        Without calls, the tag is noted as damage (a call that cannot be parsed) if it begins a line, or is a special
        token that is not in quotes; the scan then continues after it.
        """
        if payload is None:
            start = opener.start()
            if self._begins_line(start) or (_TOKEN.match(opener[0]) and not self._text.endswith(_QUOTES, 0, start)):
                self._note_damage(start)
            return opener.end()
        return self._record(opener.start(), payload.end, payload.calls)

    def _note_damage(self, start: int) -> None:
        """Record that a call which cannot be parsed begins at an index.

        Only the first such index counts until it is closed.
        """
        self._called = True
        self._damaged_at = start if self._damaged_at < 0 else self._damaged_at

    def _close_damage(self, end: int) -> None:
        """End the damaged part, if there is one, at an index."""
        if 0 <= self._damaged_at < end:
            self.damage.append(Cut(self._damaged_at, end))
        self._damaged_at = -1

    def _begins_line(self, at: int) -> bool:
        """Whether only white space stands before an index in its line."""
        return not self._text[max(0, at - _LOOK_BACK) : at].rpartition("\n")[2].strip()

    def _tag(self, opener: re.Match[str]) -> int:
        """Parse the calls after an opening tag, and return where the scan continues. Before another tag, this tag is
        only remembered, so that it is cut together with the call in the other one.
        """
        inner = _OPENER.match(self._text, self._after_space(opener.end()))
        if inner is None or inner.lastgroup not in ("tag", "function"):
            return self._record_payload(opener, read_payload(self._page, opener.end()))
        begin, expected = self._lead
        self._lead = (begin if expected == opener.start() else opener.start(), inner.start())
        return inner.start()

    def _function(self, opener: re.Match[str]) -> int:
        """Parse the call of a tag that has the tool's name, and return where the scan continues."""
        named = tags.FUNCTION.match(self._text, opener.start())
        if named is None:
            return opener.end()
        name = named["function"] or named["invoke"]
        return self._record_payload(opener, read_function(self._page, name, named.end()))

    def _family(self, opener: re.Match[str]) -> int:
        """Parse the notation of one model family, and return where the scan continues.

        Reasoning blocks and markers without a call are cut; arguments that cannot be parsed are noted as damage, i.e. a
        call that is left out of the visible text.
        """
        page, start = self._page, opener.start()
        if (message := families.HARMONY.match(self._text, start)) is not None:
            return self._harmony(message)
        if (named := families.KIMI_CALL.match(self._text, start)) is not None:
            payload = payload_of(page, families.read_kimi(page, named))
            if payload is None:
                self._note_damage(start)
            return self._record_payload(opener, payload)
        wrapper = families.WRAPPER.match(self._text, start)
        if wrapper is None:
            return opener.end()
        end, closing = wrapper.end(), families.REASONING_BLOCKS.get(wrapper[0])
        if closing is not None:
            closed = self._text.find(closing, end)
            end = len(self._text) if closed < 0 else closed + len(closing)
        return self._record(start, end, ())

    def _harmony(self, message: re.Match[str]) -> int:
        """Parse a message of gpt-oss: a call, reasoning, or text for the user, of which only the header is cut.
        Reasoning is cut; a call with damaged arguments is noted as damage.

        Returns the index at which the scan continues.
        """
        page, start, end = self._page, message.start(), message.end()
        to = message["to"] or message["before"]
        if to is None and message["channel"] != "analysis":
            return self._record(start, end, ())
        body_end = families.harmony_end(page, end)
        tail = families.HARMONY_TAIL.match(self._text, body_end)
        after = tail.end() if tail else body_end
        if to is None:
            return self._record(start, after, ())
        body = self._text[end:body_end].strip()
        read = read_json(body, page.work) if body else ParsedValue({}, complete=True)
        arguments = None if read is None else arguments_of(read.value, page.work, strict=True)
        if read is None or arguments is None or (read.partial and after > body_end):
            self._note_damage(start)
            return end
        if not read.complete or body_end == len(self._text):
            page.note_unclosed(start, body_end, partial=read.partial)
        return self._record(start, after, [ParsedCall(known_name(to, page.tools), arguments)])

    def _quoted(self, opener: re.Match[str]) -> int:
        """Skip reasoning, or a tool result that the model repeats, and return where the scan continues."""
        self._reasoned = True
        mark = opener[0]
        closing = self._page.next(re.compile(re.escape(f"{mark[0]}/{mark[1:]}")), opener.end())
        if closing is not None:
            end = closing.end()
            return end if self._prose_end is None else min(end, max(self._prose_end, opener.end()))
        # Unclosed reasoning extends to the end of the text; in the middle of a line it is a mention of the tag.
        return len(self._text) if self._begins_line(opener.start()) else opener.end()

    def _reasoned_end(self, closing: re.Match[str]) -> int:
        """Handle the end of reasoning whose beginning is not in the text, and return the index after it. At the first
        one, everything before it is discarded, calls included.
        """
        # The templates of some models open the reasoning in the prompt: all text so far belongs to it.
        if not self._reasoned:
            self._reasoned = True
            self.found.clear()
            self.cuts.clear()
            self.damage.clear()
            self._called, self._damaged_at = False, -1
            self.unclosed = self.partial = False
            self._fence = None
        return closing.end()

    def _fence_marks(self, marks: re.Match[str]) -> int:
        """Process the marks of a fenced block, and return where the scan continues.

        Marks that are too short to close the open block are text. Marks that close it end it, and it is cut if it has
        only calls. Others open a block: program code is skipped as a whole, and the calls of a block for calls are
        recorded.
        """
        fence = tags.read_fence(self._page, marks)
        if self._fence is not None:
            if not fence.is_as_long_as(self._fence):
                return marks.end()
            if fence.closes(self._fence):
                self._close_fence(marks.start(), marks.end())
                return marks.end()
        if fence.is_code:
            self._fence = None
            return tags.code_end(self._page, fence)
        self._fence, self._cuts_before_fence = fence, len(self.cuts)
        if fence.is_call and not _OPENER.match(self._text, self._after_space(fence.body)):
            payload = read_payload(self._page, fence.body)
            if payload is not None:
                return self._record(fence.body, payload.end, payload.calls)
        return fence.body

    def _close_fence(self, start: int, end: int) -> None:
        """Cut the open fenced block together with its marks if it has only calls.

        Args:
            start: Index at which the closing marks start, or the text's end.
            end: Index after them.
        """
        fence, self._fence = self._fence, None
        inside = self.cuts[self._cuts_before_fence :]
        if fence is None or not inside:
            return
        gaps = zip((fence.body, *(cut.end for cut in inside)), (*(cut.start for cut in inside), start), strict=True)
        if all(_SEPARATORS.fullmatch(self._text, *gap) for gap in gaps):
            prose = "".join(cut.prose for cut in inside)
            self.cuts[self._cuts_before_fence :] = [Cut(fence.start, end, prose)]

    def _bracket(self, start: int) -> int:
        """Read the value at an opening bracket, record its calls or its damage, and return where the scan continues.

        The value is JSON or a Pythonic list of calls. Calls count in a block of calls, in an envelope, or if the value
        stands alone; other values are skipped as text. An envelope that cannot be parsed and begins a line is damage.
        """
        page, fence = self._page, self._fence
        trusted = fence is not None and fence.is_call
        if PYTHONIC_LIST.match(self._text, start):
            return self._pythonic(start, trusted=trusted)
        if not trusted and (end := page.end_without_call(start)) is not None:
            return end
        at = page.value_at(start, region=fence is not None)
        is_own = _ENVELOPE.match(self._text, start) is not None and self._begins_line(start)
        if at is None:
            if is_own:
                self._note_damage(start)
            return start + 1
        value, complete = at.read.value, at.read.complete
        delegate = fence is not None and fence.is_delegation
        calls = calls_in(value, page.context(trusted=trusted, delegate=delegate, complete=complete))
        if is_own and not calls and not complete:
            self._note_damage(start)
            return max(at.end, start + 1)
        if calls is not None and (trusted or is_envelope(value) or self._is_standalone(start, at.end)):
            return self._record(start, after_closing_tags(page, at.end), calls, envelope_content(value))
        if not self._called and page.next(TURN, at.end) is not None and self._begins_line(start):
            # A call of an unknown tool; its result is an invention too.
            of_any_tool = ParseContext(None, page.work, delegate=delegate, complete=complete)
            self._called = calls_in(value, of_any_tool) is not None
        if complete and at.read.certain:
            return at.end
        # A truncated or guessed value may be prose that starts like a value; a bare object in it is more likely data
        # than a call, but an envelope still counts.
        self._data_end = max(self._data_end, at.end if at.read.certain else 0)
        return start + 1

    def _pythonic(self, start: int, *, trusted: bool) -> int:
        """Parse a list of calls in Python's notation at an opening bracket, and return where the scan continues.

        Outside of a block for calls, only calls of known tools count, in a list that stands alone; if no tools are
        known, only a list that is the whole text.

        Args:
            start: Index of the bracket.
            trusted: Whether a call of any name counts, because the list is in a block for calls.
        """
        page = self._page
        end = page.bracket_end(start)
        if end is None:
            return start + 1
        # Without known names Python in prose may be anything; only an answer that is nothing else is a call.
        if page.tools is None and not trusted and page.whole != (start, end):
            return end
        calls = pythonic_calls(self._text, start, end, page.work)
        if calls is None:
            return start + 1
        if page.tools is not None and not trusted:
            calls = [call for call in calls if call.name in page.tools]
        return self._record(start, end, calls) if calls and (trusted or self._is_standalone(start, end)) else end

    def _is_standalone(self, start: int, end: int) -> bool:
        """Whether a bare value is not part of program code or data, and not inline code within an answer."""
        text = self._text
        if start < self._data_end or _CODE_BEFORE.search(text[max(0, start - _LOOK_BACK) : start]):
            return False
        begin, ended = self._with_backticks(start, end)
        return begin == start or self._page.whole == (begin, ended)

    def _after_space(self, start: int) -> int:
        """Return the index after the white space at an index."""
        space = _SPACE.match(self._text, start)
        return space.end() if space else start


# An answer without one of these holds no call, which is the common case.
_ANY_OPENER = re.compile(r"[{\[<`~◁]")


def parse_tool_calls(text: str, tools: list[str] | None = None) -> list[Call]:
    """Return the calls that a model wrote in the text of an answer, in order; empty if there are none. Never raises.

    Each call has exactly ``id``, ``name`` and ``arguments``; a missing or duplicate id is replaced by a new one.
    ``NaN``, ``Infinity`` and numbers out of range become non-finite floats; the caller must refuse such a call.
    Reasoning (``<think>``), blocks of program code, JSON inside other JSON, and all text after an invented result or
    turn are ignored. The work is bounded by a multiple of the length; damaged text beyond that is prose.

    Args:
        text: The answer, any string.
        tools: The known tool names. A bare JSON object or a bare ``[f(a=1)]`` is a call only if its name is one of
            them; a value in a published tag or in the ``tool_calls`` envelope is a call whatever its name. With None, a
            bare object must have a tool-like name, an object of arguments, and no unexpected keys.
    """
    return split_tool_calls(text, tools)[0]


class TextCalls(NamedTuple):
    """The calls in a text, the prose around them, and how the text ends."""

    calls: list[Call]
    prose: str
    unclosed: bool = False
    """Whether the text ends in a call without its closing bracket or tag."""
    partial: bool = False
    """Whether the text ends inside a value of a call; that call must not be run."""
    end: int | None = None
    """Index of the reply's end, after which the model invents a result or turn; None if it is the text's end."""
    visible: str = ""
    """The prose without the calls that could not be parsed."""
    damaged: bool = False
    """Whether the text has a call that could not be parsed: the markup of a known family, or a damaged envelope."""


def split_tool_calls(text: str, tools: list[str] | None = None) -> tuple[list[Call], str]:
    """Return the calls, as ``parse_tool_calls`` does for the same arguments, and the remaining prose, stripped.

    A call is removed with its tags, and with its fence if a fenced block has nothing else. An envelope that is a whole
    message is replaced by its ``content``.
    """
    read = read_text_calls(text, tools)
    return read.calls, read.prose


def read_text_calls(text: str, tools: list[str] | None = None) -> TextCalls:
    """Parse the calls in a text, like ``split_tool_calls`` with the same arguments, and also report how the text ends.

    `visible` is the prose without damaged calls, too. Calls get unique ids.
    """
    if _ANY_OPENER.search(text) is None:
        return TextCalls([], text.strip(), visible=text.strip())
    scanner = Scanner(tags.ParsedText(text, None if tools is None else frozenset(tools)))
    scanner.run()
    whole, damage = text[: scanner.end], scanner.damage
    prose = _prose(whole, scanner.cuts)
    visible = _FENCE.sub("", _prose(whole, sorted([*scanner.cuts, *damage]))).rstrip() if damage else prose
    calls = [Call(id=call.id or "", name=call.name, arguments=call.arguments) for call in scanner.found]
    ids = with_unique_ids(calls)
    return TextCalls(ids, prose, scanner.unclosed, scanner.partial, scanner.end, visible, bool(damage))


def plan_end(text: str) -> int | None:
    """Return the index after which the text of a plan, or prose, continues with a tool result or turn that the model
    invented.

    None if there is no such continuation.
    """
    if TURN.search(text) is None:
        return None
    end, brace = ProseEnd().end(text), text.find("{", text.rfind("</think>") + 1)
    if brace < 0 or (end is not None and end <= brace):
        return end
    position = tags.ParsedText(text, None).value_end(brace)
    turns = (turn.start() for turn in TURN.finditer(text, position) if not in_quotation(text, turn.start()))
    turn = next(turns, None)
    return None if turn is None else line_end_before(text, turn)


def _prose(text: str, cuts: Sequence[Cut]) -> str:
    """Return a text without its cuts, stripped; words on both sides of a cut stay separated."""
    parts: list[str] = []
    position = 0
    for cut in cuts:
        if cut.start >= position:
            parts += (text[position : cut.start], cut.prose)
        position = max(position, cut.end)
    kept = [part for part in (*parts, text[position:]) if part]
    # Two words separated by a call must not become one.
    joined = [after if before[-1].isspace() or after[0].isspace() else f" {after}" for before, after in pairwise(kept)]
    return "".join((*kept[:1], *joined)).strip()


UNFINISHED = "unfinished_call"
"""Name of an unfinished call whose own name is missing or unknown."""

_OPENING = re.compile(
    rf"{tags.TAG.pattern}|<(?:function|invoke|[a-z]{{1,16}}:invoke|｜DSML｜invoke)(?:=|\ name=)"
    r"|(?:`{3}|~{3})(?:tool|function|action|delegat)\w*"
    r"""|[{\[]\s*+(?:\{\s*+)?["'“]?(?:tool_?calls?|function_?calls?|tool|name|function|action|agent)["'”]?\s*+:"""
)
# A list of calls in Python's notation begins a line; anywhere else it may be a part of a program.
_PYTHONIC = re.compile(r"^[ \t]*+(?P<list>\[)\s*+(?:default_api\.)?(?P<name>[^\W\d][\w.]*+)\s*+\(", re.MULTILINE)
_FENCE = re.compile(r"(?:(?<!`)`{3,}+|(?<!~)~{3,}+)[\w-]*+\s*\Z")
_NAME = re.compile(
    r"""["'](?:name|tool|function|action|function_name|tool_name)["']\s*+:\s*+["']([^"'\s]{1,128})["']"""
)


def unfinished_call(text: str, tools: Collection[str]) -> tuple[str, str] | None:
    """Return the name of the first unfinished call in a text that was cut off, and the prose before it.

    None if there is none. Of a call in Python's notation and another one, the first counts.

    Args:
        text: A cut-off text in which no call can be parsed.
        tools: The known tool names.

    Returns:
        The name, which is `UNFINISHED` if it is not one of `tools`, and the prose.
    """
    opening = _OPENING.search(text)
    if (pythonic := _pythonic(text, tools)) is not None and (opening is None or pythonic.start() < opening.start()):
        return pythonic["name"], _FENCE.sub("", text[: pythonic.start()].rstrip()).rstrip()
    if opening is None:
        return None
    tagged = tags.FUNCTION.match(text, opening.start())
    named = tagged or _NAME.search(text, opening.start())
    name = next((group for group in named.groups() if group in tools), UNFINISHED) if named else UNFINISHED
    prose = text[: opening.start()].rstrip()
    return name, _FENCE.sub("", prose).rstrip()


def _pythonic(text: str, tools: Collection[str]) -> re.Match[str] | None:
    """Return the match of the first list of calls in Python's notation that is not closed.

    Its first name must be a tool in `tools`. None if there is no such list.
    """
    page = tags.ParsedText(text, frozenset(tools))
    found = (match for match in _PYTHONIC.finditer(text) if match["name"] in tools)
    return next((match for match in found if page.bracket_end(match.start("list")) is None), None)
