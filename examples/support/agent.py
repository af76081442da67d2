"""Serves customers: refunds small amounts alone, and asks a colleague about the rest."""

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime

from graph_agent import AgentContext, GraphAgent, LoopConfig, create_graph_agent, idempotency_key
from graph_agent.approvals import approve, respond
from graph_agent.calls import Call
from graph_agent.marks import marked

PROMPT = """\
You work at the support desk of a shop for kitchenware. Be short, friendly and exact.

- Look up the customer's orders before you talk about one.
- Refund a faulty article within 30 days of its delivery, in full. Otherwise explain why not.
- Promise nothing that no tool has confirmed. A refund is made when the tool reports it, not before.
- Ask a colleague about anything that these rules do not cover. Do not argue with the customer.
"""
ORDERS: dict[str, dict[str, Any]] = {
    "ada": {"17": {"article": "kettle", "cents": 6490, "delivered": "2026-11-16"}},
    "ben": {"18": {"article": "pan", "cents": 2900, "delivered": "2026-08-01"}},
}
REFUNDED: dict[str, int] = {}
"""Idempotency key → cents. A payment provider refuses a key that it has seen."""


class Desk(AgentContext):
    """The context of a run: who is asking. It comes from your login, never from the model."""

    customer: str = ""


def orders(runtime: ToolRuntime[Desk, Any]) -> dict[str, Any]:
    """Return the orders of the customer, by number."""
    return ORDERS[runtime.context.customer]


def refund(order: str, cents: int, runtime: ToolRuntime[Desk, Any]) -> str:
    """Refund an amount of an order to the customer."""
    bought = ORDERS[runtime.context.customer].get(order)
    if bought is None or cents > bought["cents"]:
        raise ToolException("The customer has no such order, or paid less for it.")
    REFUNDED[idempotency_key()] = cents
    return f"Refunded {cents / 100:.2f} EUR for order {order}."


def ask_colleague(question: str) -> str:
    """Ask a colleague, who knows the whole conversation. Returns the answer."""
    raise AssertionError("A person answers in place of this function.")


def large_refunds(call: Call) -> bool:
    """Select the calls that need approval: refunds above 50 EUR."""
    return call["name"] == "refund" and call["arguments"]["cents"] > 5000


def make_agent(model: BaseChatModel | str) -> GraphAgent:
    """Return the agent."""
    return create_graph_agent(
        model,
        tools=[
            marked(orders, effect="read"),
            marked(refund, effect="write", idempotent=True),  # by its idempotency key
            marked(ask_colleague, approve=["respond"]),
        ],
        system_prompt=PROMPT,
        config=LoopConfig(approve=large_refunds, effect_ledger=True),
        context_schema=Desk,
        checkpointer=InMemorySaver(),
    )


def main(model: BaseChatModel | str = "openai:gpt-4o-mini") -> None:
    """Serve one customer, whose questions a colleague answers here with fixed texts."""
    session = make_agent(model).session("ada-2026-11-23")
    context = {"customer": "ada"}  # is not stored, so each run and each resume has it
    for text in ("My new kettle leaks. I want my money back!", "Can I keep the lid?"):
        print(f"ada: {text}")
        result = session.run_sync(text, context=context)
        while result.interrupts:
            [waiting] = result.interrupts[0].value["action_requests"]
            print(f"  colleague, please: {waiting['name']} {waiting['args']}")
            decision = respond("Yes.") if waiting["name"] == "ask_colleague" else approve()
            answer = {"decisions": [decision]}
            result = session.resume_sync(answer, context=context, decided_by="cleo")
        print(f"desk: {result.answer}")


if __name__ == "__main__":
    main()
