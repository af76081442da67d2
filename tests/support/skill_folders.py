"""Skills of tests: folders with a `SKILL.md`."""

from __future__ import annotations

from pathlib import Path


def write_skill(parent: Path, name: str, body: str = "Do it.", description: str = "Does it.", **fields: str) -> Path:
    """Write a skill; an underscore in the name of a field stands for a hyphen."""
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    front = {"name": name, "description": description, **fields}
    lines = [f"{key.replace('_', '-')}: {value}" for key, value in front.items()]
    (folder / "SKILL.md").write_text("\n".join(["---", *lines, "---", body]) + "\n", encoding="utf-8")
    return folder
