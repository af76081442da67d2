"""Runs the recipe without a key: fixed replies stand in for the model."""

import json
from typing import Any

from examples.support.agent import REFUNDED, main
from graph_agent import ScriptedChatModel


def call(name: str, **arguments: Any) -> str:
    """Return a reply with one call."""
    return json.dumps({"tool_calls": [{"name": name, "arguments": arguments}]})


REPLIES = [
    call("orders"),
    call("refund", order="17", cents=6490),
    "I am sorry about the kettle, Ada. I refunded the full 64.90 EUR.",
    call("ask_colleague", question="May Ada keep the lid of the kettle that we refunded (order 17)?"),
    "Yes, keep the lid.",
]

if __name__ == "__main__":
    model = ScriptedChatModel(REPLIES)
    main(model)
    model.assert_spent()
    assert list(REFUNDED.values()) == [6490]
