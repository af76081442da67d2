"""Runs the recipe without a key: fixed replies stand in for the model."""

import json

from examples.sql.agent import main
from graph_agent import ScriptedChatModel

SUM = """SELECT country, SUM(amount) FROM customers JOIN orders ON customer_id = customers.id
WHERE ordered_on BETWEEN '2026-09-01' AND '2026-11-30' GROUP BY country ORDER BY 2 DESC"""


def call(sql: str) -> str:
    """Return a reply that runs a query."""
    return json.dumps({"tool_calls": [{"name": "query", "arguments": {"sql": sql}}]})


REPLIES = [
    call(SUM),
    call(SUM.replace("amount", "cents")),
    "Norway: orders of 447.00 EUR from September to November 2026, before Germany with 202.50 EUR.",
]

if __name__ == "__main__":
    model = ScriptedChatModel(REPLIES)
    main(model)
    model.assert_spent()
