"""Runs the recipe without a key: fixed replies stand in for the model."""

from examples.guardrails.agent import main
from graph_agent import ScriptedChatModel

REPLIES = [
    '{"tool_calls": [{"name": "leaflet", "arguments": {"medicine": "ibuprofen"}}]}',
    "Adults take up to 800 mg every 6 hours.",
    "Adults take 200 mg to 400 mg every 6 hours, at most 1200 mg a day.",
]

if __name__ == "__main__":
    model = ScriptedChatModel(REPLIES)
    main(model)
    model.assert_spent()
    assert "ada@example.com" not in str([request.messages for request in model.requests])
