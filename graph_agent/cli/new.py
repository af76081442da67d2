"""Implements `graph-agent new`, which writes the files of a first agent, with tests that pass."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from graph_agent._internal.text import printable
from graph_agent.cli.terminal import Terminal
from graph_agent.errors import InputError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_FILES = {
    "agent.yaml.txt": "agent.yaml",
    "tools.py.txt": "{module}_tools.py",
    "test_agent.py.txt": "tests/test_agent.py",
    "README.md.txt": "README.md",
    "gitignore.txt": ".gitignore",
}
"""Template → file in the new folder."""


def new(
    name: Annotated[str, typer.Argument(help="The agent's name, and its folder: letters, digits, `-` and `_`.")],
    folder: Annotated[
        Path, typer.Option("--in", help="The folder that the new one is created in.", show_default="the current one")
    ] = Path(),
) -> None:
    """Create a folder with an agent file, a tool and tests that pass without a key."""
    target = create(name, folder)
    out = Terminal()
    out.line(f"Created {target}:")
    for file in sorted(each.relative_to(target) for each in target.rglob("*") if each.is_file()):
        out.line(f"  {file}")
    out.line(f"Next: cd {shlex.quote(str(target))}, then")
    out.print("  python -m pytest        # needs no key")
    out.print("  graph-agent doctor      # checks the key, the model and the tools")
    out.print("  graph-agent chat")


def create(name: str, folder: Path) -> Path:
    """Write the files, and return their folder.

    Raises:
        InputError: If the name is invalid, the folder exists or cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"name={printable(name)!r}: a name begins with a letter and has letters, digits, '-' and '_', at most 64."
        )
    target = folder / name
    module = name.replace("-", "_").lower()
    templates = resources.files("graph_agent.cli") / "skeleton"
    try:
        target.mkdir(parents=True)
        for template, file in _FILES.items():
            path = target / file.format(module=module)
            path.parent.mkdir(exist_ok=True)
            text = (templates / template).read_text(encoding="utf-8")
            path.write_text(text.replace("{{name}}", name).replace("{{module}}", module), encoding="utf-8")
    except FileExistsError:
        raise InputError(f"{target} exists; choose another name, or another folder with --in.") from None
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}; choose another folder with --in.") from None
    return target
