"""Fail when a wheel lacks a part of the package, or contains anything else. Run with the wheel's path."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "graph_agent"


def main(wheel: str) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    # The nodes, which are reached through a link, and files that are not Python.
    prompts = [
        f"{PACKAGE}/models/prompt_texts/{file.name}"
        for file in (ROOT / PACKAGE / "models" / "prompt_texts").glob("*.yaml")
    ]
    prompts += [
        str(file.relative_to(ROOT)) for file in (ROOT / PACKAGE / "interfaces" / "cli" / "skeleton").rglob("*.txt")
    ]
    static = (ROOT / PACKAGE / "web" / "static").rglob("*.*")
    prompts += [file.relative_to(ROOT).as_posix() for file in static]
    missing = {f"{PACKAGE}/nodes/plan.py", f"{PACKAGE}/py.typed", f"{PACKAGE}/spec/agent.schema.json", *prompts} - held
    top = {name.partition("/")[0] for name in held}
    foreign = {name for name in top if name != PACKAGE and not name.endswith(".dist-info")}
    problems = [f"{name} is missing" for name in sorted(missing)] + [f"{name} is in it" for name in sorted(foreign)]
    if problems or not prompts:
        sys.exit("\n".join([f"{Path(wheel).name} is not as it should be:", *(problems or ["no prompts to look for"])]))


if __name__ == "__main__":
    main(sys.argv[1])
