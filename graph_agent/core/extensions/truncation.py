"""Truncates tool output, characters first, then lines, with a visible marker; reads limits by tool and run.

The history keeps each output whole; only the messages for the model are truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langchain_core.messages import AnyMessage, ToolMessage

from graph_agent.base._internal.text import text_of
from graph_agent.base.calls import is_delegation
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import Call
from graph_agent.core.extensions.read_result import READ_RESULT, read_on_hint

TruncateMode = Literal["head_tail", "tail"]
"""`head_tail` keeps both ends of a text, `tail` only the end."""


LEAST_CHARS = 200
"""Minimum characters kept of each result."""
_WORTH_CUTTING = 100
"""Minimum characters that a cut must remove; its marker is nearly as long."""
_MOST_LINES = 1_000_000
"""A line limit that no output reaches."""
_LEFT_OUT = "[… content of another kind left out here; the history keeps it …]"
"""Text in place of a content block that is no text, such as an image, in a result that is truncated further."""


class TruncatedText(NamedTuple):
    """A text after truncation, and whether anything was removed."""

    text: str
    """The text to show, with a marker at the place of the cut."""
    truncated: bool
    """Whether anything was removed."""


class _Cut(NamedTuple):
    """The boundary of the kept head or tail."""

    piece: int
    """Index of the text."""
    at: int
    """Offset in that text."""
    lines: int
    """Lines within the character limit that the line limit removed."""


def truncate(
    text: str,
    *,
    max_chars: int,
    max_lines: int,
    mode: TruncateMode = "head_tail",
    hint: Callable[[int], str] | None = None,
) -> TruncatedText:
    """Truncate one text; an unchanged text is returned if it is within both limits.

    Args:
        text: The whole output.
        max_chars: Maximum characters kept, not counting the marker's line.
        max_lines: Maximum lines kept, not counting the marker's line.
        mode: `head_tail` keeps half of the limits at each end, `tail` only the end.
        hint: Returns the marker's hint for the offset of the cut, in characters; None for no hint.
    """
    kept = truncate_texts([text], max_chars=max_chars, max_lines=max_lines, mode=mode, hint=hint)
    return TruncatedText(text, truncated=False) if kept is None else TruncatedText(kept[0] or "", truncated=True)


def truncate_texts(
    texts: Sequence[str],
    *,
    max_chars: int,
    max_lines: int,
    mode: TruncateMode = "head_tail",
    hint: Callable[[int], str] | None = None,
) -> list[str | None] | None:
    """Truncate an output in pieces to `max_chars` characters and `max_lines` lines, not counting the marker's line.

    The marker is a line such as `[… 1,200 characters in 40 lines left out here; the history keeps the whole output …]`.
    Text is cut between code points. Of lines and characters, the limit that cuts more applies at each end. The work is
    linear in the limits and the number of pieces, not in the output's size; therefore the marker's line count is exact
    only if the character limit is not exceeded, and a minimum otherwise.

    Args:
        texts: The whole output, in one or more pieces. A newline at the end of a piece does not start another line.
        max_chars: Maximum characters kept.
        max_lines: Maximum lines kept, including partial lines at a cut.
        mode: `head_tail` keeps half of the limits at each end, `tail` only the end.
        hint: Returns the marker's hint for an offset, in characters from the start of the first piece; None for no
            hint.

    Returns:
        The remaining text of each piece, None for a piece of which nothing remains; None in place of the list if the
        output is within the limits.
    """
    size = sum(map(len, texts))
    too_long = size > max_chars
    lines = 0 if too_long else sum(map(_lines, texts))
    if not too_long and lines <= max_lines:
        return None
    head_chars, head_lines = (max_chars // 2, max_lines // 2) if mode == "head_tail" else (0, 0)
    tail_chars = max_chars - head_chars
    if not too_long:
        # Only the line limit applies.
        head_chars = tail_chars = size
    head = _end_of_head(texts, head_chars, head_lines)
    tail = _start_of_tail(texts, tail_chars, max_lines - head_lines)
    before = sum(map(len, texts[: head.piece])) + head.at
    after = sum(map(len, texts[tail.piece :])) - tail.at
    missing_lines = head.lines + tail.lines if too_long else lines - max_lines
    marker = _marker(size - before - after, missing_lines, hint(before) if hint else "", exact=not too_long)
    kept: list[str | None] = [None] * len(texts)
    kept[: head.piece] = texts[: head.piece]
    kept[tail.piece + 1 :] = texts[tail.piece + 1 :]
    first, last = texts[head.piece][: head.at].removesuffix("\n"), texts[tail.piece][tail.at :].removeprefix("\n")
    if head.piece == tail.piece:
        kept[head.piece] = "\n".join(part for part in (first, marker, last) if part)
    else:
        kept[head.piece] = "\n".join(part for part in (first, marker) if part)
        kept[tail.piece] = last or None
    return kept


def _marker(characters: int, lines: int, hint: str, *, exact: bool) -> str:
    """Return the marker's line for a cut.

    Args:
        characters: Number of characters removed.
        lines: Number of lines removed; 0 to leave it out.
        hint: Advice on how to read the rest; empty to leave it out.
        exact: Whether `lines` is exact, as opposed to a minimum.
    """
    missing = f"{characters:,} character{'s' * (characters != 1)}"
    if lines:
        missing += f" in {'' if exact else 'at least '}{lines:,} line{'s' * (lines != 1)}"
    return f"[… {missing} left out here; the history keeps the whole output{hint and '; '}{hint} …]"


def _lines(text: str) -> int:
    """Return the number of lines of a text; a newline at its end does not start another line."""
    return text.count("\n") + (not text.endswith("\n")) if text else 0


def _end_of_head(texts: Sequence[str], chars: int, lines: int) -> _Cut:
    """Return where the kept head ends: after at most `chars` characters and `lines` lines of the output, whichever is
    less.
    """
    index = 0
    while len(texts[index]) <= chars and (own := _lines(texts[index])) <= lines:
        chars, lines, index = chars - len(texts[index]), lines - own, index + 1
    text = texts[index]
    limit = min(chars, len(text))
    end = _end_of_first_lines(text, lines, limit)
    return _Cut(index, end, text.count("\n", end, limit))


def _start_of_tail(texts: Sequence[str], chars: int, lines: int) -> _Cut:
    """Return where the kept tail starts, so that it has at most `chars` characters and `lines` lines of the output,
    whichever is less.
    """
    index = len(texts) - 1
    while len(texts[index]) <= chars and (own := _lines(texts[index])) <= lines:
        chars, lines, index = chars - len(texts[index]), lines - own, index - 1
    text = texts[index]
    limit = max(0, len(text) - chars)
    start = _start_of_last_lines(text, lines, limit)
    return _Cut(index, start, text.count("\n", limit, start))


def _end_of_first_lines(text: str, lines: int, limit: int) -> int:
    """Return the offset after the first `lines` lines of a text, or `limit` if that is smaller."""
    end = 0
    for _ in range(lines):
        newline = text.find("\n", end, limit)
        if newline < 0:
            return limit
        end = newline + 1
    return end


def _start_of_last_lines(text: str, lines: int, limit: int) -> int:
    """Return the offset of the last `lines` lines of a text, or `limit` if that is larger."""
    if lines == 0:
        return len(text)
    start = len(text) - text.endswith("\n")
    for _ in range(lines):
        newline = text.rfind("\n", limit, start)
        if newline < 0:
            return limit
        start = newline
    return start + 1


def cuts_for(messages: Sequence[AnyMessage], excess: int) -> dict[str, int]:
    """Choose by how much to truncate tool results so that at least `excess` characters are removed, if possible.

    Returns id of a result's message → characters to keep. The longest results are cut, all to the same length, which is
    at most half of the longest and at least `LEAST_CHARS`. A result that would lose `_WORTH_CUTTING` characters or
    fewer, or has no id, is left out; empty if none is worth cutting.
    """
    sizes = {message.id: _size(message) for message in messages if isinstance(message, ToolMessage) and message.id}
    if not sizes:
        return {}
    longest = sorted(sizes.values(), reverse=True)
    # The level sinks until all results above it, cut to it, remove enough.
    total, level = 0, 0
    for count, size in enumerate(longest, 1):
        total += size
        level = (total - excess) // count
        if count == len(longest) or level >= longest[count]:
            break
    # Characters only approximate the provider's count; halving the longest always makes progress.
    keep = max(LEAST_CHARS, min(level, longest[0] // 2))
    return {id_: keep for id_, size in sizes.items() if size > keep + _WORTH_CUTTING}


def with_cuts(messages: Sequence[AnyMessage], cuts: Mapping[str, int]) -> list[AnyMessage]:
    """Return the messages, with those whose id is in `cuts` truncated to that many characters."""
    return [_cut(message, keep) if (keep := cuts.get(message.id or "")) else message for message in messages]


def _cut(message: AnyMessage, chars: int) -> AnyMessage:
    """Return a message truncated to `chars` characters; blocks that are no text, such as images, are replaced by a
    note."""
    content: Any = message.content
    if isinstance(content, list):
        content = [block if _is_text(block) else {"type": "text", "text": _LEFT_OUT} for block in content]
    kept = truncated_content(content, max_chars=chars, max_lines=_MOST_LINES)
    return message.model_copy(update={"content": content if kept is None else kept})


def _size(message: AnyMessage) -> int:
    """Return the characters of a message's content; a block that is no text counts by its `repr`."""
    content: Any = message.content
    if isinstance(content, str):
        return len(content)
    return sum(len(text_of([block])) if _is_text(block) else len(repr(block)) for block in content)


def _is_text(block: Any) -> bool:
    """Whether a content block is text."""
    return isinstance(block, str) or "text" in block


def truncated_content(
    content: str | list[Any],
    *,
    max_chars: int,
    max_lines: int,
    mode: TruncateMode = "head_tail",
    hint: Callable[[int], str] | None = None,
) -> str | list[Any] | None:
    """Cut text or content blocks to limits that apply to the text of all blocks together.

    A block whose text is removed completely is dropped, and blocks without text stay.

    Args:
        content: Text or LangChain content blocks.
        max_chars: Maximum characters.
        max_lines: Maximum lines.
        mode: The part that is kept: head and tail, or the tail.
        hint: Returns advice on how to read the rest, for the offset of the cut in characters; None for no advice.

    Returns:
        The shortened text or blocks. None if the content is within the limits.
    """
    texts = [content] if isinstance(content, str) else [text_of([block]) for block in content]
    kept = truncate_texts(texts, max_chars=max_chars, max_lines=max_lines, mode=mode, hint=hint)
    if kept is None:
        return None
    if isinstance(content, str):
        return kept[0] or ""
    # A block without text was not cut and stays.
    return [
        _with_text(block, text) for block, whole, text in zip(content, texts, kept, strict=True) if text or not whole
    ]


def _with_text(block: Any, text: str | None) -> Any:
    """Return a content block with another text; the block itself if the text is None or empty."""
    if not text:
        return block
    return text if isinstance(block, str) else {**block, "text": text}


def truncate_output(
    content: str | list[Any], settings: LoopConfig, marks: Mapping[str, Any], call: Call
) -> tuple[str | list[Any], bool]:
    """Truncate a call's output to the limits of `output_limits`; return the text or blocks to show, and whether it was
    truncated.

    If outputs are offloaded (the model can read the rest by `read_result`), `offload_over_chars` is an upper bound,
    too, and the marker contains the call of `read_result` that reads on; outputs of `read_result` itself are excepted.

    Args:
        content: The whole output, text or content blocks.
        settings: The configuration of the run.
        marks: The tool's marks (entries of its metadata that this package reads); empty for a delegate.
        call: The call, whose name and id are used.
    """
    limits = output_limits(call["name"], marks, settings)
    threshold = settings.offload_over_chars if call["name"] != READ_RESULT else None
    if threshold is not None:
        limits = limits._replace(max_chars=min(limits.max_chars, threshold))

    def hint(offset: int) -> str:
        return read_on_hint(call["id"], offset)

    kept = truncated_content(
        content,
        max_chars=limits.max_chars,
        max_lines=limits.max_lines,
        mode=limits.mode,
        hint=None if threshold is None else hint,
    )
    return (content, False) if kept is None else (kept, True)


class OutputLimits(NamedTuple):
    """The limits for one output: arguments of `truncate` by the same names."""

    max_chars: int
    max_lines: int
    mode: TruncateMode = "head_tail"


class _Kind(NamedTuple):
    """A kind of tools with similar outputs, and its default limits."""

    limits: OutputLimits
    names: frozenset[str]
    """Names of tools that have this kind without a mark, in lower case."""


_KINDS = {
    # The model works on a file's content, so the limit is high; source files average 30 characters a line.
    "file_read": _Kind(
        OutputLimits(50_000, 2_000),
        frozenset({"read_file", "read_text_file", "read", "cat", "open_file", "view_file", "get_file_contents"}),
    ),
    # A command's first lines show the action, the last lines the outcome.
    "shell": _Kind(
        OutputLimits(30_000, 256),
        frozenset({"bash", "shell", "sh", "terminal", "run_command", "run_shell_command", "execute_command"}),
    ),
    # Ranked matches start with the best, and the last line is often their count, so both ends are kept.
    "search": _Kind(
        OutputLimits(20_000, 200), frozenset({"grep", "rg", "search", "search_files", "file_search", "web_search"})
    ),
    "listing": _Kind(
        OutputLimits(20_000, 500),
        frozenset({"ls", "glob", "find", "list_directory", "list_dir", "list_files", "directory_tree"}),
    ),
    # An agent's answer starts with its finding and ends with its conclusion.
    "delegate": _Kind(OutputLimits(20_000, 500), frozenset()),
}
"""Default limits by kind. The mark `kind` sets a tool's kind; tools with a well-known name need no mark."""

_KIND_OF_NAME = {name: kind for kind, (_, names) in _KINDS.items() for name in names}
"""Well-known tool name → its kind."""


def output_limits(name: str, marks: Mapping[str, Any], settings: LoopConfig) -> OutputLimits:
    """Return the limits for one tool's output. Each limit comes from the first of these sources that defines it:

    1. The tool's mark: `max_output_chars`, `max_output_lines`, `truncate`.
    2. The default of its kind, or the run's limit if that is set to a smaller value. A run's limit equal to
       `LoopConfig`'s default counts as not set. To raise a kind's default, mark the tool.
    3. The run's limit.

    Args:
        name: The call's name; the kind is looked up by the part after the last dot, as in `files.read_file`.
        marks: The tool's marks (entries of its metadata that this package reads); empty for a delegate.
        settings: The configuration of the run, which has the run's limits.
    """
    own = OutputLimits(settings.max_output_chars, settings.max_output_lines)
    if kind := _kind(name, marks):
        limits = _KINDS[kind].limits
        own = OutputLimits(
            _lowered(limits.max_chars, own.max_chars, "max_output_chars"),
            _lowered(limits.max_lines, own.max_lines, "max_output_lines"),
            limits.mode,
        )
    return OutputLimits(
        marks.get("max_output_chars", own.max_chars),
        marks.get("max_output_lines", own.max_lines),
        marks.get("truncate", own.mode),
    )


def _kind(name: str, marks: Mapping[str, Any]) -> str | None:
    """Return a tool's kind, a key of `_KINDS`, from its mark `kind` or its name; None if it has none."""
    marked = marks.get("kind")
    if isinstance(marked, str) and marked in _KINDS:
        return marked
    if is_delegation(name):
        return "delegate"
    return _KIND_OF_NAME.get(name.rpartition(".")[2].lower())


def _lowered(default: int, run_limit: int, field: str) -> int:
    """Return the smaller of a kind's default and the run's limit, if the latter differs from the default of `field`."""
    is_set = run_limit != LoopConfig.model_fields[field].default
    return min(default, run_limit) if is_set else default
