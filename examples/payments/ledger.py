"""The tools of the payments agent. Each payment is one line of a file, so that a repeated one is seen.

The file is `PAYMENTS_FILE`, by default `payments.jsonl` in the current folder. A payment takes `PAYMENTS_DELAY_S`
seconds for each 10 EUR, by default 0; its line is written after half of the time.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

from graph_agent.marks import marked


def _append(line: str) -> None:
    with Path(os.environ.get("PAYMENTS_FILE") or "payments.jsonl").open("a", encoding="utf-8") as file:
        file.write(line)


async def _pay(kind: str, customer: str, amount: int, config: RunnableConfig) -> str:
    delay_s = float(os.environ.get("PAYMENTS_DELAY_S", "0")) * amount / 10
    await asyncio.sleep(delay_s / 2)
    line = {
        "session": config["configurable"].get("thread_id", ""),
        "kind": kind,
        "customer": customer,
        "amount": amount,
        "pid": os.getpid(),
    }
    await asyncio.to_thread(_append, json.dumps(line) + "\n")
    await asyncio.sleep(delay_s / 2)
    return f"{kind} of {amount} EUR for {customer}: done"


@tool
async def charge(customer: str, amount: int, config: RunnableConfig) -> str:
    """Charge a customer.

    Args:
        customer: The customer's name.
        amount: Whole EUR.
    """
    return await _pay("charge", customer, amount, config)


@tool
async def refund(customer: str, amount: int, config: RunnableConfig) -> str:
    """Refund a customer.

    Args:
        customer: The customer's name.
        amount: Whole EUR.
    """
    return await _pay("refund", customer, amount, config)


# Not idempotent: a payment that may have been made is not repeated.
charge = marked(charge, effect="write", idempotent=False)
refund = marked(refund, effect="write", idempotent=False)
