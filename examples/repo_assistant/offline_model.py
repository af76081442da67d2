"""Scripts in place of language models, so that the example runs on its sample without a key.

Each model is a script for one request: "Correct the spelling mistake in the sample."
"""

from __future__ import annotations

import json
from typing import Any

from graph_agent import ScriptedChatModel

OLD = "# Orders\n\nWe recieve orders by mail and send the goods within two days.\n"
NEW = OLD.replace("recieve", "receive")


def _calls(*calls: tuple[str, dict[str, Any]]) -> str:
    return json.dumps({"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]})


def make_assistant() -> ScriptedChatModel:
    """Return the assistant's model."""
    task = f"Correct the spelling.\nOld text:\n{OLD}\nNew text:\n{NEW}"
    report = {"summary": "Corrected 'recieve' to 'receive'.", "changed_files": ["orders.md"]}
    return ScriptedChatModel(
        [
            _calls(("list_files", {}), ("search", {"text": "recieve"})),
            _calls(("read_file", {"path": "orders.md"})),
            _calls(("delegate_to_reviewer", {"task": task})),
            _calls(("write_file", {"path": "orders.md", "text": NEW}), ("count_lines", {})),
            json.dumps(report),
        ],
        cycle=True,
    )


def make_reviewer() -> ScriptedChatModel:
    """Return the reviewer's model."""
    return ScriptedChatModel(["No objections."], cycle=True)
