"""An agent that reads a mail, and pays whom the mail names."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import tool

from graph_agent import ScriptedChatModel
from graph_agent.marks import marked
from tests.support.agents import asks

OFFICE: dict[str, Any] = {
    "name": "office",
    "description": "Reads mails, and pays invoices.",
    "model": "tests.web.office_agent:make",
    "tools": ["tests.web.office_agent:read_mail", "tests.web.office_agent:pay"],
    "config": {"origins": True},
}


@tool("read_mail")
def _read_mail(number: int) -> dict[str, str]:
    """Read a mail."""
    return {"sender": "anna@corp.example", "body": f"Mail {number}: please pay 1,200.50 EUR to DE02-1203-0000 today."}


@tool("pay")
def _pay(account: str, amount: float) -> str:
    """Pay an amount to an account."""
    return f"Paid {amount} to {account}."


read_mail = marked(_read_mail, source="untrusted")
pay = marked(_pay, sinks=["account", "amount"])


def make() -> ScriptedChatModel:
    """Return a model that reads mail 7, and pays what it asks for."""
    script = [
        asks(("c1", "read_mail", {"number": 7})),
        asks(("c2", "pay", {"account": "DE02 1203 0000", "amount": 1200.5})),
        "I paid the invoice.",
    ]
    return ScriptedChatModel(script, cycle=True)
