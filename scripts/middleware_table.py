"""Writes the table of langchain's middleware in `docs/guides/middleware.md` from a run of `scripts.middleware_compat`.

Usage: `python -m scripts.middleware_table OUTCOMES`, where OUTCOMES is the file of `--json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "middleware.md"
BEGIN, END = "<!-- table of langchain's middleware: written by scripts/middleware_table.py -->", "<!-- end of table -->"

MODULES = {
    "ContextEditingMiddleware": "test_context_editing",
    "FilesystemFileSearchMiddleware": "test_file_search",
    "HumanInTheLoopMiddleware": "test_human_in_the_loop",
    "LLMToolEmulator": "test_tool_emulator",
    "LLMToolSelectorMiddleware": "test_tool_selection",
    "ModelCallLimitMiddleware": "test_model_call_limit",
    "ModelFallbackMiddleware": "test_model_fallback",
    "ModelRetryMiddleware": "test_model_retry",
    "PIIMiddleware": "test_pii",
    "ProviderToolSearchMiddleware": "test_provider_tool_search",
    "ShellToolMiddleware": "test_shell_tool",
    "SummarizationMiddleware": "test_summarization",
    "TodoListMiddleware": "test_todo",
    "ToolCallLimitMiddleware": "test_tool_call_limit",
    "ToolErrorMiddleware": "test_tool_error",
    "ToolRetryMiddleware": "test_tool_retry",
}
"""Middleware → the module of langchain's tests of it."""
CORE = "composition, hooks, decorators, tools, state"
"""The row of langchain's tests of middleware in general."""

NOTES = {
    "HumanInTheLoopMiddleware": "The interrupt comes before the calls are announced.",
    "ModelCallLimitMiddleware": "A jump to `end` completes the input: status `COMPLETED`.",
    "PIIMiddleware": "The `user_message` event keeps the original text.",
    "ProviderToolSearchMiddleware": "Refused: it offers tools that the provider runs.",
    "SummarizationMiddleware": "Events keep everything that it removes.",
    "ToolCallLimitMiddleware": "A jump to `end` completes the input: status `COMPLETED`.",
    "ToolRetryMiddleware": "With `on_failure='error'`, the exception is the call's error result.",
    CORE: "See [differences](#differences-from-create_agent).",
}
REFUSED = {"ProviderToolSearchMiddleware"}


def table(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return the table.

    Args:
        theirs: The outcomes with `create_agent`, by test id.
        ours: The outcomes with this package.
    """
    rows: dict[str, list[str]] = {}
    names = {module: name for name, module in MODULES.items()}
    for id_, entry in theirs.items():
        if entry["outcome"] == "passed":
            module = Path(id_.split("::")[0]).stem
            name = CORE if "/core/" in id_ else names.get(module)
            if name is not None:
                rows.setdefault(name, []).append(id_)
    lines = ["| middleware | | with an agent | all tests | note |", "|---|---|---|---|---|"]
    for name in [*sorted(MODULES), CORE]:
        ids = rows.get(name, [])
        agents = [id_ for id_ in ids if theirs[id_]["agent"]]
        passed = {id_ for id_ in ids if ours[id_]["outcome"] == "passed"}
        state = "refused" if name in REFUSED else "runs with a note" if name in NOTES else "runs"
        shown = name if name == CORE else f"`{name}`"
        agent = f"{len(passed & {*agents})} of {len(agents)}"
        lines.append(f"| {shown} | {state} | {agent} | {len(passed)} of {len(ids)} | {NOTES.get(name, '')} |")
    source = f"langchain {version('langchain')}'s own tests; those that fail with `create_agent` too are not counted."
    return "\n".join([*lines, "", source])


def main() -> None:
    """Write the table of the outcomes in the file of the first argument."""
    outcomes = json.loads(Path(sys.argv[1]).read_text())
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(outcomes['theirs'], outcomes['ours'])}\n{END}{after}")


if __name__ == "__main__":
    main()
