"""The part of a call's output that the model sees: limits by tool, kind and run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from graph_agent.config import LoopConfig
from graph_agent.tools.read_result import READ_RESULT, read_on_hint
from graph_agent.tools.result_cuts import truncated_content
from graph_agent.tools.truncation import TruncateMode
from graph_agent.types import Call, is_delegation


def truncate_output(
    content: str | list[Any], settings: LoopConfig, marks: Mapping[str, Any], call: Call
) -> tuple[str | list[Any], bool]:
    """Truncate an output to the limits of its tool, of the tool's kind, or of the run (see `output_limits`).

    If outputs are offloaded, `offload_over_chars` is an upper bound too, and every marker names the `read_result` call
    for the rest.

    Args:
        content: Text, or content blocks. The limits apply to the text of all blocks together; a block whose whole text
            is cut is dropped, and blocks without text stay.
        settings: The run's limits.
        marks: The tool's marks: `kind`, `max_output_chars`, `max_output_lines`, `truncate`; empty for a delegate.
        call: The call that the output answers.

    Returns:
        The content to show, and whether it was truncated.
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
        OutputLimits(20_000, 200),
        frozenset({"grep", "rg", "search", "search_files", "file_search", "web_search"}),
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
        settings: The run's limits.
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
