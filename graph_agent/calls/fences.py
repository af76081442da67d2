"""Fenced blocks: program code, blocks of calls, and their ends.

A block with any other tag, ``json`` or none, is parsed like the surrounding text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from graph_agent.calls.page import Page

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
    """Empty for none."""

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
