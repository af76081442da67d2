"""Truncates tool output, characters first, then lines, with a visible marker; reads limits by tool and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langchain_core.messages import AnyMessage, ToolMessage

from graph_agent.base._internal.text import text_of
from graph_agent.base.calls import is_delegation
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import Call
from graph_agent.core.tools.read_result import READ_RESULT, read_on_hint

TruncateMode = Literal["head_tail", "tail"]


LEAST_CHARS = 200
"""Minimum characters kept of each result."""
_WORTH_CUTTING = 100
"""Minimum characters that a cut must remove; its marker is nearly as long."""
_MOST_LINES = 1_000_000
_LEFT_OUT = "[… content of another kind left out here; the history keeps it …]"


class TruncatedText(NamedTuple):
    """A text after truncation, and whether anything was removed."""

    text: str
    truncated: bool


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
    """Truncate one text; see `truncate_texts`."""
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
    """Truncate an output to `max_chars` characters and `max_lines` lines, not counting the marker's line.

    Text is cut between code points. The work is linear in the limits and the number of texts, not in the output's size.
    Therefore the marker's line count is exact only if the character limit is not exceeded; otherwise it is a minimum.

    Args:
        texts: The whole output, in one or more pieces. A newline at the end of a piece does not start another line.
        max_chars: Maximum characters kept.
        max_lines: Maximum lines kept, including partial lines at a cut.
        mode: `head_tail` keeps half of the limits at each end, `tail` only the end.
        hint: Returns the marker's hint for an offset, in characters from the start of the first piece.

    Returns:
        The rest of each piece, None for a piece without any; None instead of the list if nothing is cut.
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
    missing = f"{characters:,} character{'s' * (characters != 1)}"
    if lines:
        missing += f" in {'' if exact else 'at least '}{lines:,} line{'s' * (lines != 1)}"
    return f"[… {missing} left out here; the history keeps the whole output{hint and '; '}{hint} …]"


def _lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n")) if text else 0


def _end_of_head(texts: Sequence[str], chars: int, lines: int) -> _Cut:
    index = 0
    while len(texts[index]) <= chars and (own := _lines(texts[index])) <= lines:
        chars, lines, index = chars - len(texts[index]), lines - own, index + 1
    text = texts[index]
    limit = min(chars, len(text))
    end = _end_of_first_lines(text, lines, limit)
    return _Cut(index, end, text.count("\n", end, limit))


def _start_of_tail(texts: Sequence[str], chars: int, lines: int) -> _Cut:
    index = len(texts) - 1
    while len(texts[index]) <= chars and (own := _lines(texts[index])) <= lines:
        chars, lines, index = chars - len(texts[index]), lines - own, index - 1
    text = texts[index]
    limit = max(0, len(text) - chars)
    start = _start_of_last_lines(text, lines, limit)
    return _Cut(index, start, text.count("\n", limit, start))


def _end_of_first_lines(text: str, lines: int, limit: int) -> int:
    """Return the offset at which the first `lines` lines end; at most `limit`."""
    end = 0
    for _ in range(lines):
        newline = text.find("\n", end, limit)
        if newline < 0:
            return limit
        end = newline + 1
    return end


def _start_of_last_lines(text: str, lines: int, limit: int) -> int:
    """Return the offset at which the last `lines` lines start; at least `limit`."""
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
    """Choose cuts that remove at least `excess` characters: the longest results first, all to the same length.

    Returns message id → characters to keep; empty if no result is worth cutting.
    """
    sizes = {message.id: _size(message) for message in messages if isinstance(message, ToolMessage) and message.id}
    if not sizes:
        return {}
    longest = sorted(sizes.values(), reverse=True)
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
    """Return the messages, each with as many characters as `cuts` keeps of its id."""
    return [_cut(message, keep) if (keep := cuts.get(message.id or "")) else message for message in messages]


def _cut(message: AnyMessage, chars: int) -> AnyMessage:
    content: Any = message.content
    if isinstance(content, list):
        content = [block if _is_text(block) else {"type": "text", "text": _LEFT_OUT} for block in content]
    kept = truncated_content(content, max_chars=chars, max_lines=_MOST_LINES)
    return message.model_copy(update={"content": content if kept is None else kept})


def _size(message: AnyMessage) -> int:
    content: Any = message.content
    if isinstance(content, str):
        return len(content)
    return sum(len(text_of([block])) if _is_text(block) else len(repr(block)) for block in content)


def _is_text(block: Any) -> bool:
    return isinstance(block, str) or "text" in block


def truncated_content(
    content: str | list[Any],
    *,
    max_chars: int,
    max_lines: int,
    mode: TruncateMode = "head_tail",
    hint: Callable[[int], str] | None = None,
) -> str | list[Any] | None:
    """Truncate text or content blocks; None if the content is within the limits.

    The limits apply to the text of all blocks together; a block whose whole text is cut is dropped, and blocks without
    text stay.
    """
    blocks = [content] if isinstance(content, str) else content
    texts = [text_of([block]) for block in blocks]
    kept = truncate_texts(texts, max_chars=max_chars, max_lines=max_lines, mode=mode, hint=hint)
    if kept is None:
        return None
    if isinstance(content, str):
        return kept[0] or ""
    # A block without text was not cut and stays.
    return [
        _with_text(block, text) for block, whole, text in zip(blocks, texts, kept, strict=True) if text or not whole
    ]


def _with_text(block: Any, text: str | None) -> Any:
    if not text:
        return block
    return text if isinstance(block, str) else {**block, "text": text}


def truncate_output(
    content: str | list[Any], settings: LoopConfig, marks: Mapping[str, Any], call: Call
) -> tuple[str | list[Any], bool]:
    """Truncate an output to `output_limits`; return the content to show, and whether it was truncated.

    If outputs are offloaded, `offload_over_chars` is an upper bound too, and every marker names the `read_result` call
    for the rest. Blocks are cut as by `truncated_content`. `marks` are the tool's; empty for a delegate.
    """
    limits = output_limits(call["name"], marks, settings)
    threshold = settings.offload_over_chars if call["name"] != READ_RESULT else None
    if threshold is not None:
        limits = limits._replace(max_chars=min(limits.max_chars, threshold))

    def hint(offset: int) -> str:
        return read_on_hint(call["id"], offset)

    kept = truncated_content(content, **limits._asdict(), hint=None if threshold is None else hint)
    return (content, False) if kept is None else (kept, True)


class OutputLimits(NamedTuple):
    """Arguments of `truncate`."""

    max_chars: int
    max_lines: int
    mode: TruncateMode = "head_tail"


class _Kind(NamedTuple):
    limits: OutputLimits
    names: frozenset[str]
    """Tools that have this kind without a mark."""


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


def output_limits(name: str, marks: Mapping[str, Any], settings: LoopConfig) -> OutputLimits:
    """Return the limits for one tool's output. Each limit comes from the first of these sources that defines it:

    1. The tool's mark: `max_output_chars`, `max_output_lines`, `truncate`.
    2. The default of its kind, or the run's limit if that is set to a smaller value. A run's limit equal to
       `LoopConfig`'s default counts as not set. To raise a kind's default, mark the tool.
    3. The run's limit.

    Args:
        name: The call's name; the kind is looked up by the part after the last dot, as in `files.read_file`.
        marks: The tool's marks; empty for a delegate.
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
    marked = marks.get("kind")
    if isinstance(marked, str) and marked in _KINDS:
        return marked
    if is_delegation(name):
        return "delegate"
    return _KIND_OF_NAME.get(name.rpartition(".")[2].lower())


def _lowered(default: int, run_limit: int, field: str) -> int:
    is_set = run_limit != LoopConfig.model_fields[field].default
    return min(default, run_limit) if is_set else default
