"""The repository assistant's own tools, and the shape of its answer."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, Field

from graph_agent.marks import marked

MOST_LINES = 50


class Report(BaseModel):
    """The answer to one request."""

    summary: str = Field(description="The answer, or what was done, in one or two sentences.")
    changed_files: list[str] = Field(default=[], description="Paths of the files that were written.")


def repository() -> Path:
    """Return the folder that the agent works on: the environment variable `REPO`, or the sample."""
    return Path(os.environ.get("REPO") or Path(__file__).with_name("sample")).resolve()


def text_files() -> list[Path]:
    """Return the readable text files of the repository, without hidden folders."""
    files = [path for path in sorted(repository().rglob("*")) if path.is_file()]
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(repository()).parts)]


def _search(text: str) -> str:
    """Find a text in all files of the repository; returns `path:line: text` for each line with it."""
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if text.lower() in line.lower():
                found.append(f"{path.relative_to(repository())}:{number}: {line.strip()}")
    more = f"\n… and {len(found) - MOST_LINES} more lines" if len(found) > MOST_LINES else ""
    return "\n".join(found[:MOST_LINES]) + more or f"No line contains {text!r}."


def _count_lines() -> dict[str, int]:
    """Return the number of lines of each file in the repository."""
    return {str(path.relative_to(repository())): len(path.read_bytes().splitlines()) for path in text_files()}


_search.__name__, _count_lines.__name__ = "search", "count_lines"
search = marked(_search, effect="read")
count_lines = marked(_count_lines, effect="read")
