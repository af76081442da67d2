"""Reads one skill: the files of its folder, none outside of it, and `SKILL.md`, whose front matter is agentskills.io's.

The front matter is the YAML between two lines `---` at the begin of the file. Paths come from a model, so they are
opened without following links.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
import stat
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from graph_agent.base._internal.text import clean, excerpt
from graph_agent.base._internal.yaml_files import parse_yaml
from graph_agent.base.errors import ConfigError, did_you_mean

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
    """Return the parts of a relative path; raise `UnreadableFileError` if it is empty, absolute or leads upward."""
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
    """Return the content of a file in a folder, which may be a link itself.

    Args:
        folder: The folder.
        path: Relative path of the file in it.
        most: Maximum bytes of the file.

    Raises:
        UnreadableFileError: The path leads out of the folder or through a link, is no regular file, or cannot be read,
            or the file is too large.
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
    """Return the text of a UTF-8 file in a folder.

    Raises:
        UnreadableFileError: The file cannot be read (see `read_bytes`), has more than `MOST_TEXT_BYTES`, or is binary.
    """
    content = read_bytes(folder, path, MOST_TEXT_BYTES)
    with suppress(UnicodeDecodeError):
        if b"\0" not in content:
            return content.decode("utf-8-sig")
    kind = mimetypes.guess_type(path)[0] or "of unknown type"
    raise UnreadableFileError(f"{path!r} is a binary file ({kind}, {len(content):,} bytes), which is not shown.")


def list_files(folder: Path) -> tuple[list[str], bool]:
    """Return the relative paths of the files in a folder and below, sorted, and whether there are more than it lists.

    Links, hidden files and entries that are no regular files are left out; so are folders that cannot be read.
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
    """Yield the descriptor of a file opened without following a link below the folder; it is closed at the end.

    Raises `UnreadableFileError` for a link or another kind of file, and `OSError`.
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


FILE_NAMES = ("SKILL.md", "skill.md")
"""Names of a skill's file, the first one that exists counts."""
MOST_NAME_CHARS = 64
MOST_DESCRIPTION_CHARS = 1024
MOST_COMPATIBILITY_CHARS = 500
MOST_FILE_BYTES = 1_000_000
"""Maximum bytes of a `SKILL.md`."""

_FENCE = "---"
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill: the front matter of its `SKILL.md`, and the instructions after it."""

    name: str
    """Name of the skill, which is also the name of its folder."""
    description: str
    """What the skill does and when to use it, for the model."""
    folder: Path
    """Absolute path of the skill's folder."""
    body: str = field(repr=False)
    """The instructions: the text after the front matter, stripped."""
    digest: str
    """The first 16 hexadecimal digits of the SHA-256 of the `SKILL.md`."""
    license: str | None = None
    """License of the skill; None without that field."""
    compatibility: str | None = None
    """What the skill needs of its environment; None without that field."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Further fields of the skill's author; empty without any."""
    allowed_tools: tuple[str, ...] | None = None
    """The entries of `allowed-tools`, in order; None without that field, which limits nothing."""


def skill_file(folder: Path) -> Path | None:
    """Return the path of the `SKILL.md` in a folder; None without one, or if the folder cannot be read."""
    try:
        names = set(os.listdir(folder))
    except OSError:
        return None
    return next((folder / name for name in FILE_NAMES if name in names), None)


def key_of(name: str) -> str:
    """Return the form in which names of skills are compared: NFKC, without surrounding spaces."""
    return unicodedata.normalize("NFKC", name.strip())


def read_skill(folder: str | Path) -> Skill:
    """Return the skill in a folder.

    Args:
        folder: The skill's folder.

    Raises:
        ConfigError: It has no readable `SKILL.md`, or its front matter does not follow the specification; the message
            has one line for each fault.
    """
    # Not resolved: the folder may be a link, and its name must be that of the skill.
    path = Path(os.path.abspath(folder))
    file = skill_file(path)
    if file is None:
        raise ConfigError(f"Skill {folder}: there is no SKILL.md; a skill is a folder with that file.")
    where = f"Skill {Path(folder) / file.name}"
    try:
        raw = read_bytes(path, file.name, MOST_FILE_BYTES)
        # Editors on Windows write a byte order mark.
        text = raw.decode("utf-8-sig")
    except UnreadableFileError as error:
        raise ConfigError(f"{where}: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8: byte {error.start} is {error.object[error.start]:#04x}.") from None
    front, body = _split(text.replace("\r\n", "\n").replace("\r", "\n"), where)
    content = parse_yaml(front, f"{where}: front matter", texts=True)
    if not isinstance(content, dict):
        raise ConfigError(
            f"{where}: front matter: expected keys such as 'name' and 'description', got {_shown(content)}."
        )
    faults = [f"{where}: {fault}" for fault in _faults(content, path)]
    if faults:
        raise ConfigError("\n".join(faults))
    return Skill(
        name=content["name"].strip(),
        description=clean(content["description"].strip()),
        folder=path,
        body=clean(body),
        digest=hashlib.sha256(raw).hexdigest()[:16],
        license=content.get("license"),
        compatibility=content.get("compatibility"),
        metadata=content.get("metadata") or {},
        allowed_tools=_entries(content["allowed-tools"]) if "allowed-tools" in content else None,
    )


def _split(text: str, where: str) -> tuple[str, str]:
    """Return the front matter and the text after it; raise `ConfigError` if a line `---` is missing.

    Args:
        where: The file, as the beginning of the error message.
    """
    lines = text.split("\n")
    if lines[0].rstrip() != _FENCE:
        raise ConfigError(f"{where}: the first line is {_shown(lines[0])}; begin the file with the line '---'.")
    for at, line in enumerate(lines[1:], 1):
        if line.rstrip() == _FENCE:
            return "\n".join([*lines[1:at], ""]), "\n".join(lines[at + 1 :]).strip()
    raise ConfigError(f"{where}: the front matter has no end; close it with the line '---'.")


def _faults(content: Mapping[Any, Any], folder: Path) -> list[str]:
    """Return what is wrong with the front matter, one clause for each fault; empty if it is valid."""
    faults = [
        f"unknown field {_shown(key)}; {did_you_mean(str(key), _CHECKS)} Own fields belong under 'metadata'."
        for key in content
        if key not in _CHECKS
    ]
    missing = [name for name in ("name", "description") if name not in content]
    faults += [f"the field '{name}' is missing; add it to the front matter." for name in missing]
    for name, check in _CHECKS.items():
        if name in content and (fault := check(content[name], folder)) is not None:
            faults.append(f"{name}={_shown(content[name])}: {fault}.")
    return faults


def _name_fault(value: Any, folder: Path) -> str | None:
    """Return what is wrong with a name, as a clause; None if it is valid and equals the folder's name."""
    if not isinstance(value, str) or not value.strip():
        return "write a text, such as 'pdf-forms'"
    name = key_of(value)
    if len(name) > MOST_NAME_CHARS:
        return f"it has {len(name)} characters; write {MOST_NAME_CHARS} at most"
    if not all(char.isalnum() or char == "-" for char in name) or name != name.lower():
        return "use lowercase letters, digits and hyphens, such as 'pdf-forms'"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        return "a hyphen stands between two words, once"
    if unicodedata.normalize("NFKC", folder.name) != name:
        return f"its folder is {folder.name!r}; give both the same name"
    return None


def _description_fault(value: Any, _: Path) -> str | None:
    """Return what is wrong with a description, as a clause; None if it is valid."""
    if not isinstance(value, str) or not value.strip():
        return "write what the skill does and when to use it"
    if len(value) > MOST_DESCRIPTION_CHARS:
        return f"it has {len(value)} characters; write {MOST_DESCRIPTION_CHARS} at most"
    return None


def _text_fault(value: Any, _: Path) -> str | None:
    """Return that a value is no text, as a clause; None for text."""
    return None if isinstance(value, str) else "write a text"


def _compatibility_fault(value: Any, folder: Path) -> str | None:
    """Return what is wrong with a `compatibility`, as a clause; None if it is valid."""
    if isinstance(value, str) and len(value) > MOST_COMPATIBILITY_CHARS:
        return f"it has {len(value)} characters; write {MOST_COMPATIBILITY_CHARS} at most"
    return _text_fault(value, folder)


def _metadata_fault(value: Any, _: Path) -> str | None:
    """Return what is wrong with a `metadata`, as a clause; None if it is empty or a mapping of text to text."""
    if value == "":  # the key without a value
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        return "write keys with texts, such as {author: 'ana'}"
    return None


def _allowed_tools_fault(value: Any, _: Path) -> str | None:
    """Return what is wrong with an `allowed-tools`, as a clause; None if it is a text or a list of texts."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        return None
    return "write names of tools, separated by spaces, such as 'read_file search'"


_CHECKS: dict[str, Callable[[Any, Path], str | None]] = {
    "name": _name_fault,
    "description": _description_fault,
    "license": _text_fault,
    "compatibility": _compatibility_fault,
    "metadata": _metadata_fault,
    "allowed-tools": _allowed_tools_fault,
}
"""Field of the front matter → function that returns what is wrong with a value of it, None for a valid one."""


def _entries(value: str | list[str]) -> tuple[str, ...]:
    """Return the entries of `allowed-tools`; a text is split at spaces and commas outside of parentheses."""
    if isinstance(value, list):
        return tuple(filter(None, map(str.strip, value)))
    entries, entry, depth = list[str](), "", 0
    for char in value:
        depth = max(0, depth + (char == "(") - (char == ")"))
        if depth == 0 and (char.isspace() or char == ","):
            entries.append(entry)
            entry = ""
        else:
            entry += char
    return tuple(filter(None, [*entries, entry.strip()]))


def _shown(value: Any) -> str:
    """Return the `repr` of a value for an error message, shortened, with escapes for invisible characters."""
    return excerpt(repr(value) if str(value).isprintable() else ascii(value), _SHOWN_CHARS)
