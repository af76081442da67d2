"""Reads the files of a skill's folder, and none outside of it.

Paths come from a model, so they are opened without following links.
"""

from __future__ import annotations

import mimetypes
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath

MOST_TEXT_BYTES = 5_000_000
"""Maximum bytes of a file that is read as text; a larger one is refused."""
MOST_LISTED = 100
"""Maximum files that a listing names."""
_DEEPEST = 20
"""Maximum depth of folders that a listing visits."""
_MOST_VISITED = 2_000
"""Maximum entries that a listing visits."""
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_READ |= getattr(os, "O_BINARY", 0)


class UnreadableFileError(Exception):
    """A file cannot or may not be read; the message has the reason and the fix."""


def parts_of(path: str) -> list[str]:
    """Return the parts of a relative path.

    Raises `UnreadableFileError` if the path is empty, absolute (also by `~` or a drive), leads upward, or has a
    backslash or characters that no file name can have.
    """
    if "\0" in path or any("\ud800" <= char <= "\udfff" for char in path):
        raise UnreadableFileError(f"{path!r} is no path; name a file of the skill.")
    # A backslash is a separator on Windows only, and no file of a skill needs one.
    if path.startswith(("/", "~")) or PureWindowsPath(path).drive or "\\" in path:
        raise UnreadableFileError(f"{path!r} is no relative path; write it from the skill's folder, as 'docs/a.md'.")
    parts = list(PurePosixPath(path).parts)
    if ".." in parts:
        raise UnreadableFileError(f"{path!r} leads out of the skill's folder; name a file in it.")
    if not parts:
        raise UnreadableFileError("The path is empty; name a file of the skill.")
    return parts


def read_bytes(folder: Path, path: str, most: int) -> bytes:
    """Return the content of a file in a folder.

    Args:
        folder: The folder, which may be a link itself.
        path: Relative path of the file in it.
        most: Maximum bytes of the file.

    Raises:
        UnreadableFileError: The path leads out of the folder or through a link, is no regular file, does not exist or
            cannot be read, or the file is too large.
    """
    parts = parts_of(path)
    try:
        with _opened(folder, parts) as descriptor:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise UnreadableFileError(f"{path!r} is {_kind(found.st_mode)}; name a file.")
            if found.st_size > most:
                raise UnreadableFileError(f"{path!r} has {found.st_size:,} bytes; the limit is {most:,}.")
            with os.fdopen(os.dup(descriptor), "rb") as file:
                # One more than allowed: the file may grow after its size was read.
                content = file.read(most + 1)
    except OSError as error:
        raise UnreadableFileError(f"{path!r} cannot be read: {error.strerror or type(error).__name__}.") from None
    if len(content) > most:  # it has grown since
        raise UnreadableFileError(f"{path!r} has more than {most:,} bytes, the limit.")
    return content


def read_skill_text(folder: Path, path: str) -> str:
    """Return the text of a UTF-8 file in a folder, without a byte order mark.

    Args:
        folder: The folder of the skill.
        path: The file's path in the folder, with `/` between its parts.

    Raises:
        UnreadableFileError: The file cannot be read (see `read_bytes`), has more than `MOST_TEXT_BYTES`, has a zero
            byte, or is not UTF-8.
    """
    content = read_bytes(folder, path, MOST_TEXT_BYTES)
    with suppress(UnicodeDecodeError):
        if b"\0" not in content:
            return content.decode("utf-8-sig")
    kind = mimetypes.guess_type(path)[0] or "of unknown type"
    raise UnreadableFileError(f"{path!r} is a binary file ({kind}, {len(content):,} bytes), which is not shown.")


def list_files(folder: Path) -> tuple[list[str], bool]:
    """Return the relative paths of the files in a folder and below, sorted, and whether there are more than are listed.

    Left out are links, hidden files and folders, names that cannot be printed, entries that are no regular files, and
    folders that cannot be read or are too deep. At most `MOST_LISTED` are listed, and `_MOST_VISITED` entries visited,
    level by level.
    """
    found, visited = list[str](), 0
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop(0)
        try:
            entries = sorted(os.scandir(folder.joinpath(*parts)), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            visited += 1
            if visited > _MOST_VISITED or len(found) > MOST_LISTED:
                return sorted(found[:MOST_LISTED]), True
            if entry.name.startswith(".") or not entry.name.isprintable() or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False) and len(parts) < _DEEPEST:
                pending.append((*parts, entry.name))
            elif entry.is_file(follow_symlinks=False):
                found.append("/".join([*parts, entry.name]))
    return sorted(found[:MOST_LISTED]), len(found) > MOST_LISTED


@contextmanager
def _opened(folder: Path, parts: list[str]) -> Iterator[int]:
    """Open a file without following a link in its path, and yield the descriptor, which is closed at the end of the
    block.

    Where the system cannot open relative to a folder (Windows), `_open_by_path` opens the file by its path.

    Args:
        folder: The folder, which may be a link itself.
        parts: Parts of the file's path in the folder.

    Raises:
        UnreadableFileError: A part is a link, or neither a folder nor (at the end) a regular file.
        OSError: A part does not exist or cannot be opened.
    """
    if os.open not in os.supports_dir_fd:
        descriptor = _open_by_path(folder, parts)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        return
    current = os.open(folder, os.O_RDONLY | _DIRECTORY)
    try:
        for at, part in enumerate(parts):
            mode = os.stat(part, dir_fd=current, follow_symlinks=False).st_mode
            last = at == len(parts) - 1
            # Also before opening: to open a device may have an effect.
            if stat.S_ISLNK(mode) or not (stat.S_ISDIR(mode) or (last and stat.S_ISREG(mode))):
                raise UnreadableFileError(f"{'/'.join(parts[: at + 1])!r} is {_kind(mode)}; name a file of the skill.")
            inner = os.open(part, _READ | (0 if last else _DIRECTORY), dir_fd=current)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def _open_by_path(folder: Path, parts: list[str]) -> int:
    """Return the descriptor of a file on a system without `openat`, such as Windows; `UnreadableFileError` for a
    link."""
    path = folder.joinpath(*parts)
    if path.resolve(strict=True) != folder.resolve(strict=True).joinpath(*parts):
        raise UnreadableFileError(f"{'/'.join(parts)!r} is a link; name a file of the skill.")
    return os.open(path, _READ)


def _kind(mode: int) -> str:
    """Return the kind of a file as a phrase for an error message."""
    if stat.S_ISLNK(mode):
        return "a link, which is not followed"
    return "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "no regular file"
