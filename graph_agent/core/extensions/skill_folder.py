"""Reads one skill from its `SKILL.md`, whose front matter is agentskills.io's.

The front matter is the YAML between two lines `---` at the begin of the file.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graph_agent.base._internal.text import clean, excerpt
from graph_agent.base._internal.yaml_files import parse_yaml
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.core.extensions.skill_files import UnreadableFileError, read_bytes

FILE_NAMES = ("SKILL.md", "skill.md")
"""Names of a skill's file, the first one that exists counts."""
MOST_NAME_CHARS = 64
"""Maximum characters of a skill's name."""
MOST_DESCRIPTION_CHARS = 1024
"""Maximum characters of a skill's description."""
MOST_COMPATIBILITY_CHARS = 500
"""Maximum characters of the field `compatibility`."""
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
    """Return the path of the `SKILL.md`, or else `skill.md`, in a folder; None without one, or if the folder cannot be
    read."""
    try:
        names = set(os.listdir(folder))
    except OSError:
        return None
    return next((folder / name for name in FILE_NAMES if name in names), None)


def key_of(name: str) -> str:
    """Return a skill's name in the form in which names are compared: Unicode NFKC, without surrounding spaces."""
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
    r"""Split a `SKILL.md` into its front matter and the text after it, without surrounding spaces and empty lines.

    Args:
        text: The content, with line ends `\n`.
        where: Text that names the file; it begins the error message.

    Raises:
        ConfigError: The first line is not `---`, or no later one is. Spaces may follow the hyphens.
    """
    lines = text.split("\n")
    if lines[0].rstrip() != _FENCE:
        raise ConfigError(f"{where}: the first line is {_shown(lines[0])}; begin the file with the line '---'.")
    for at, line in enumerate(lines[1:], 1):
        if line.rstrip() == _FENCE:
            return "\n".join([*lines[1:at], ""]), "\n".join(lines[at + 1 :]).strip()
    raise ConfigError(f"{where}: the front matter has no end; close it with the line '---'.")


def _faults(content: Mapping[Any, Any], folder: Path) -> list[str]:
    """Return what is wrong with the front matter, one clause for each unknown field, missing field and invalid value;
    empty if it is valid.

    Args:
        content: The front matter.
        folder: The skill's folder, whose name must be that of the skill.
    """
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
    """Return what is wrong with a name, as a clause; None if it is valid and equals the folder's name.

    A valid name has 1 to `MOST_NAME_CHARS` characters: lowercase letters and digits of any script, and single hyphens
    between them. Unicode forms are normalized, and spaces around the name removed, before all checks.
    """
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
    """Return what is wrong with a description, as a clause; None if it is valid: a text that is not blank, of at most
    `MOST_DESCRIPTION_CHARS` characters.
    """
    if not isinstance(value, str) or not value.strip():
        return "write what the skill does and when to use it"
    if len(value) > MOST_DESCRIPTION_CHARS:
        return f"it has {len(value)} characters; write {MOST_DESCRIPTION_CHARS} at most"
    return None


def _text_fault(value: Any, _: Path) -> str | None:
    """Return that a value is no text, as a clause; None for text."""
    return None if isinstance(value, str) else "write a text"


def _compatibility_fault(value: Any, folder: Path) -> str | None:
    """Return what is wrong with a `compatibility`, as a clause; None if it is valid: any text, also an empty one, of at
    most `MOST_COMPATIBILITY_CHARS` characters.
    """
    if isinstance(value, str) and len(value) > MOST_COMPATIBILITY_CHARS:
        return f"it has {len(value)} characters; write {MOST_COMPATIBILITY_CHARS} at most"
    return _text_fault(value, folder)


def _metadata_fault(value: Any, _: Path) -> str | None:
    """Return what is wrong with a `metadata`, as a clause; None if it is an empty text or a mapping of text to text."""
    if value == "":  # the key without a value
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        return "write keys with texts, such as {author: 'ana'}"
    return None


def _allowed_tools_fault(value: Any, _: Path) -> str | None:
    """Return what is wrong with an `allowed-tools`, as a clause; None if it is a text or a list of texts, also if they
    are empty."""
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
    """Return the entries of `allowed-tools`; a text is split at spaces, line ends and commas outside of parentheses, a
    list is not. Empty entries are left out."""
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
