"""Finds where a reply ends: a model may write on with a tool result or with turns that it invents.

A marker is *strong* or *weak*. A strong one is a special token of a chat template, or a form in which the framework
writes results and notices: it ends the reply at the beginning of a line. A weak one, such as `Observation:`, is also
ordinary prose, and ends the reply only behind a call. Neither counts inside a fenced block or a quotation.

The tokens are those of the models' chat templates on huggingface.co.
"""

from __future__ import annotations

import functools
import re

from graph_agent.base._internal.text import REASONING
from graph_agent.base.calls import RESULT_MARKER

_FORMS = (
    f"{RESULT_MARKER} ",
    f"{RESULT_MARKER}>",
    "[Notice from the agent framework",
    "[A notice of the framework",
    "While you were working, the user said:",
)
"""Beginnings of tool results and notices in this framework's own requests."""

_TOKENS = (
    # ChatML (Qwen, SmolLM, Hermes, Yi, InternLM, LFM2) and GPT-2's end of text
    *("<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>"),
    # Llama 3 and 4, Llama 2 and Mistral
    *("<|start_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|header_start|>", "<|eot|>", "<|eom|>", "[INST]", "[/INST]"),
    *("<<SYS>>", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]"),
    # Gemma 1 to 3, FunctionGemma, Gemma 4
    *("<start_of_turn>", "<end_of_turn>", "<start_function_response>", "<|turn>", "<turn|>", "<|tool_response>"),
    # Phi, Zephyr, GLM, Granite, Falcon, EXAONE, Apertus
    *("<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|observation|>", "<|human|>", "<|end|>", "<|bot|>"),
    *("<|start_of_role|>", "<|end_of_role|>", "[|user|]", "[|assistant|]", "[|system|]", "[|tool|]", "[|endofturn|]"),
    *("<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>", "<|system_start|>"),
    # gpt-oss; its replies hold `<|start|>assistant` themselves
    *("<|start|>user", "<|start|>system", "<|start|>developer", "<|start|>functions.", "<|return|>"),
    # DeepSeek, Kimi, Hunyuan, MiniMax, Seed-OSS
    *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>"),
    *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|startoftext|>", "<|extra_0|>", "<|eos|>"),
    *("<｜hy_User｜>", "<｜hy_Assistant｜>", "<｜hy_eos｜>", "<｜hy_place▁holder▁no▁2｜>", "]~b]", "[e~["),
    "<seed:eos>",
    # Command R, Nemotron, LFM2
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|START_TOOL_RESULT|>", "<|USER_TOKEN|>"),
    *("<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"),
    "<|tool_response_start|>",
)
_STRONG = (*_FORMS, *_TOKENS)
_LONGEST = max(map(len, _STRONG))
_INDENT = 8
"""Maximum indentation of a marker."""


def _any_of(literals: tuple[str, ...]) -> str:
    """Return a pattern, without a group, that matches any of these texts, the longest first."""
    return "|".join(map(re.escape, sorted(literals, key=len, reverse=True)))


_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<end_of_turn>"),
    *("<turn|>", "<|end|>", "<｜end▁of▁sentence｜>", "[|endofturn|]", "<|END_OF_TURN_TOKEN|>", "<|return|>"),
    "<｜hy_eos｜>",
)
"""Tokens that end a turn directly after its last word."""

_NEVER = r"(?!)"


@functools.cache
def _at_line(*, turns: bool, markup: str) -> re.Pattern[str]:
    """Return the compiled pattern of the markers that count at the beginning of a line, and of ends that count after
    other text; cached.

    Args:
        turns: Whether markers of invented results and turns count.
        markup: Pattern of further markers; an empty text if there are no others.
    """
    strong, ends = (_any_of(_STRONG), _any_of(_ENDS)) if turns else (_NEVER, _NEVER)
    return re.compile(
        rf"^[ \t]{{0,{_INDENT}}}+(?:(?P<fence>`{{3,}}+|~{{3,}}+)|(?P<turn>{strong}|{markup or _NEVER}))"
        rf"|(?<=\S)(?P<glued>{ends})",
        re.MULTILINE,
    )


_OPEN_MARKUP = re.compile(r"[<\[\]][^>\n]{0,60}\Z")
"""Matches a last line that may become markup."""
TURN_MARK = re.compile(r"[<\[\]`~\n]")
"""Matches a line end, or a character with which a marker other than a word may begin."""
_HARMONY_GOES_ON = "<|start|>assistant"
"""Follows `<|end|>` between two messages of one reply of gpt-oss."""
_AFTER_GLUED = re.compile(r"[ \t]*+(?:\n|\Z|<[|｜])")
_ONLY_ENDS = re.compile(rf"(?>(?:\s|</s>|{_any_of(_ENDS)})*)")

_ASSISTANT = (
    *("<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<start_of_turn>model\n"),
    *("<|header_start|>assistant<|header_end|>\n\n", "<|turn>model\n", "<|assistant|>\n", "<｜Assistant｜>"),
    *("<|start_of_role|>assistant<|end_of_role|>", "[|assistant|]", "<|im_assistant|>assistant<|im_middle|>"),
    *("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|assistant_start|>", "<|assistant|>"),
)
"""Headers of the assistant's turn, which a model with a wrong chat template repeats before its reply."""
_LEADING = re.compile(rf"(?>(?:\s|{_any_of(_ASSISTANT)})*)")

_QUOTES = {'"': '"', "“": "”", "«": "»", "`": "`"}
_QUOTE_REACH = 400
"""Maximum characters between a marker and either end of a quotation around it."""


def leading_length(text: str) -> int | None:
    """Return the length of white space and assistant headers before a reply; None while more of them may follow."""
    leading = _LEADING.match(text)
    at = leading.end() if leading else 0
    rest = text[at : at + _LONGEST]
    if rest and rest[0] not in "<[":
        return at
    return None if not rest or any(header.startswith(rest) and header != rest for header in _ASSISTANT) else at


def without_leading(text: str) -> str:
    """Remove white space and assistant headers at the beginning of a reply."""
    leading = _LEADING.match(text)
    return text[leading.end() :] if leading else text


def invented_length(text: str, end: int) -> int:
    """Return the length of what follows the end of a reply; 0 if that is only tokens that end a turn.

    Args:
        text: The whole text.
        end: Index at which the reply ends.
    """
    ends = _ONLY_ENDS.match(text, end)
    return 0 if ends is not None and ends.end() == len(text) else len(text[end:].strip())


class ProseEnd:
    """Finds the first strong marker in a growing text, outside fenced blocks and quotations.

    Args:
        turns: Whether to search for invented results and turns.
        markup: Pattern that also ends the text at the beginning of a line; not used if empty.
    """

    def __init__(self, *, turns: bool = True, markup: str = "") -> None:
        self._at_line = _at_line(turns=turns, markup=markup)
        self._turns = turns
        self._markup = bool(markup)
        self._at = -1
        """Index up to which the text has no marker; -1 before the reply begins."""
        self._fence: re.Pattern[str] | None = None
        self._end: int | None = None

    def end(self, text: str) -> int | None:
        """Return the index of the first marker in a complete text; None if there is none.

        Each `text` must begin with the text of the previous call.
        """
        if self._end is None and TURN_MARK.search(text) is not None:
            self._search(text, final=True)
        return self._end

    def before(self, text: str) -> int:
        """Return the index up to which an incomplete text certainly has no marker.

        Each `text` must begin with the text of the previous call.
        """
        return self._search(text, final=False) if self._end is None else self._end

    def _search(self, text: str, *, final: bool) -> int:
        """Search for a marker from where the last search ended.

        Return the index up to which there certainly is none. Markers in fenced blocks and quotations do not count.

        Args:
            text: The reply so far; it begins with the text of the last call.
            final: Whether the reply is complete.
        """
        if self._at < 0 and not self._begin(text, final=final):
            return 0
        while True:
            if self._fence is not None:
                if (closing := self._fence.search(text, self._at)) is None:
                    self._at = max(self._at, text.rfind("\n") + 1)
                    return len(text)
                self._fence, self._at = None, closing.end()
            if (found := self._at_line.search(text, self._at)) is None:
                return self._without_partial(text)
            if found["fence"]:
                self._fence = re.compile(rf"^[ \t]*+{found['fence']}", re.MULTILINE)
            elif (counts := self._counts(text, found, final=final)) is None:
                self._at = max(self._at, found.start())
                return found.start()
            elif counts:
                self._end = line_end_before(text, found.start())
                return self._end
            self._at = found.end()

    def _begin(self, text: str, *, final: bool) -> bool:
        """Skip reasoning and assistant headers; return False while more of them may follow.

        With ``final``, `text` is complete, so that nothing more may follow.
        """
        leading = len(text) - len(without_leading(text)) if final else leading_length(text)
        if leading is None:
            return False
        if text.startswith(REASONING, leading):
            closing = text.find("</think>", leading)
            if closing < 0:
                return False
            leading = closing + len("</think>")
        elif not final and REASONING.startswith(text[leading:]):
            return False
        self._at = leading
        return True

    def _counts(self, text: str, found: re.Match[str], *, final: bool) -> bool | None:
        """Whether a marker ends the reply; None while that is undecided. With ``final``, `text` is complete, so that it
        is always decided.
        """
        if "<|end|>" in (found["glued"], found["turn"]):
            following = text[found.end() : found.end() + len(_HARMONY_GOES_ON)]
            if following == _HARMONY_GOES_ON:
                return False
            if not final and _HARMONY_GOES_ON.startswith(following):
                return None
        if found["glued"]:
            after = _AFTER_GLUED.match(text, found.end())
            if after is None:
                # A further token may follow.
                return None if not final and len(text) - found.end() < 2 and text[found.end() :] in "<" else False
            if after.end() == len(text) and not final:
                return None
        quoted = in_quotation(text, found.start(), final=final)
        return None if quoted is None else not quoted

    def _without_partial(self, text: str) -> int:
        """Return the index of an incomplete marker at the end of the text; the text's length if there is none."""
        line = text.rfind("\n") + 1
        tail = text[line : line + _INDENT + _LONGEST + 1]
        word = tail.lstrip(" \t")
        whole = len(tail) == len(text) - line
        # The line's beginning is decided once it is longer than each marker; behind it only a glued end may follow.
        self._at = max(self._at, line if whole else len(text) - _LONGEST)
        if whole and self._turns and (not word or any(marker.startswith(word) for marker in _STRONG)):
            return line
        if whole and self._markup and (not word or _OPEN_MARKUP.match(word)):
            return line
        if not self._turns:
            return len(text)
        mark = max(text.rfind("<", len(text) - _LONGEST), text.rfind("[", len(text) - _LONGEST))
        rest = text[mark:] if mark >= 0 else ""
        return mark if rest and any(end.startswith(rest) for end in _ENDS) else len(text)


def line_end_before(text: str, at: int) -> int:
    """Return the index of the line end after the text before a marker.

    `at`, the marker's own index, if the marker is in the same line as that text; 0 if there is only white space before
    it.
    """
    before = text[:at].rstrip()
    newline = text.find("\n", len(before), at)
    return at if newline < 0 and before else max(newline, 0) if before else 0


def in_quotation(text: str, at: int, *, final: bool = True) -> bool | None:
    """Whether an index is inside a quotation, at most 400 characters from each of its marks.

    An opening mark stands after a space or bracket, a closing one before a space or punctuation. With ``final=False``,
    more text may follow, and None means that this is still undecided.
    """
    start = max(0, at - _QUOTE_REACH)
    opening = max(text.rfind(quote, start, at) for quote in (*_QUOTES, "”", "»"))
    if opening < 0 or (closer := _QUOTES.get(text[opening])) is None:
        return False
    # An opening mark has a space before it, and none behind it.
    if (opening and text[opening - 1] not in " \t\n([{-—:") or text[opening + 1 : opening + 2].isspace():
        return False
    closing = text.find(closer, at, at + _QUOTE_REACH)
    if closing < 0:
        return False if final or len(text) >= at + _QUOTE_REACH else None
    following = text[closing + 1 : closing + 2]
    if not following and not final:
        return None
    return not text[closing - 1].isspace() and (not following or following in " \t\n.,;:!?)]}")


_SPEAKER = (
    r"(?:Observations?|Tool|Function|Human|User|Assistant|System|Customer|Question|Results?|Outputs?|Response|API)"
    r"(?:[ _-](?:calls?[ _-])?(?:results?|outputs?|responses?|returns?|returned))?"
    r"(?:\ ?\d{1,3}|\ ?[(\[][^)\]\n]{0,60}[)\]])?"
)
SPEAKER_LINE = rf"^(?i:[ \t>#*_-]{{0,{_INDENT}}}+{_SPEAKER}(?:\*\*)?\ ?:)"
"""Pattern of a line that begins another turn in plain words, e.g. `User:`; for use with `re.MULTILINE`."""
SPEAKER_START = rf"(?<=\n){_SPEAKER}:"
"""`SPEAKER_LINE` in a spelling that cannot be a key of JSON: without indentation, and capitalized."""
SPEAKER_LABEL = re.compile(rf"[ \t>#*_-]{{0,{_INDENT}}}+(?i:{_SPEAKER}(?:\*\*)?\ ?:)")
"""Matches a turn in plain words directly after a call."""

RESULT_TAG = (
    r"<(?:tool_?(?:response|results?|outputs?)|function_(?:response|results?)|observations?|execute_result)(?=[\s>])"
)
TURN = re.compile(
    rf"(?P<line>{SPEAKER_LINE}|^[ \t]{{0,{_INDENT}}}+(?:{_any_of(_FORMS)}|</?(?:user|human|system|result|response)>"
    r"""|(?:`{3,}|~{3,})(?:tool_?(?:outputs?|results?|responses?)|outputs?|observations?|results?)[ \t]*+$"""
    r"""|\{\s{0,20}+"(?:tool_results?|results?|tool_outputs?|outputs?|observations?|tool_call_id)"\s{0,20}+:"""
    r"""|\[?\s{0,20}+\{\s{0,20}+"role"\s{0,20}+:\s{0,20}+"(?:tool|user|system|function|ipython)"))"""
    rf"|(?P<tag>(?<![\"'“«])(?:(?<!`)|(?<=```))(?:{_any_of(_TOKENS)}|{RESULT_TAG}))",
    re.MULTILINE,
)
"""Matches a marker, strong or weak, after a call: a token or tag anywhere, other forms at the beginning of a line."""
