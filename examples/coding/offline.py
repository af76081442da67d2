"""Runs the recipe without a key: fixed replies stand in for the model, and a script for the person."""

import json
import tempfile
from pathlib import Path
from typing import Any

from examples.coding.agent import main
from graph_agent import ScriptedChatModel

FILES = {
    "prices.py": "def with_discount(cents, percent):\n    return cents - cents * percent\n",
    "test_prices.py": """import unittest
from prices import with_discount

class Discount(unittest.TestCase):
    def test_a_tenth(self):
        self.assertEqual(with_discount(1000, 10), 900)
""",
}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return one call of a reply."""
    return {"name": name, "arguments": arguments}


STEPS = [
    [call("list_files"), call("run_command", command="python3 -m unittest -q")],
    [call("read_file", path="prices.py"), call("run_command", command="pip install pytest")],
    [call("edit_file", path="prices.py", old="* percent", new="* percent // 100")],
    [call("run_command", command="python3 -m unittest -q")],
]
REPLIES = [
    *(json.dumps({"tool_calls": calls}) for calls in STEPS),
    "`with_discount` took the percentage as a share. It now divides by 100, and the test passes.",
]


def decide(question: str) -> str:
    """Approve edits only."""
    decision = "y" if question.startswith("edit_file") else "Install nothing; unittest will do."
    print(question + decision)
    return decision


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        model = ScriptedChatModel(REPLIES)
        main(Path(folder), "The discount test fails. Correct the code.", model, decide)
        model.assert_spent()
