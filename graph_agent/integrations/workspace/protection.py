"""Protects files of a workspace: git's own, and those from which the agent itself is loaded.

Git runs programs that its files name, later, outside the workspace and with the user's rights. It looks for `.git` in
each folder, and regards a folder with `HEAD`, `objects` and `refs` as a repository (a bare one).
"""

from __future__ import annotations

import os
import secrets
import time
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from langchain_core.tools import ToolException

from graph_agent.base._compat import read_running_state
from graph_agent.base._internal import own_files
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.calls import canonical_arguments, running_call
from graph_agent.base.history.call_events import since_plan
from graph_agent.base.history.events import is_own

_SCAN_S = 20.0
"""Maximum seconds for finding git's files."""
_TOO_LARGE = "The workspace has too many folders to find git's files in them, so no command may run; name a part of it."
_BARE = ("HEAD", "commondir", "objects", "refs")
"""Names by which git recognizes a folder as a repository."""
_LONGEST_BARE = max(map(len, _BARE))

logger = get_logger("graph_agent.workspace.protection")

Identity = tuple[int, int]
"""Device and inode of a file."""


def is_git_name(name: str) -> bool:
    """Whether a file system may treat a name as `.git`.

    It may ignore case or characters without width, or the name may be the short form `git~1` on Windows.
    """
    if not name.isascii():
        name = "".join(char for char in name if unicodedata.category(char) != "Cf")
    return name.casefold() in (".git", "git~1")


def is_of_git(root: Path, path: str) -> bool:
    """Whether git would read a file as its own, or the file would make git regard a folder as a repository.

    Args:
        root: The workspace.
        path: The file's path below it; it may not exist.
    """
    parts = path.split("/")
    if any(map(is_git_name, parts)):
        return True
    return any(_is_bare({*_layout(root.joinpath(*parts[:at])), part.casefold()}) for at, part in enumerate(parts))


def own_part(root: Path, path: str) -> str | None:
    """Return what a file is to this agent, as the end of "it is …", such as its database; None for other files.

    None is also returned within a call that a reviewer has approved.
    """
    what = own_files.describe_file(f"{root}/{path}")
    return None if what is None or was_approved() else what


def was_approved() -> bool:
    """Whether a reviewer has approved the running call with exactly its arguments, as planned or as edited.

    The newest decision since the plan counts. False outside an agent's call, and for any other decision.
    """
    running = running_call()
    if running is None:
        return False
    call = running[1]
    asked = None
    approved = None
    for entry in since_plan(read_running_state(["events"]).get("events", ())):
        if is_own(entry, "approval_request"):
            asked = next((each["arguments"] for each in entry["calls"] if each["id"] == call["id"]), asked)
        elif is_own(entry, "approval_decision") and entry["id"] == call["id"]:
            approved = {"approve": asked, "edit": entry.get("arguments")}.get(entry["decision"])
    # What runs must be exactly what was approved.
    return approved is not None and canonical_arguments(approved) == canonical_arguments(call["arguments"])


def _git_places(root: Path) -> dict[str, Identity]:
    """Return path → identity of each `.git` and each bare repository below a folder, at any depth.

    Links are not followed, unreadable folders are skipped, and bare repositories are not searched.

    Raises:
        TimeoutError: The search takes more than 20 s.
    """
    ends = time.monotonic() + _SCAN_S
    found: dict[str, Identity] = {}
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        if time.monotonic() > ends:
            raise TimeoutError
        below, names = list[str](), list[str]()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if is_git_name(entry.name):
                    found |= _identity(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
        if _is_bare(names):
            # What is inside a bare repository belongs to it, and is not searched.
            found |= _identity(folder)
        else:
            pending += below
    return found


class Guard:
    """The files that one command must not change; create it before the command runs.

    Creates empty placeholders for some missing files of the agent, unless the call was approved.

    Args:
        root: The workspace's folder.
        protected: Paths in it that are never written.

    Raises:
        ToolException: The folder has too many entries to find git's files.
    """

    def __init__(self, root: Path, protected: Iterable[str]) -> None:
        self._root = root
        try:
            self._git = _git_places(root)
        except TimeoutError:
            raise ToolException(_TOO_LARGE) from None
        paths = [f"{root}/{name}" for name in protected]
        self._is_approved = was_approved()
        if not self._is_approved:
            paths += own_files.files_below(str(root))
            own_files.make_placeholders(paths)
        self._replacements = own_files.replacements_below(str(root))
        # The processes of this agent may make files of its database at any time.
        self._missing = [path for path in paths if not os.path.lexists(path) and not own_files.is_of_database(path)]
        self._read_only = {path for path in [*self._git, *paths] if os.path.lexists(path) and not os.path.islink(path)}

    def mounts(self) -> list[str]:
        """Return arguments of bubblewrap that make the protected paths read-only.

        Each folder above such a path is mounted on itself, because a mounted folder can be neither renamed nor removed.
        """
        arguments = list[str]()
        done = set[str]()
        for path in sorted(self._read_only, key=lambda path: path.split("/")):
            above = [str(each) for each in reversed(Path(path).parents) if self._root in each.parents]
            if any(each in self._read_only for each in above):
                continue
            for each in above:
                if each not in done:
                    arguments += ["--bind-try", each, each]
                    done.add(each)
            arguments += ["--ro-bind-try", path, path]
        return arguments

    def set_aside_new(self) -> list[str]:
        """Rename new files that the command must not have created, and return their new paths; empty if there are none.

        They are files from which git runs programs and, without an approval, the agent's own files. If the folder has
        become too large to search for git's files, these are not renamed, with a warning.
        """
        known = set(self._git.values())
        try:
            new = [_sign_of(path) for path, each in _git_places(self._root).items() if each not in known]
        except TimeoutError:
            logger.warning("A workspace has too many folders: what a command made was not looked at.")
            new = []
        new += [path for path in self._missing if os.path.lexists(path)]
        if not self._is_approved:
            new += own_files.replacements_below(str(self._root)) - self._replacements
        return _set_aside(new)


def _is_bare(names: Iterable[str]) -> bool:
    """Whether names of a folder's entries make git regard the folder as a repository."""
    found = {name.casefold() for name in names if len(name) <= _LONGEST_BARE}
    return "head" in found and ("commondir" in found or {"objects", "refs"} <= found)


def _layout(folder: Path) -> list[str]:
    """Return those of git's names that exist in a folder."""
    return [name for name in _BARE if os.path.lexists(folder / name)]


def _identity(path: str) -> dict[str, Identity]:
    """Return path → identity (device and inode) of a file or link; empty if it does not exist or cannot be examined."""
    try:
        status = os.lstat(path)
    except OSError:
        return {}
    return {path: (status.st_dev, status.st_ino)}


def _sign_of(repository: str) -> str:
    """Return the file without which git does not regard a folder as a repository: `.git` itself, or `HEAD` of a bare
    one.
    """
    return repository if is_git_name(os.path.basename(repository)) else os.path.join(repository, "HEAD")


def _set_aside(paths: Iterable[str]) -> list[str]:
    """Rename files to `<path>.refused-…`, so that neither git nor the agent reads them.

    Returns the new paths; files that cannot be renamed are left out.
    """
    moved = []
    for path in paths:
        refused = f"{path}.refused-{secrets.token_hex(3)}"
        with suppress(OSError):
            os.rename(path, refused)
            moved.append(refused)
    return moved
