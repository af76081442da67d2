"""Runs the recipe without a key: fixed replies stand in for the three models."""

import json

from examples.supervisor.agent import main
from graph_agent import ScriptedChatModel


def calls(**arguments: dict[str, str]) -> str:
    """Return a reply with calls: name → arguments."""
    return json.dumps({"tool_calls": [{"name": name, "arguments": each} for name, each in arguments.items()]})


SUPERVISOR = [
    calls(
        delegate_to_billing={"task": "Is the invoice of order 2041 paid?"},
        delegate_to_shipping={"task": "When does the parcel of order 2041 arrive?"},
    ),
    "Yes, we received your 740 EUR on 12 November. The bike is in Bergen and arrives on 25 November.",
]
BILLING = [calls(invoice={"order": "2041"}), "Invoice of order 2041: 740.00 EUR, paid on 2026-11-12."]
SHIPPING = [calls(parcel={"order": "2041"}), "Order 2041 is in the depot in Bergen and arrives on 2026-11-25."]

if __name__ == "__main__":
    models = [ScriptedChatModel(replies) for replies in (SUPERVISOR, BILLING, SHIPPING)]
    main(*models)
    for model in models:
        model.assert_spent()
