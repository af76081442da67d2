"""Answers customers with the help of two specialists, which work at the same time."""

from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphAgent, GraphDelegate, LoopConfig, create_graph_agent
from graph_agent.marks import marked

SUPERVISOR = """\
You answer customers of a bicycle shop. Two specialists work for you.

- Give each specialist a task of its own, with every number and name that it needs.
- Ask both at once if neither needs the other's answer.
- Specialists report to you. Write the answer yourself, and mention no specialist.
- If a specialist cannot answer, tell the customer what is missing.
"""
BILLING = """\
You look up invoices of a bicycle shop. Report the amount, the date and the state of an invoice.
Report only what the invoices say.
"""
SHIPPING = """\
You look up parcels of a bicycle shop. Report where a parcel is and when it arrives.
Report only what the carrier says.
"""
INVOICES = {"2041": {"eur": 740.0, "state": "paid", "on": "2026-11-12"}}
PARCELS = {"2041": {"place": "depot in Bergen", "arrives": "2026-11-25"}}

Model = BaseChatModel | str


def invoice(order: str) -> dict[str, Any]:
    """Return the invoice of an order."""
    return INVOICES[order]


def parcel(order: str) -> dict[str, Any]:
    """Return where the parcel of an order is."""
    return PARCELS[order]


def make_agent(supervisor: Model, billing: Model, shipping: Model) -> GraphAgent:
    """Return the supervisor."""
    invoices = create_graph_agent(billing, [marked(invoice, effect="read")], system_prompt=BILLING)
    parcels = create_graph_agent(shipping, [marked(parcel, effect="read")], system_prompt=SHIPPING)
    return create_graph_agent(
        supervisor,
        delegates=[
            GraphDelegate("billing", "Knows invoices and payments.", invoices),
            GraphDelegate("shipping", "Knows where parcels are.", parcels),
        ],
        system_prompt=SUPERVISOR,
        config=LoopConfig(delegate_timeout_s=60, max_tokens_total=50_000),
        checkpointer=InMemorySaver(),
    )


def main(
    supervisor: Model = "openai:gpt-4o",
    billing: Model = "openai:gpt-4o-mini",
    shipping: Model = "openai:gpt-4o-mini",
) -> None:
    """Ask one question."""
    session = make_agent(supervisor, billing, shipping).session("customer-7")
    result = session.run_sync("Did you get my money for order 2041, and when does the bike come?")
    for call in result.calls:
        print(f"{call.name}: {call.arguments['task']}\n  -> {call.result}")
    print(result.answer)


if __name__ == "__main__":
    main()
