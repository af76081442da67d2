"""An MCP server with the files of one folder: list, read and write. The folder is `REPO`, or the sample."""

from __future__ import annotations

from pathlib import Path

from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations
from repo_tools import repository, text_files

server = FastMCP("files")
READS = ToolAnnotations(readOnlyHint=True)


def _path(path: str) -> Path:
    """Return a path below the folder.

    Raises:
        ValueError: If it leads out of the folder.
    """
    found: Path = (repository() / path).resolve()
    if not found.is_relative_to(repository()):
        raise ValueError(f"{path!r} is outside the repository; give a path below it.")
    return found


@server.tool(annotations=READS)
def list_files() -> list[str]:
    """List the files of the repository."""
    return [str(path.relative_to(repository())) for path in text_files()]


@server.tool(annotations=READS)
def read_file(path: str) -> str:
    """Return the text of a file."""
    return _path(path).read_text(encoding="utf-8")


@server.tool(annotations=ToolAnnotations(readOnlyHint=False, idempotentHint=True))
def write_file(path: str, text: str) -> str:
    """Replace the whole text of a file."""
    target = _path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return f"Wrote {len(text)} characters to {path}."


if __name__ == "__main__":
    server.run()
