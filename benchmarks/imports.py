"""What importing the package costs, beside `langgraph.graph`: `python -m benchmarks.imports`."""

from __future__ import annotations

import statistics
import subprocess
import sys

MODULES = ("langgraph.graph", "graph_agent", "graph_agent.agent")
ROUNDS = 9
_CODE = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def main() -> None:
    """Import each in turn, each time in a new process, and print the medians and the ratio to the first."""
    seconds: dict[str, list[float]] = {module: [] for module in MODULES}
    for _ in range(ROUNDS):
        for module in MODULES:
            done = subprocess.run(
                [sys.executable, "-c", _CODE.format(module)], capture_output=True, text=True, check=True
            )
            seconds[module].append(float(done.stdout))
    for module, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(taken, seconds[MODULES[0]], strict=True))
        print(f"{module:20} {1000 * statistics.median(taken):8.1f} ms {ratio:6.2f}")


if __name__ == "__main__":
    main()
