"""Matches the published tags around calls.

=====================================  ======================================================================
``<tool_call>``                        Hermes (Nous Research), Qwen 2.5 and 3 and Qwen3-Coder (Alibaba), GLM 4.5
                                       (Z.ai), Granite 3.1 and later (IBM); ``<function_call>`` Granite 20B
``<tool_calls>``                       Hunyuan (Tencent), MiniMax M1, Jamba (AI21); ``<TOOLCALL>`` Nemotron
``<function_calls>``, ``<invoke>``     Anthropic; prefixed by MiniMax M2 and, with ``｜DSML｜``, DeepSeek V3.2
``<function=name>``                    Llama 3.1 (Meta), Qwen3-Coder, Seed-OSS (ByteDance)
``[TOOL_CALLS]``                       Mistral: a list up to tokenizer v7, ``name[ARGS]{…}`` or ``name{…}`` since v11
``<|python_tag|>``                     Llama 3 (Meta)
``<｜tool▁calls▁begin｜>``             DeepSeek V3, R1 and V3.1
``<|tool_calls_section_begin|>``       Kimi K2 (Moonshot AI), docs/tool_call_guidance.md of the model
``<|tool_call|>``                      Granite 3.0 (IBM), Phi-4-mini (Microsoft), which also writes ``functools[…]``
``<|tool_call_start|>``                LFM2 (Liquid AI)
``<|action_start|>``                   InternLM 2 (Shanghai AI Laboratory); ``<|START_ACTION|>`` Command R7B (Cohere)
=====================================  ======================================================================

The forms are those of the models' chat templates on huggingface.co, cross-checked with the tool parsers of vLLM
(docs.vllm.ai, "Tool Calling") and SGLang.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from graph_agent.parsing.page import Page

# DeepSeek's tokens use a full-width bar and a low block; distilled models also write the ASCII look-alikes.
_TOKEN_START, _TOKEN_END, _GAP = "<[|｜]", "[|｜]>", "[▁_ ]"

TOOL_NAME = r"[^\W\d][\w.:/-]{0,127}"

_WORDS = r"(?:tool_?calls?|function_?calls?|tool_use|tool_code)"
TAG = re.compile(
    rf"<(?:[a-z]{{1,16}}:|｜DSML｜)?(?i:{_WORDS})>"
    rf"|{_TOKEN_START}(?:tool_calls?|tool_call_start|python_tag|function_call|action_start|START_ACTION"
    rf"|tool{_GAP}calls?(?:_section)?{_GAP}begin){_TOKEN_END}(?:<\|plugin\|>)?"
    r"|\[TOOL_CALLS\]|functools(?=\[)"
)
"""Opens a region that holds calls in one of several notations, or a nested tag."""

FUNCTION = re.compile(
    rf"""<function(?:=|\ name=)["']?(?P<function>{TOOL_NAME})["']?\s*+>?
    | <(?P<prefix>[a-z]{{1,16}}:|｜DSML｜)?invoke\ name=["']?(?P<invoke>{TOOL_NAME})["']?\s*+>""",
    re.VERBOSE,
)
"""Opens one call with its name; parameters or an object follow."""

SEPARATOR = re.compile(
    rf"\s*+(?:\[CALL_ID\](?P<id>[\w-]+))?\s*+(?:(?P<kimi><\|tool_call_argument_begin\|>)"
    rf"|{_TOKEN_START}tool{_GAP}sep{_TOKEN_END}|\[ARGS\])\s*+"
)
"""Separates a name from its arguments: Kimi, DeepSeek, Mistral."""

DEEPSEEK_TYPE = re.compile(rf"\s*+(?:function|tool)\s*+{_TOKEN_START}tool{_GAP}sep{_TOKEN_END}\s*+(?=[^\W\d])")
"""The type that DeepSeek V3 and R1 write before the name."""

_CLOSER = (
    rf"(?:</(?:[a-z]{{1,16}}:|｜DSML｜)?(?i:{_WORDS}|function|invoke|tool|s)>"
    rf"|{_TOKEN_START}(?:/tool_calls?|tool{_GAP}calls?(?:_section)?{_GAP}end|eom_id|eot_id|im_end|end|action_end"
    rf"|END_ACTION|end▁of▁sentence){_TOKEN_END})"
)
CLOSE = re.compile(rf"(?:[\s}}\],;]*+(?:```\s*+)?(?={_CLOSER}))?(?:\s*+{_CLOSER})*+")
"""The closing tags after a call, with a surplus bracket or inner fence before them; also matches the empty string."""

PARAMETER = re.compile(
    r"""\s*+<(?:[a-z]{1,16}:|｜DSML｜)?parameter(?:=|\ name=)["']?(?P<key>(?:(?!\ string=)[^<>"'\n]){1,200}+)"""
    r"""["']?(?:\ string="(?P<string>true|false)")?\s*+>"""
)
"""Opens one parameter of a ``FUNCTION``."""

PARAMETER_END = re.compile(
    r"</(?:[a-z]{1,16}:|｜DSML｜)?parameter>"
    r"|(?=<(?:[a-z]{1,16}:|｜DSML｜)?parameter[= ]|</(?:[a-z]{1,16}:|｜DSML｜)?(?:function|invoke|tool_call)>)"
)
"""Ends a parameter's value, even if its closing tag is missing."""

ARGUMENT_PAIR = re.compile(r"\s*+<arg_key>(?P<key>[^<]{1,200})</arg_key>\s*+<arg_value>")
ARGUMENT_END = re.compile(r"</arg_value>|(?=<arg_key>|</tool_call>)")
"""Start and end of one argument in GLM's notation."""


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
    """The opening of a fenced block."""

    start: int
    body: int
    """Index after the marks and the language."""
    marks: str
    language: str
    """Empty if the fence names none."""

    @property
    def is_code(self) -> bool:
        """Whether the block is a sample of program code."""
        return code_language(self.language)

    @property
    def is_delegation(self) -> bool:
        """Whether the block's language marks a delegation."""
        return _DELEGATION.fullmatch(self.language) is not None

    @property
    def is_call(self) -> bool:
        """Whether the block's language marks calls."""
        return self.is_delegation or _CALLS.fullmatch(self.language) is not None

    def closes(self, opened: Fence) -> bool:
        """Whether these marks close ``opened``."""
        return not self.language and self.is_as_long_as(opened)

    def is_as_long_as(self, opened: Fence) -> bool:
        """Whether these marks are as long as those of ``opened``; shorter or different marks are content inside it."""
        return self.marks.startswith(opened.marks)


def code_language(language: str) -> bool:
    """Whether a block of this language is a sample of program code."""
    return _CODE.fullmatch(language) is not None


def read_fence(page: Page, marks: re.Match[str]) -> Fence:
    """Return the fence that opens with these marks."""
    info = _INFO.match(page.text, marks.end())
    if info is None:
        return Fence(marks.start(), marks.end(), marks[0], "")
    return Fence(marks.start(), info.end(), marks[0], info["language"] or "")


def code_end(page: Page, fence: Fence) -> int:
    """Return the index after a block of code: on its own line, on the same line, or at the end of the text."""
    mark = fence.marks[0]
    first = page.next(_END_OR_LINE[mark], fence.body)
    if first is not None and first[0] != "\n":
        return first.end()
    closing = page.next(_END[mark], fence.body)
    return len(page.text) if closing is None else closing.end()
