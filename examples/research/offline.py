"""Runs the recipe without a key: fixed replies stand in for the models."""

import asyncio
import json

from examples.research.agent import PAGES, main
from graph_agent import ScriptedChatModel

[ENERGY, COSTS, _] = PAGES


def calls(name: str, *arguments: dict[str, str]) -> str:
    """Return a reply with calls of one tool."""
    return json.dumps({"tool_calls": [{"name": name, "arguments": each} for each in arguments]})


LEAD = [
    calls(
        "delegate_to_researcher",
        {"task": "How much energy does a heat pump need in an old house, against gas? No costs."},
        {"task": "What does a heat pump cost to install in Germany, after subsidies?"},
    ),
    json.dumps(
        {
            "summary": "It needs a third of the energy of gas; 12,600 EUR of its price remain to be earned back.",
            "findings": [
                {"fact": "It needs a third of the energy of a gas boiler.", "source": ENERGY},
                {"fact": "It costs 18,000 EUR, of which the state pays 30 %.", "source": COSTS},
            ],
            "open_questions": ["How well is the house insulated?"],
        }
    ),
]
RESEARCHER = [
    calls("search", {"query": "energy boiler"}),
    calls("read", {"url": ENERGY}),
    f"A heat pump needs a third of the energy of a gas boiler ({ENERGY}).",
    calls("search", {"query": "costs"}),
    calls("read", {"url": COSTS}),
    f"A heat pump costs 18,000 EUR, of which the state pays 30 % ({COSTS}).",
]

if __name__ == "__main__":
    models = [ScriptedChatModel(LEAD), ScriptedChatModel(RESEARCHER)]
    # Both researchers use one script, so they run one after the other here.
    lead, researcher = models
    asyncio.run(main(lead, researcher, {"max_parallel_calls": 1}))
    for model in models:
        model.assert_spent()
