"""The stages of a Dockerfile, as BuildKit's parser reads them, and the files that its context holds."""

from __future__ import annotations

import fnmatch
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dockerfile


@dataclass(frozen=True)
class Step:
    """One instruction, with the variables of its stage filled in; the shell fills them in for `RUN`."""

    name: str
    """In capitals, such as `RUN`."""
    words: tuple[str, ...]
    flags: dict[str, str]
    is_exec: bool
    """Whether the words were written as a JSON list."""


@dataclass
class Stage:
    """One stage of a build: its base, its steps, and what they set for its processes."""

    name: str
    base: str
    steps: list[Step] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    """Of `ARG` and `ENV`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Of `ENV` alone."""

    def last(self, name: str) -> Step:
        """The last instruction of this name."""
        return [step for step in self.steps if step.name == name][-1]

    @property
    def command(self) -> list[str]:
        """The image's command."""
        return [*self.last("ENTRYPOINT").words, *self.last("CMD").words]


def read_stages(file: Path, path: str = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin") -> list[Stage]:
    """Return the stages of a Dockerfile; `path` is the `PATH` of its base images."""
    shared: dict[str, str] = {}
    stages: list[Stage] = []
    for command in dockerfile.parse_file(str(file)):
        stage = stages[-1] if stages else None
        # As in a build: FROM sees the arguments before the first stage, and no other.
        known = shared if stage is None or command.cmd == "FROM" else {"PATH": path, **stage.variables}
        words = [str(word) for word in command.value]
        if command.cmd != "RUN" and not command.json:
            words = [string.Template(word).safe_substitute(known) for word in words]
        flags = {name: value for name, _, value in (flag.removeprefix("--").partition("=") for flag in command.flags)}
        match command.cmd:
            case "FROM":
                stages.append(Stage(words[2] if len(words) > 2 else "", words[0]))
            case "ARG":
                name, _, value = words[0].partition("=")
                (stage.variables if stage is not None else shared)[name] = value or shared.get(name, "")
            case _:
                assert stage is not None, f"{command.original!r} stands before FROM"
                if command.cmd == "ENV":
                    given = dict(zip(words[::2], words[1::2], strict=True))
                    stage.environment |= given
                    stage.variables |= given
        if stages and stage is not None and command.cmd != "FROM":
            stage.steps.append(Step(command.cmd, tuple(words), flags, command.json))
    return stages


@dataclass(frozen=True)
class Context:
    """The folder that a build reads, without what its `.dockerignore` leaves out."""

    root: Path

    def patterns(self) -> Sequence[str]:
        """The lines of the `.dockerignore` that are no comments."""
        lines = (self.root / ".dockerignore").read_text(encoding="utf-8").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]

    def holds(self, name: str) -> bool:
        """Whether the build sees a path, relative to the root; the last pattern that matches decides."""
        seen = True
        for pattern in self.patterns():
            if _matches(name, pattern.removeprefix("!")):
                seen = pattern.startswith("!")
        return seen

    def files(self, name: str) -> Iterator[str]:
        """The files and links under a path, relative to the root."""
        path = self.root / name
        if not self.holds(name):
            return
        if path.is_symlink() or not path.is_dir():
            yield name
            return
        for entry in sorted(path.iterdir()):
            yield from self.files(f"{name}/{entry.name}")


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern names a path or one of the folders above it."""
    parts = name.split("/")
    if pattern.startswith("**/"):
        return any(fnmatch.fnmatchcase(part, pattern.removeprefix("**/")) for part in parts)
    return fnmatch.fnmatchcase("/".join(parts[: pattern.count("/") + 1]), pattern)
