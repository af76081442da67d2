"""Opens files below one folder, and no others.

Each part of a path is opened relative to the folder before it, without following links. This module itself reads and
follows links, so that a link that another process changes meanwhile cannot lead out of the folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from graph_agent.base.errors import ConfigError
from graph_agent.integrations.workspace.protection import is_of_git, own_part

MOST_DEPTH = 100
"""Maximum number of folders above a file; each takes a descriptor while a path is resolved."""
_MOST_PATH_CHARS = 4096
_MAX_LINKS = 40
"""Maximum links that one path may lead through."""
_BINARY_PROBE = 8192
"""Bytes at the begin of a file in which a NUL character shows that it is binary."""
_LOCK_S = 30.0
"""Seconds to wait for the lock of a folder, and between two attempts."""
_LOCK_PAUSE_S = 0.002
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
# A named pipe without a writer would block the call.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | _NOFOLLOW


_fallback_lock = threading.Lock()
"""Replaces the lock of a folder on a file system without locks; for this process only."""


class PathError(Exception):
    """Raised when a path cannot be used; the message is written for the model."""


@dataclass(frozen=True, slots=True)
class _Place:
    """An entry of a folder, which may not exist; it was not a link when it was found."""

    parent: int
    """Descriptor of the folder."""
    name: str
    """Name of the entry in the folder; `.` for the folder itself."""
    path: str
    """Path of the entry below the root, with links resolved; `.` for the root."""


class Folder:
    """Reads and writes the files of one folder.

    Args:
        root: The folder.
        protected: Paths below it that are never written, including everything below them.
        max_bytes: Maximum size of a file that is read or written.

    Raises:
        ConfigError: There is no such folder, or the system cannot open files relative to a folder.
    """

    def __init__(self, root: Path, protected: Sequence[str] = (), max_bytes: int = 10_000_000) -> None:
        if os.open not in os.supports_dir_fd or not _NOFOLLOW:
            raise ConfigError("A workspace needs a POSIX system, which opens files relative to a folder.")
        try:
            self.root = root.resolve(strict=True)
        except OSError as error:
            raise ConfigError(f"The workspace {root} cannot be used: {error.strerror}; create the folder.") from None
        if not self.root.is_dir() or self.root == Path(self.root.anchor):
            raise ConfigError(f"The workspace {root} is no folder below the root of the file system; name one.")
        self.protected = tuple(path.strip("/") for path in protected)
        """Paths that are never written, in addition to those of `protection`."""
        self.max_bytes = max_bytes
        """Maximum size of a file that is read or written."""

    def read(self, path: str) -> bytes:
        """Return the content of a file, given by its path relative to the folder, or an absolute one below it.

        Raises:
            PathError: The path is not below the folder, not a regular file, cannot be read, or is larger than
                `max_bytes`.
        """
        with self._found(path) as place:
            return self._read(place, path)

    def read_text(self, path: str) -> str:
        """Return the text of a file, with its line ends.

        Raises:
            PathError: The path is not below the folder, not a regular file, cannot be read, is larger than `max_bytes`,
                or is not UTF-8 text.
        """
        return _decoded(self.read(path), path)

    def write(self, path: str, text: str) -> bool:
        """Replace a file, or create it with its missing folders; return whether it existed.

        The file is replaced by a new one, so that another hard link to the old file keeps the old content.

        Raises:
            PathError: The path is not below the folder, protected or not a regular file, the text is too long, the file
                cannot be written, or another process has locked its folder for 30 s.
        """
        # Also before links are followed, so that a refused write leaves no new folders.
        self._check_writable(os.path.normpath("/".join(self._parts_of(path, path)) or "."))
        with self._found(path, make_parents=True) as place:
            self._check_writable(place.path)
            with _locked(place.parent, path) as name_of_temporary:
                return self._replace(place, path, text, name_of_temporary)

    def edit(self, path: str, change: Callable[[str], str]) -> None:
        """Replace the text of a file by what `change` returns for it; what `change` raises is raised.

        Other edits and writes in the same folder by this package wait, also in other processes. A change by another
        program is detected, because the file is read again before it is replaced.

        Raises:
            PathError: The path is not below the folder, protected, missing, not a text file, or too large before or
                after the change; the file cannot be written; another program has changed it meanwhile, or another
                process has locked its folder for 30 s.
        """
        with self._found(path) as place:
            self._check_writable(place.path)
            with _locked(place.parent, path) as name_of_temporary:
                content = self._read(place, path)
                text = change(_decoded(content, path))
                self._replace(place, path, text, name_of_temporary, content)

    def _replace(
        self, place: _Place, path: str, text: str, name_of_temporary: Callable[[str], str], content: bytes | None = None
    ) -> bool:
        """Replace a file by a text, or create it; return whether it existed. Its permissions remain.

        Raises `PathError`, and leaves the old file unchanged, if the text is too long, the file cannot be written, or,
        with `content`, the file's content is no longer this.
        """
        new = text.encode(errors="surrogatepass")
        if len(new) > self.max_bytes:
            raise PathError(f"The text has {len(new)} bytes; a file may have {self.max_bytes}.")
        # The new file must keep the permissions of the old one, e.g. those of a script.
        mode = self._mode_of(place, path)
        temporary = name_of_temporary(place.name)
        try:
            with suppress(FileNotFoundError):  # left by a process that was killed
                os.unlink(temporary, dir_fd=place.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
            with open(os.open(temporary, flags, mode or 0o666, dir_fd=place.parent), "wb") as file:
                file.write(new)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
            if content is not None and self._read(place, path) != content:
                raise PathError(f"{path} has been changed by another program; read it and edit it again.")
            # In one step, so that a reader sees the old or the new file, and a kill leaves one of them.
            os.replace(temporary, place.name, src_dir_fd=place.parent, dst_dir_fd=place.parent)
        except (OSError, PathError) as error:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=place.parent)
            if isinstance(error, PathError):
                raise
            raise PathError(f"{path} cannot be written: {error.strerror}.") from None
        return mode is not None

    @contextmanager
    def opened(self, folder: str) -> Iterator[int]:
        """Yield the descriptor of a folder below the root, opened without following links; empty for the root itself.

        Raises:
            OSError: It cannot be opened.
        """
        descriptor = os.open(self.root, _DIRECTORY)
        try:
            for name in filter(None, folder.split("/")):
                inner = os.open(name, _DIRECTORY | _NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, place: _Place, path: str) -> bytes:
        """Return the content of a regular file at a place; `path` is for errors.

        Raises `PathError` if it cannot be read, is no regular file, or is larger than `max_bytes`.
        """
        try:
            descriptor = os.open(place.name, _READ, dir_fd=place.parent)
        except OSError as error:
            raise PathError(f"{path} cannot be read: {error.strerror}.") from None
        try:
            _check_regular(os.fstat(descriptor), path)
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(self.max_bytes + 1)
        finally:
            os.close(descriptor)
        if len(content) > self.max_bytes:
            raise PathError(f"{path} has over {self.max_bytes} bytes; read a part of it with a command.")
        return content

    def _mode_of(self, place: _Place, path: str) -> int | None:
        """Return the permission bits of a file; None if it does not exist. `path` is for the error.

        Raises `PathError` if it is not a regular file.
        """
        try:
            status = os.stat(place.name, dir_fd=place.parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        _check_regular(status, path)
        return stat.S_IMODE(status.st_mode)

    @contextmanager
    def _found(self, path: str, *, make_parents: bool = False) -> Iterator[_Place]:
        """Yield the place of a path; its descriptors are closed on exit.

        Args:
            path: The path, relative to the root or absolute.
            make_parents: Whether to create missing folders.

        Raises:
            PathError: The path leads out of the folder, or a part of it or the root cannot be opened.
        """
        opened: list[int] = []
        try:
            opened.append(os.open(self.root, _DIRECTORY))
            yield self._walk(path, opened, make_parents=make_parents)
        except OSError as error:
            raise PathError(f"{path} cannot be used: {error.strerror}.") from None
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _walk(self, path: str, opened: list[int], *, make_parents: bool) -> _Place:
        """Resolve a path part by part, and return its place, whose last part may not exist; the folder itself is `.`.

        `opened` begins with the descriptor of the folder, and receives those of the folders below it, which the caller
        closes. `make_parents` creates missing folders. Raises `PathError` if the path leads out of the folder, has a
        NUL or too many links, folders or characters, or if a folder to create is protected, and `OSError` if a folder
        cannot be opened.
        """
        if "\0" in path:
            raise PathError(f"{path!r} is no path: it has a NUL character.")
        if len(path) > _MOST_PATH_CHARS:
            raise PathError(f"{path[:100]!r}… is no path: it has {len(path)} characters.")
        parts = deque(self._parts_of(path, path))
        names: list[str] = []
        links = 0
        while parts:
            name = parts.popleft()
            if name == "..":
                if not names:
                    raise PathError(f"{path} is outside of the folder.")
                names.pop()
                os.close(opened.pop())
                continue
            target = _link_target(name, opened[-1])
            if target is None:
                if not parts:
                    return _Place(opened[-1], name, "/".join([*names, name]))
                if len(names) == MOST_DEPTH:
                    raise PathError(f"{path} is below more than {MOST_DEPTH} folders.")
                if make_parents:
                    self._check_writable("/".join([*names, name]))
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=opened[-1])
                opened.append(os.open(name, _DIRECTORY | _NOFOLLOW, dir_fd=opened[-1]))
                names.append(name)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise PathError(f"{path} has over {_MAX_LINKS} links.")
            if target.startswith("/"):
                for descriptor in opened[1:]:
                    os.close(descriptor)
                del opened[1:]
                names.clear()
            parts.extendleft(reversed(self._parts_of(target, path)))
        return _Place(opened[-1], ".", "/".join(names) or ".")

    def _check_writable(self, path: str) -> None:
        """Raise `PathError` if a path below the root must not be written.

        That is so below a path of `protected` (letter case is ignored), for files from which git would run programs,
        and for the agent's own files, such as its database, unless a reviewer has approved the running call.
        """
        # Some file systems do not distinguish case.
        below = f"{path}/".casefold()
        if any(below.startswith(f"{each}/".casefold()) for each in self.protected):
            raise PathError(f"{path} is protected; the person must change it.")
        if is_of_git(self.root, path):
            raise PathError(f"{path} is protected: git would run programs that it names; the person must change it.")
        if (what := own_part(self.root, path)) is not None:
            raise PathError(f"{path} is protected: it is {what}. A person may approve this, with an approval rule.")

    def _parts_of(self, path: str, given: str) -> list[str]:
        """Return the parts of a path, without empty ones and `.`; an absolute path is made relative to the root.

        Raises `PathError`, which names `given`, for an absolute path outside the root.
        """
        if path.startswith("/"):
            root = f"{self.root}/"
            if not f"{path}/".startswith(root):
                raise PathError(f"{given} is outside of the folder.")
            path = path[len(root) :]
        return [part for part in path.split("/") if part not in ("", ".")]


@contextmanager
def _locked(folder: int, path: str) -> Iterator[Callable[[str], str]]:
    """Hold the lock of a folder, across threads and processes; yield a function that names temporary files.

    Under the lock, the name depends only on the file's name, so that the next write replaces what a killed process
    left. On a file system without locks of folders, only threads are excluded, and names are random.

    Args:
        folder: Descriptor of the folder, opened for this lock.
        path: The path for the error message.

    Raises:
        PathError: Another process holds the lock for more than 30 s.
    """
    import fcntl  # not on Windows

    ends = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > ends:
                raise PathError(f"{path} cannot be written: another process has locked its folder.") from None
            time.sleep(_LOCK_PAUSE_S)
        except OSError:
            # Some network file systems have no locks of folders.
            with _fallback_lock:
                yield lambda _: f".{secrets.token_hex(8)}.tmp"
            return
    try:
        yield lambda name: f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}.tmp"
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)


def _decoded(content: bytes, path: str) -> str:
    """Return the text of a file.

    Raises `PathError` if it is not UTF-8, or has a NUL in its first `_BINARY_PROBE` bytes.
    """
    if b"\0" in content[:_BINARY_PROBE]:
        raise PathError(f"{path} is a binary file of {len(content)} bytes.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PathError(f"{path} is not UTF-8 text.") from None


def _check_regular(status: os.stat_result, path: str) -> None:
    """Raise `PathError` if a file is a folder or no regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise PathError(f"{path} is {'a folder' if stat.S_ISDIR(status.st_mode) else 'no regular file'}.")


def _link_target(name: str, folder: int) -> str | None:
    """Return the target of the link `name` in an open folder, as it is stored; None if it is no link or does not exist.

    Raises `OSError` for another failure.
    """
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise
