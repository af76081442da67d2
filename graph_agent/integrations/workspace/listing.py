"""Lists the files of a folder in bounded depth and time, without those ignored by its `.gitignore`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from graph_agent.base._internal.text import visible_json
from graph_agent.integrations.workspace.folder import MOST_DEPTH, Folder, PathError
from graph_agent.integrations.workspace.patterns import IgnoreRule, PatternError, is_ignored, parse_rule, parse_rules

_ALWAYS_IGNORED = "/.git/"


class Listing:
    """Iterates over the paths of a folder's regular files, sorted within each folder. Links are not followed.

    Args:
        folder: The folder.
        pattern: A pattern as in `.gitignore`, such as `*.py` or `src/**/*.py`; empty for every file.
        timeout_s: Seconds after which the iteration ends.

    Raises:
        PathError: The pattern is invalid, or the folder cannot be opened.
    """

    def __init__(self, folder: Folder, pattern: str, timeout_s: float) -> None:
        try:
            with folder.opened(""):
                self._folder = folder
        except OSError as error:
            raise PathError(f"The workspace {folder.root} cannot be opened: {error.strerror}.") from None
        self._wanted = _wanted(pattern) if pattern else None
        self._ends = time.monotonic() + timeout_s
        self.is_late = False
        """Whether the time limit ended the iteration before the last path."""
        self.is_cut = False
        """Whether folders were left out because they are nested too deeply."""

    def __iter__(self) -> Iterator[str]:
        rules = self._rules()
        pending = [""]
        while pending:
            base = pending.pop()
            folders, names = self._entries(base)
            for path in sorted(base + name for name in names):
                if time.monotonic() > self._ends:
                    self.is_late = True
                    return
                if not is_ignored(path, rules) and (self._wanted is None or self._wanted.matcher.match(path)):
                    yield path
            below = [path for name in folders if not is_ignored(path := f"{base}{name}/", rules)]
            if below and base.count("/") >= MOST_DEPTH:
                self.is_cut = True
            else:
                # Reversed, because the last one is taken first.
                pending += sorted(below, reverse=True)
            if time.monotonic() > self._ends:
                self.is_late = True
                return

    def _entries(self, base: str) -> tuple[list[str], list[str]]:
        """Return the names of the subfolders and of the regular files in a folder; both empty if it cannot be read."""
        folders, names = list[str](), list[str]()
        with suppress(PathError, OSError), self._folder.opened(base) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
        return folders, names

    def _rules(self) -> tuple[IgnoreRule, ...]:
        """Return the rules that leave files out: one for `.git`, then those of the root's `.gitignore`.

        The first rule that matches a file decides. Without a `.gitignore`, or if it cannot be read, only the rule for
        `.git` is returned.
        """
        try:
            text = self._folder.read_text(".gitignore")
        except PathError:
            text = ""
        # The first rule decides.
        return (*parse_rules(_ALWAYS_IGNORED), *parse_rules(text))


def path_line(path: str) -> str:
    """Return a path in one line; as a JSON string if it has a character that could be read as a line end."""
    return path if path.isprintable() and not path.startswith('"') else visible_json(path)


def _wanted(pattern: str) -> IgnoreRule:
    """Return the rule of a pattern of files; raise `PathError` if it is invalid, empty, a comment or a negation.

    The rule also matches everything below a folder that it matches.
    """
    try:
        rule = parse_rule(pattern, below=True)
    except PatternError as error:
        raise PathError(f"{pattern[:100]!r} is no pattern: {error}.") from None
    if rule is None or rule.is_negated:
        raise PathError(f"{pattern[:100]!r} is no pattern of files; escape # or ! at its start with a backslash.")
    return rule
