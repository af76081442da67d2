"""A middleware with own state fields: a customer, and a basket that a tool fills."""

from __future__ import annotations

import operator
from typing import Annotated, Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.prebuilt import InjectedState
from langgraph.types import Command


class Shop(AgentState[Any]):
    """Own fields of the agent."""

    customer: NotRequired[str]
    basket: NotRequired[Annotated[list[str], operator.add]]


@tool
def put(
    item: str, tool_call_id: Annotated[str, InjectedToolCallId], state: Annotated[dict[str, Any], InjectedState]
) -> Command[Any]:
    """Put an item into the customer's basket."""
    text = f"{state.get('customer')} has {[*state.get('basket', []), item]}"
    return Command(update={"basket": [item], "messages": [ToolMessage(text, tool_call_id=tool_call_id)]})


class Basket(AgentMiddleware[Shop]):
    """Adds the fields and the tool."""

    state_schema = Shop

    def __init__(self) -> None:
        self.tools = [put]
