"""Matches the published tags around calls, with cached lookups in the text of one answer.

=====================================  ======================================================================
``<tool_call>``                        Hermes (Nous Research), Qwen 2.5 and 3 and Qwen3-Coder (Alibaba), GLM 4.5
                                       (Z.ai), Granite 3.1 and later (IBM); ``<function_call>`` Granite 20B
``<tool_calls>``                       Hunyuan (Tencent), Hy3 with ``<tool_sep>``, MiniMax M1, Jamba (AI21);
                                       ``<TOOLCALL>`` Nemotron, ``<longcat_tool_call>`` LongCat (Meituan)
``<function_calls>``, ``<invoke>``     Anthropic; prefixed by MiniMax M2, Step 3 (StepFun) and, with ``｜DSML｜`` or
                                       ``|DSML|``, DeepSeek V3.2 and V4; ``]<]minimax[>[`` before each tag: MiniMax M3
``<function name="…"><param …>``       MiniCPM 5 (OpenBMB)
``<function=name>``                    Llama 3.1 (Meta), Qwen3-Coder, Seed-OSS (ByteDance)
``[TOOL_CALLS]``                       Mistral: a list up to tokenizer v7, ``name[ARGS]{…}`` or ``name{…}`` since v11
``<|python_tag|>``                     Llama 3 (Meta)
``<｜tool▁calls▁begin｜>``             DeepSeek V3, R1 and V3.1
``<|tool_calls_section_begin|>``       Kimi K2 (Moonshot AI), docs/tool_call_guidance.md of the model
``<|tool_call|>``                      Granite 3.0 (IBM), Phi-4-mini (Microsoft), which also writes ``functools[…]``
``<|tool_call_start|>``                LFM2 (Liquid AI)
``<|action_start|>``                   InternLM 2 (Shanghai AI Laboratory); ``<|START_ACTION|>`` Command A (Cohere)
``<|tool_call>call:name{…}``           Gemma 4 (Google); ``<start_function_call>`` FunctionGemma
``<|channel|>commentary to=…``         gpt-oss (OpenAI, the harmony format)
``<|open|>call tool="…"<|sep|>``       Kimi K3 (Moonshot AI)
``<|tools_prefix|>[{"name": {…}}]``    Apertus (Swiss AI); ``<|python_start|>`` Llama 4; ``[unused11]`` openPangu
=====================================  ======================================================================

The forms are those of the models' chat templates on huggingface.co, cross-checked with the tool parsers of vLLM
(docs.vllm.ai, "Tool Calling") and SGLang (``python/sglang/srt/function_call``).
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import NamedTuple

from graph_agent.base._internal.lenient_json import ParsedValue, WorkBudget, read_json, repair_json
from graph_agent.base.types import MAX_DEPTH
from graph_agent.models.wire.parsing.shapes import ParseContext
from graph_agent.models.wire.parsing.turns import SPEAKER_START, TURN

_TOKEN = re.compile(
    rf"""
    [{{}}\[\]]
    # Possessive, and the closing quote optional: an unclosed string runs to the end instead of being tried again.
    | "[^"\\]*+(?>(?:\\.[^"\\]*+)*)"?
    # An apostrophe opens a string only where a value may start, and closes it only where a value may end.
    | (?<=[\s{{\[(,:=])'(?>(?:[^'\\]++|\\.|'(?!\s*+(?:[,:}}\])]|\Z)))*)'?
    | (?<!:)//[^\n]*+
    | /\*[^*]*+(?>(?:\*(?!/)[^*]*+)*)(?:\*/)?
    # JSON holds none of these outside strings: a tag, a fence or another turn ends a truncated value.
    | (?P<stop></?[A-Za-z|｜] | ``` | {SPEAKER_START})
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENER = {"}": "{", "]": "["}
_STEPS, _CHARACTERS_A_STEP = 8, 8


class Extent(NamedTuple):
    """Where the value that begins with an opening bracket ends."""

    end: int
    """Index after the closing bracket; for an unclosed bracket, the end of the text that may belong to the value."""
    closed: bool
    """Whether the bracket's own closing bracket was found."""
    depth: int
    """Depth of further brackets inside; 0 if there are none."""
    last_close: int
    """Index after the last bracket that closes inside; the opening bracket's own index if none does."""


class Extents:
    """Finds where brackets in one text end, and caches it. The work is taken from a budget."""

    def __init__(self, text: str, work: WorkBudget) -> None:
        self._text = text
        self._work = work
        self._known: dict[int, Extent] = {}

    def at(self, start: int) -> Extent:
        """Return the extent of the bracket (``{`` or ``[``) at ``start``; an empty one if the budget is used up."""
        known = self._known.get(start)
        if known is None and self._work.left > _STEPS:
            self._walk(start)
            known = self._known.get(start)
        return known or Extent(start + 1, closed=False, depth=0, last_close=start)

    def _walk(self, start: int) -> None:
        """Find the ends of all brackets outside of strings from `start` on, until the bracket at `start` is closed, and
        record them.

        Brackets that are still open at a token that ends a region, at the text's end or when the budget is used up are
        recorded as unclosed; so is one inside a bracket of another kind that is closed.
        """
        text, known, find = self._text, self._known, _TOKEN.search
        stack: list[int] = []
        depths: list[int] = []
        opened = {"{": 0, "[": 0}
        position, end, last_close = start, len(text), start

        def close(end: int, *, closed: bool) -> None:
            nonlocal last_close
            at, depth = stack.pop(), depths.pop()
            opened[text[at]] -= 1
            known[at] = Extent(end, closed, depth, max(at, last_close))
            if closed:
                last_close = end
            if depths and depths[-1] <= depth:
                depths[-1] = depth + 1

        steps, allowed = _STEPS, self._work.left
        while steps <= allowed and (token := find(text, position)) is not None:
            steps += 1 + (token.end() - position) // _CHARACTERS_A_STEP
            if token["stop"]:
                end = token.start()
                break
            first = text[token.start()]
            position = token.end()
            if first in opened:
                before = known.get(token.start())
                if before is not None and before.closed:
                    position = last_close = before.end
                    if depths[-1] <= before.depth:
                        depths[-1] = before.depth + 1
                    continue
                stack.append(token.start())
                depths.append(0)
                opened[first] += 1
            elif first in _OPENER and opened[_OPENER[first]]:
                while text[stack[-1]] != _OPENER[first]:
                    close(token.start(), closed=False)
                close(position, closed=True)
                if not stack:
                    break
        while stack:
            close(end, closed=False)
        self._work.take(min(steps, allowed))


# Ends an open region: a closing tag, a special token, a fence.
_REGION_END = re.compile(r"</[A-Za-z｜]|<[|｜]|```")
# A value without one of these words is not a call and contains none.
_HINT = re.compile(r"name|tool|function|action|agent|delegate", re.IGNORECASE)
# Only text that starts with a key is worth a repair: braces in prose are not.
_FIRST_KEY = re.compile(r"""(?:\[\s*+)?\{\s*+["'“]?[\w.-]++["'”]?\s*+:""")


class ValueAt(NamedTuple):
    """A JSON value parsed from the text, and the index after it."""

    read: ParsedValue
    end: int
    """Index after it."""


class ParsedText:
    """One text and the known tool names, with cached searches, so that parsing takes linear time."""

    def __init__(self, text: str, tools: Set[str] | None) -> None:
        self.text = text
        self.tools = tools
        self.work = WorkBudget(len(text))
        # Start and end of the text without surrounding white space.
        self.whole = (len(text) - len(text.lstrip()), len(text.rstrip()))
        self.unclosed_at = self.partial_at = -1
        """Start of the region that ends unclosed with the text, and of the one that ends in a value; -1 without one."""
        self._extents = Extents(text, self.work)
        self._ahead: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}

    def next(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """Return the first match of a pattern at or after ``start``; None without one.

        Cheap if ``start`` only grows.
        """
        asked, match = self._ahead.get(pattern, (-1, None))
        if asked < 0 or start < asked or (match is not None and match.start() < start):
            match = pattern.search(self.text, start)
            self._ahead[pattern] = (start, match)
        return match

    def context(self, *, trusted: bool, delegate: bool = False, complete: bool = True) -> ParseContext:
        """Return the context for judging a value of this text; the parameters are fields of `ParseContext`."""
        return ParseContext(self.tools, self.work, trusted=trusted, delegate=delegate, complete=complete)

    def bracket_end(self, start: int) -> int | None:
        """Return the index after the bracket that closes the one at ``start``; None if it is unclosed."""
        extent = self._extents.at(start)
        return extent.end if extent.closed else None

    def value_end(self, start: int) -> int:
        """Return the index after the value that opens at ``start``; of an unclosed one, the last index it may reach."""
        return self._extents.at(start).end

    def end_without_call(self, start: int) -> int | None:
        """Return the index at which to continue if the bracket at ``start`` cannot contain a call; None if it may."""
        hint = self.next(_HINT, start)
        if hint is None:
            return start + 1
        extent = self._extents.at(start)
        return None if hint.start() < extent.end else extent.end if extent.closed else start + 1

    def value_at(self, start: int, *, region: bool = False) -> ValueAt | None:
        """Parse the JSON object or list at an index, repairing damage; None if it cannot be parsed, or is nested too
        deeply.

        Each possible end is tried as it is, and only then with repairs.

        A value that ends with the text is recorded as unclosed.

        Args:
            start: Index of the opening bracket.
            region: Whether to try the text up to the region's end, too, in case an unclosed quote hides it.
        """
        extent = self._extents.at(start)
        if extent.depth > MAX_DEPTH:
            return None
        ends = [extent.end]
        if not extent.closed and extent.last_close > start:
            # The closing bracket is missing and prose follows.
            ends.append(extent.last_close)
        stop = self.next(_REGION_END, start) if region else None
        turn = None if extent.closed else self.next(TURN, start)
        ends += [found.start() for found in (stop, turn) if found is not None and found.start() < extent.end]
        for read_by in (read_json, repair_json):
            if read_by is repair_json and not _FIRST_KEY.match(self.text, start):
                break
            for end in ends:
                read = read_by(self.text[start:end], self.work)
                if read is not None:
                    if not extent.closed:
                        # A comma before the rest: it is a member that cannot be parsed, not prose.
                        left_out = end < extent.end and self.text[end : extent.end].lstrip().startswith(",")
                        self.note_unclosed(start, extent.end if left_out else end, partial=read.partial or left_out)
                    return ValueAt(read._replace(complete=read.complete and extent.closed), end)
        return None

    def note_unclosed(self, start: int, end: int, *, partial: bool) -> None:
        """Record that a region is unclosed, if the text ends with it.

        Args:
            start: Index at which the region starts.
            end: Index after it.
            partial: Whether it ends inside a value.
        """
        if end >= self.whole[1]:
            self.unclosed_at = start
            self.partial_at = start if partial else self.partial_at

    def region_end(self, start: int) -> int:
        """Return the index at which the region around an index ends: a closing tag, token, fence or turn, or the text's
        end."""
        stops = (self.next(_REGION_END, start), self.next(TURN, start))
        return min((stop.start() for stop in stops if stop is not None), default=len(self.text))


# DeepSeek's tokens use a full-width bar and a low block; distilled models also write the ASCII look-alikes.
_TOKEN_START, _TOKEN_END, _GAP = "<[|｜]", "[|｜]>", "[▁_ ]"

TOOL_NAME_PATTERN = r"[^\W\d][\w.:/-]{0,127}"

_WORDS = r"(?:(?:longcat_)?tool_?calls?|function_?calls?|tool_use|tool_code)(?::[\w-]{1,24})?"
_NAMESPACE = r"(?:\]<\]minimax\[>\[\s*+)?"
"""Matches the token that MiniMax M3 writes before each tag."""
_PREFIX = r"(?:[a-z]{1,16}:|[｜|]DSML[｜|])"
TAG = re.compile(
    rf"{_NAMESPACE}<{_PREFIX}?(?i:{_WORDS})>"
    rf"|{_TOKEN_START}(?:tool_calls?|tool_call_start|python_tag|python_start|function_call|action_start|START_ACTION"
    rf"|tools_prefix|tool{_GAP}calls?(?:_section)?{_GAP}begin){_TOKEN_END}(?:<\|plugin\|>)?"
    r"|<\|tool_call>|<start_function_call>|\[TOOL_CALLS\]|\[unused11\]|functools(?=\[)"
)
"""Opens a region that holds calls in one of several notations, or a nested tag."""

FUNCTION = re.compile(
    rf"""<function(?:=|\ name=)["']?(?P<function>{TOOL_NAME_PATTERN})["']?\s*+>?
    | {_NAMESPACE}<{_PREFIX}?invoke\ name=["']?(?P<invoke>{TOOL_NAME_PATTERN})["']?\s*+>""",
    re.VERBOSE,
)
"""Opens one call with its name; parameters or an object follow."""

FUNCTION_START = re.compile(rf"<function(?:=|\ name=)|{_NAMESPACE}<{_PREFIX}?invoke\ name=")
"""Matches the beginning of ``FUNCTION``."""

MARKUP = rf"{TAG.pattern}|{FUNCTION_START.pattern}|<\|open\|>(?:tools|call)\b|<\|channel\|>commentary\ to="
"""Matches the beginning of a call in a model family's markup, which cannot be part of an answer."""

SEPARATOR = re.compile(
    rf"\s*+(?:\[CALL_ID\](?P<id>[\w-]+))?\s*+(?:(?P<kimi><\|tool_call_argument_begin\|>)"
    r"|<tool_sep(?::[\w-]{1,24})?>"
    rf"|{_TOKEN_START}tool{_GAP}sep{_TOKEN_END}|\[ARGS\])\s*+"
)
"""Separates a name from its arguments: Kimi, Hunyuan, DeepSeek, Mistral."""

DEEPSEEK_TYPE = re.compile(rf"\s*+(?:function|tool)\s*+{_TOKEN_START}tool{_GAP}sep{_TOKEN_END}\s*+(?=[^\W\d]|<)")
"""Matches the type that DeepSeek V3 and R1 write before the name."""

_CLOSER = (
    rf"(?:{_NAMESPACE}</{_PREFIX}?(?i:{_WORDS}|function|invoke|tool|s)>"
    rf"|{_TOKEN_START}(?:/tool_calls?|tool{_GAP}calls?(?:_section)?{_GAP}end|eom_id|eot_id|im_end|end|action_end"
    rf"|END_ACTION|tools_suffix|python_end|end▁of▁sentence){_TOKEN_END}|<tool_call\|>|<end_function_call>"
    r"|\[unused12\])"
)
CLOSE = re.compile(rf"(?:[\s}}\],;]*+(?:```\s*+)?(?={_CLOSER}))?(?>(?:\s*+{_CLOSER})*)")
"""Matches the closing tags after a call, with a surplus bracket or fence before them; also matches nothing."""

PARAMETER = re.compile(
    rf"""\s*+<{_PREFIX}?param(?:eter)?(?:=|\ name=)["']?(?P<key>(?>(?:(?!\ string=)[^<>"'\n]){{1,200}}))"""
    r"""["']?(?:\ string="(?P<string>true|false)")?\s*+>"""
    r"""|\s*+\]<\]minimax\[>\[\s*+<(?!invoke\b)(?P<name>[^\W\d][\w.$-]{0,200})>"""
)
"""Opens one parameter of a ``FUNCTION``."""

PARAMETER_END = re.compile(
    rf"</{_PREFIX}?param(?:eter)?>|\]<\]minimax\[>\[\s*+</(?!invoke>|tool_call>)[\w.$-]{{1,200}}>"
    rf"|(?=<{_PREFIX}?param(?:eter)?[= ]|{_NAMESPACE}</{_PREFIX}?(?:function|invoke|tool_call)>)"
)
"""Ends a parameter's value, even if its closing tag is missing."""

_SUFFIX = r"(?::[\w-]{1,24})?"
ARGUMENT_PAIR = re.compile(rf"\s*+<arg_key{_SUFFIX}>(?P<key>[^<]{{1,200}})</arg_key{_SUFFIX}>\s*+<arg_value{_SUFFIX}>")
ARGUMENT_END = re.compile(rf"</arg_value{_SUFFIX}>|(?=<arg_key{_SUFFIX}>|</tool_call{_SUFFIX}>)")
"""Start and end of one argument in the notation of GLM and Hunyuan."""

FAMILY = re.compile(
    r"<\|(?:channel|start|end|call|return|open|close)\|>|<\|channel>|<channel\|>"
    r"|<\|(?:START|END)_(?:THINKING|RESPONSE|TEXT)\|>|<\|message_sep\|>"
)
"""Matches a token of a family that also writes answers and reasoning between tokens; see ``families``."""


_CODE = re.compile(
    r"""
    py(thon)?[23]? | pycon | ipython | javascript | [cm]?js | jsx | typescript | tsx? | java | kotlin | kts? | scala
    | groovy | go(lang)? | rust | rs | c | h | hpp | cpp | c\+\+ | cxx | csharp | cs | c\# | objc | swift | dart
    | ruby | rb | php | perl | lua | r | julia | haskell | hs | elixir | erlang | clojure | lisp | scheme | ocaml
    | fsharp | zig | nim | (my|pl|postgre)?sql | graphql | bash | sh | shell | zsh | fish | console | powershell
    | ps1 | bat | cmd | dockerfile | makefile | cmake | html | s?css | ya?ml | toml | ini | properties | diff | patch
    | https? | proto(buf)? | hcl | terraform | nix | vim | tex | latex | json-?schema
    """,
    re.VERBOSE | re.IGNORECASE,
)
_CALLS = re.compile(
    r"tools? | (tool_?|function_?)?calls? | tool_(use|code) | function | action", re.VERBOSE | re.IGNORECASE
)
_DELEGATION = re.compile(r"delegat(e|ion)", re.IGNORECASE)
_INFO = re.compile(r"[ \t]*+(?P<language>[A-Za-z][\w.+#-]*+)?")
_END = {mark: re.compile(rf"^[ \t>]*+{mark}{{3,}}[ \t]*+$", re.MULTILINE) for mark in "`~"}
_END_OR_LINE = {mark: re.compile(rf"{mark}{{3}}|\n") for mark in "`~"}


class Fence(NamedTuple):
    """The opening marks of a fenced (Markdown) code block."""

    start: int
    body: int
    """Index after the marks and the language."""
    marks: str
    language: str
    """Language after the marks; empty without one."""

    @property
    def is_code(self) -> bool:
        """Whether the block's language is a programming or data language, so that it has no calls."""
        return code_language(self.language)

    @property
    def is_delegation(self) -> bool:
        """Whether the block's language is `delegate` or `delegation`."""
        return _DELEGATION.fullmatch(self.language) is not None

    @property
    def is_call(self) -> bool:
        """Whether the block's language means that it contains calls or a delegation, such as `tool_call`."""
        return self.is_delegation or _CALLS.fullmatch(self.language) is not None

    def closes(self, opened: Fence) -> bool:
        """Whether these marks close the block that `opened` begins."""
        return not self.language and self.is_as_long_as(opened)

    def is_as_long_as(self, opened: Fence) -> bool:
        """Whether these marks are of the same kind and at least as long; others are content of the block."""
        return self.marks.startswith(opened.marks)


def code_language(language: str) -> bool:
    """Whether a fenced block in this language is program code or data, rather than calls."""
    return _CODE.fullmatch(language) is not None


def read_fence(page: ParsedText, marks: re.Match[str]) -> Fence:
    """Return the fence that begins with the matched marks."""
    info = _INFO.match(page.text, marks.end())
    if info is None:
        return Fence(marks.start(), marks.end(), marks[0], "")
    return Fence(marks.start(), info.end(), marks[0], info["language"] or "")


def code_end(page: ParsedText, fence: Fence) -> int:
    """Return the index after a code block, which may close on its first line; the text's length if it is unclosed."""
    mark = fence.marks[0]
    first = page.next(_END_OR_LINE[mark], fence.body)
    if first is not None and first[0] != "\n":
        return first.end()
    closing = page.next(_END[mark], fence.body)
    return len(page.text) if closing is None else closing.end()
