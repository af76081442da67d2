"""The CPU time of importing the package, relative to what it is built on: `python -m benchmarks.imports`."""

from __future__ import annotations

import statistics
import subprocess
import sys

BASE = "langgraph.graph + langchain_core.messages"
IMPORTS = {
    BASE: "import langgraph.graph, langchain_core.messages",
    "graph_agent": "import graph_agent",
    "graph_agent, every public name": (
        "import graph_agent; [getattr(graph_agent, name) for name in graph_agent.__all__]"
    ),
    "graph_agent, an agent built": (
        "from graph_agent import ScriptedChatModel, create_graph_agent; create_graph_agent(ScriptedChatModel(['x']))"
    ),
}
ROUNDS = 15
_CODE = "import time; t = time.process_time(); {}; print(time.process_time() - t)"


def main() -> None:
    """Run each in turn, each time in a new process, and print the medians and the ratio to the first."""
    seconds: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(ROUNDS):
        for name, code in IMPORTS.items():
            done = subprocess.run(
                [sys.executable, "-c", _CODE.format(code)], capture_output=True, text=True, check=True
            )
            seconds[name].append(float(done.stdout))
    for name, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(taken, seconds[BASE], strict=True))
        print(f"{name:42} {1000 * statistics.median(taken):8.1f} ms {ratio:6.2f}")


if __name__ == "__main__":
    main()
