"""Execution of the notebooks; `python -m tests.support.notebooks` stores their outputs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient.client import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
ANY_ORDER = "any-order"
_MODEL_VARIABLES = ("OPENAI_", "DEBUG_MOCK_RESPONSES", "GRAPH_AGENT_")
_VARYING = [
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b[0-9a-f]{12,32}\b"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?"), "<time>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
    (re.compile(r"\b0x[0-9a-f]+\b"), "<address>"),
]


def read(path: Path) -> Any:
    """Return a notebook as it is stored."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]  # untyped


def execute(path: Path, executable: str = sys.executable) -> Any:
    """Return a notebook with the outputs of a run of its cells, without a key or a network.

    Args:
        path: Its file.
        executable: The Python of its kernel, and of the processes that its cells start.

    Raises:
        CellExecutionError: If a cell fails.
    """
    notebook = read(path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_MODEL_VARIABLES)}
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        # The profile of the user would change the outputs.
        startup = Path(folder, "ipython", "profile_default", "startup")
        startup.mkdir(parents=True)
        (startup / "executable.py").write_text(f"__import__('sys').executable = {executable!r}\n")
        environment["IPYTHONDIR"] = str(startup.parents[1])
        # Sockets in files: another process may take a TCP port between its choice and the kernel's start.
        sockets = Config({"AsyncKernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
        client = NotebookClient(
            notebook,
            config=sockets,
            timeout=300,
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": str(path.parent)}},
        )
        kernel = client.create_kernel_manager().kernel_spec
        assert kernel is not None
        kernel.argv[0] = executable
        client.execute(env=environment)
    # The version of Python that ran it is not part of a notebook.
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def text_outputs(notebook: Any) -> list[tuple[str, str]]:
    """Return the source and the text outputs of each code cell, with ids, times and ports replaced.

    The lines of a cell with the tag `any-order`, which prints the progress of concurrent processes, are sorted. Images
    count by their type alone. Standard error is left out, because it contains the logs of libraries.
    """
    return [(cell.source, _text_of(cell)) for cell in notebook.cells if cell.cell_type == "code"]


def _text_of(cell: Any) -> str:
    outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    text = "\n".join(map(_output_text, outputs))
    return "\n".join(sorted(text.splitlines())) if ANY_ORDER in cell.metadata.get("tags", ()) else text


def _output_text(output: Any) -> str:
    text: str
    if output.output_type == "stream":
        text = output.text
    elif output.output_type == "error":
        text = f"{output.ename}: {output.evalue}"
    else:
        text = "\n".join(
            f"{kind}: {value}" if kind.startswith("text/") and "image/png" not in output.data else kind
            for kind, value in sorted(output.data.items())
        )
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text


def main() -> None:
    """Execute every notebook, and store its outputs."""
    for path in NOTEBOOKS:
        executed = execute(path)
        if text_outputs(executed) != text_outputs(read(path)):
            nbformat.write(executed, path)  # type: ignore[no-untyped-call]  # untyped
            sys.stdout.write(f"wrote {path.name}\n")


if __name__ == "__main__":
    main()
