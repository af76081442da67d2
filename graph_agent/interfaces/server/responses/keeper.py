"""Stores a complete response, and appends it to its conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graph_agent.interfaces.server.chat.run import ServerRun
from graph_agent.interfaces.server.chat.run_spec import client_interrupts
from graph_agent.interfaces.server.chat.schemas import ChatRequest
from graph_agent.interfaces.server.responses import schemas
from graph_agent.interfaces.server.responses.chain import input_of
from graph_agent.interfaces.server.responses.conversations import Conversations
from graph_agent.interfaces.server.responses.output import ResponseDialect
from graph_agent.interfaces.server.responses.records import Record, Records
from graph_agent.session.results import open_interrupts


@dataclass(frozen=True, slots=True)
class OpenConversation:
    """A conversation that a response continues, with the items that its session has not received yet."""

    conversations: Conversations
    id: str
    pending_keys: list[str]
    """Keys of the batches of items that the session has not received yet."""
    pending: list[dict[str, Any]]
    """Items that the session has not received yet. They precede the items of the request."""

    async def consume(self) -> None:
        """Record that the session has received the items that clients had added to the conversation."""
        await self.conversations.consume(self.id, self.pending_keys)

    async def append(self, record: Record) -> None:
        """Append the input and the output items of a response to the conversation, unless the conversation was
        deleted.
        """
        if not await self.conversations.exists(self.id):
            return
        items = [*record["input"], *record["response"]["output"]]
        await self.conversations.append(self.id, items, pending=False)


@dataclass(frozen=True, slots=True)
class Keeper:
    """Stores a response when its run has ended."""

    records: Records
    """The stored responses of the caller."""
    items: list[schemas.InputItem]
    """The items of the request."""
    request: ChatRequest
    """The chat request, with its session."""
    dialect: ResponseDialect
    """Formats the response."""
    conversation: OpenConversation | None
    """The conversation that the response continues; None if there is none."""

    async def keep(self, run: ServerRun) -> None:
        """Store the response of a run that has ended. Unless it failed, append it to its conversation, too.

        Does nothing if an earlier request with the same key has stored the response.
        """
        # A second record would have new times and ids.
        if run.input.replayed and await self.records.find(self.dialect.token) is not None:
            return
        record = self.record(run)
        await self.records.put(self.dialect.token, record)
        # The input of a failed response can be sent again.
        if self.conversation is not None and record["response"]["status"] != "failed":
            await self.conversation.append(record)

    def record(self, run: ServerRun) -> Record:
        """Return the record to store for the response as it is now, with its input, its session and the caller's calls
        that wait.

        Until the run has read its last state, there are no calls and no checkpoint.
        """
        state = run.input.state
        interrupts = client_interrupts(open_interrupts(state)) if state is not None else []
        return {
            "response": {**self.dialect.response, "output": list(self.dialect.response["output"])},
            "input": input_of(self.items, self.dialect.token),
            "session": self.request.session_id or "",
            "calls": {run.spec.client_call_id(each): each.value["id"] for each in interrupts},
            "checkpoint": state.config["configurable"]["checkpoint_id"] if state is not None else None,
        }
