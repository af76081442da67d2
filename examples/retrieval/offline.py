"""Runs the recipe without a key: fixed replies stand in for the model."""

from examples.retrieval.agent import main
from graph_agent import ScriptedChatModel

REPLIES = [
    '{"tool_calls": [{"name": "search", "arguments": {"query": "carry unused holiday days over to next year"}}]}',
    "Not all of them: up to 5 unused days move to the next year, and they expire on 31 March. The other 3 are lost, "
    "unless the company asked you to postpone a holiday. [leave: Carrying days over]",
]

if __name__ == "__main__":
    model = ScriptedChatModel(REPLIES)
    main(model)
    model.assert_spent()
