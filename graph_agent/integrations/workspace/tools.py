"""Builds the tools of a workspace: they list, search, read, write and edit a folder's files, and run commands."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import regex
from langchain_core.tools import BaseTool, ToolException

from graph_agent.base._internal.json_schema import compile_pattern
from graph_agent.base.marks import marked
from graph_agent.integrations.workspace.folder import MOST_DEPTH, Folder, PathError
from graph_agent.integrations.workspace.listing import Listing, path_line
from graph_agent.integrations.workspace.shell import CommandRunner, Shell

P = ParamSpec("P")
T = TypeVar("T")

_MOST_FILES = 1000
"""Maximum paths in one list."""
_MOST_MATCHES = 200
"""Maximum matches of one search."""
_MATCH_CHARS = 300
"""Maximum characters of the line of a match."""
_SEARCH_S = 20.0
"""Maximum seconds of one list or search."""
_LINES = 2000
"""Lines that `read_file` returns by default."""


def workspace_tools(
    folder: str | Path,
    *,
    write: bool = True,
    shell: Shell | bool = False,
    approve_edits: bool = False,
    protected: Sequence[str] = (),
) -> list[BaseTool]:
    """Return tools for the files of a folder: `list_files`, `search_files`, `read_file`, `write_file`, `edit_file`.

    No path leads out of the folder, whether by `..`, an absolute path or a link, even while another process changes
    links. Tools that only read are marked so, with the `kind` that limits their output; the others may write.

    Git's files (`.git` at any depth, bare repositories) are never written. The files from which the agent is loaded are
    written only by a call that a reviewer has approved: the agent file, its prompts, modules, skills and database, the
    file of API keys, the Python environment.

    Args:
        folder: The folder; it must exist.
        write: Whether to include `write_file` and `edit_file`.
        shell: Whether to include `run_command`, and how it runs commands; True for `Shell()`. Unless the `Shell` has
            `approve`, commands need approval if they run in no sandbox.
        approve_edits: Whether a reviewer must approve each call of `write_file` and `edit_file`.
        protected: Further paths below the folder that are never written, including everything below them.

    Raises:
        ConfigError: There is no such folder, or the sandbox of `shell` is not available.
    """
    files = _FileTools(Folder(Path(folder), protected))
    tools = [
        marked(files.list_files, effect="read", kind="listing"),
        marked(files.search_files, effect="read", kind="search"),
        marked(files.read_file, effect="read", kind="file_read"),
    ]
    if write:
        tools += [
            marked(files.write_file, idempotent=True, approve=approve_edits),
            marked(files.edit_file, approve=approve_edits),
        ]
    if shell:
        runner = CommandRunner(files.folder, Shell() if shell is True else shell)
        tools.append(marked(runner.run_command, kind="shell", timeout_s=None, approve=runner.needs_approval))
    return tools


class _FileTools:
    """The tools for files. The model receives their docstrings as descriptions."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def list_files(self, pattern: str = "") -> str:
        """List the files of the workspace, without those that .gitignore names.

        Args:
            pattern: A pattern such as *.py or src/**/*.py; empty for every file.
        """
        listing = _reported(lambda: Listing(self.folder, pattern, _SEARCH_S))
        found: list[str] = []
        for path in listing:
            if len(found) == _MOST_FILES:
                return "\n".join([*found, f"… and more than {_MOST_FILES} files; give a narrower pattern."])
            found.append(path_line(path))
        if listing.is_late:
            return "\n".join([*found, f"… stopped after {_SEARCH_S:.0f} s."])
        return "\n".join([*(found or ["No file matches."]), *_depth_note(listing)])

    def search_files(self, expression: str, pattern: str = "") -> str:
        """Search the text files of the workspace for a regular expression. Returns path:line: text for each match.

        Args:
            expression: The regular expression, matched within lines.
            pattern: A pattern of paths such as *.py; empty for every file.
        """
        try:
            wanted = compile_pattern(expression)
        except (ValueError, OverflowError, RecursionError, regex.error) as error:
            raise ToolException(_expression_fault(expression, error)) from None
        listing = _reported(lambda: Listing(self.folder, pattern, _SEARCH_S))
        found: list[str] = []
        # Its own limit: the listing limits the time between two files, not the search within them.
        ends = time.monotonic() + _SEARCH_S
        for path in listing:
            try:
                for number, line in enumerate(_lines(self.folder.read_text(path)), 1):
                    if wanted.search(line.rstrip("\r\n"), timeout=max(0.001, ends - time.monotonic())):
                        found.append(f"{path_line(path)}:{number}: {line.strip()[:_MATCH_CHARS]}")
                        if len(found) > _MOST_MATCHES:
                            break
            except PathError:
                continue  # binary, too large, or removed since
            except TimeoutError:
                ends = 0.0
            if time.monotonic() > ends:
                break
            if len(found) > _MOST_MATCHES:
                return "\n".join([*found[:_MOST_MATCHES], f"… and more than {_MOST_MATCHES} matches; be more precise."])
        if listing.is_late or time.monotonic() > ends:
            return "\n".join([*found, f"… stopped after {_SEARCH_S:.0f} s; give a simpler expression."])
        return "\n".join([*(found or ["No line matches."]), *_depth_note(listing)])

    def read_file(self, path: str, first_line: int = 1, lines: int = _LINES) -> str:
        """Return lines of a text file of the workspace.

        Args:
            path: Its path, relative to the workspace.
            first_line: Number of the first line, from 1.
            lines: How many lines.
        """
        text = list(_lines(_reported(lambda: self.folder.read_text(path))))
        start = max(0, first_line - 1)
        part = "".join(text[start : start + max(1, lines)])
        if not part:
            return f"{path} has {len(text)} lines."
        left = len(text) - start - max(1, lines)
        return f"{part}\n… {left} more lines" if left > 0 else part

    def write_file(self, path: str, text: str) -> str:
        """Create a file of the workspace, or replace all of it.

        Args:
            path: Its path, relative to the workspace; missing folders are created.
            text: The whole content.
        """
        existed = _reported(lambda: self.folder.write(path, text))
        return f"{'Replaced' if existed else 'Created'} {path}."

    def edit_file(self, path: str, old: str, new: str, replace_all: bool = False) -> str:
        """Replace a text in a file of the workspace.

        Args:
            path: Its path, relative to the workspace.
            old: The text to replace, exactly as in the file; it must occur once, unless replace_all is set.
            new: The text in its place.
            replace_all: Whether to replace every occurrence.
        """
        count = 0

        def change(text: str) -> str:
            """Return `text` with `old` replaced by `new`, and set `count` to the number of occurrences.

            In a file with CRLF line ends, an `old` of several lines with LF is looked for with CRLF, and `new` is
            written with CRLF. Raises `PathError` if `old` is empty or does not occur, occurs more than once without
            `replace_all`, or if the new text would have more than the folder's `max_bytes` characters.
            """
            nonlocal count
            before, after = old, new
            if "\r\n" in text and "\r\n" not in old:
                # Models write line feeds only.
                before, after = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
            count = text.count(before) if before else 0
            if count == 0 or (count > 1 and not replace_all):
                fix = "read the file again" if count == 0 else "give more lines around it, or set replace_all"
                raise PathError(f"The old text occurs {count} times in {path}; {fix}.")
            # Before it is built: every occurrence of a short text may become a long one.
            size = len(text) + count * (len(after) - len(before))
            if size > self.folder.max_bytes:
                raise PathError(f"The new text would have {size} characters; a file may have {self.folder.max_bytes}.")
            return text.replace(before, after)

        _reported(lambda: self.folder.edit(path, change))
        return f"Replaced {count} occurrence{'s' if count > 1 else ''} in {path}."


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text with their ends, as editors count them: a form feed or U+2028 does not end a line."""
    return io.StringIO(text, newline="")


def _depth_note(listing: Listing) -> list[str]:
    """Return a line if folders were left out of a listing; empty otherwise."""
    return [f"… folders below {MOST_DEPTH} others are left out."] if listing.is_cut else []


def _expression_fault(expression: str, error: Exception) -> str:
    """Return why a regular expression cannot be used, for the model."""
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return reason if "no regular expression" in reason else f"{expression[:100]!r} cannot be used: {reason}"


def _reported(work: Callable[[], T]) -> T:
    """Return the result of `work`; a `PathError` becomes the `ToolException` that the model receives."""
    try:
        return work()
    except PathError as error:
        raise ToolException(str(error)) from None
