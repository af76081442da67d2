"""Maps a request for a response to a session: the next input of a chain, a branch of it, or a new session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langgraph.types import StateSnapshot

from graph_agent.server.chat.history import continued_input
from graph_agent.server.chat.run_spec import pending_question
from graph_agent.server.chat.schemas import ChatRequest, trailing_results
from graph_agent.server.hosting.host import Host
from graph_agent.server.problems import BusySessionError, ProblemError
from graph_agent.server.responses.input_items import Conversation, as_items, replace_references
from graph_agent.server.responses.output import summary_wanted
from graph_agent.server.responses.records import (
    OPEN,
    Record,
    Records,
    place_of_approval,
    response_id,
    token_of_item,
    token_of_response,
)
from graph_agent.server.responses.schemas import (
    ENCRYPTED_REASONING,
    CreateResponse,
    InputItem,
    client_tools_of,
    is_agent,
    options_of,
    unsupported_tools_of,
)


@dataclass(frozen=True, slots=True)
class Chains:
    """Finds the session of each request of one caller."""

    host: Host
    records: Records

    async def resolve(
        self, body: CreateResponse, content: Conversation, token: str, session_id: str | None, *, branches: bool
    ) -> ChatRequest:
        """Return the chat request for a request's content.

        Args:
            token: The token of the new response.
            session_id: The session that its headers, metadata or conversation name; None if there is none.
            branches: Whether a previous response is continued in a new session, even if it is the newest of its own.

        Raises:
            ProblemError: If the response that it continues does not exist, or cannot be continued.
        """
        request = self._request(body, content, token)
        if session_id is not None:
            if body.conversation_id is not None:
                request = replace(request, session_label=f"The conversation {body.conversation_id!r}")
            return replace(request, session_id=session_id, call_token=_answered_token(content), marks_questions=False)
        is_explicit = body.previous_response_id is not None
        previous = await self._previous(body, content)
        if previous is not None:
            label = f"The conversation of the response {previous['response']['id']!r}"
            request = replace(request, session_label=label)
            if previous["response"]["status"] in OPEN:
                raise ProblemError(
                    "invalid", "The previous response is still in progress.", param="previous_response_id"
                )
            if body.is_stored and not branches and await self._is_newest(previous):
                return replace(
                    request,
                    session_id=previous["session"],
                    adds_all=is_explicit,
                    before=partial(self._check_newest, previous),
                    call_token=token_of_response(previous["response"]["id"]),
                )
            if is_explicit:
                request = await self._branch(previous, request)
        if body.is_stored:
            if request.decisions:
                raise ProblemError(
                    "invalid",
                    "The calls of these approval responses no longer wait: they are decided, or their response is not "
                    "stored for this API key. Name the session, or the response that asked.",
                    param="input",
                )
            return replace(request, session_id=response_id(token))
        pending = _answered_token(content) if request.decisions else None
        return replace(request, pending_token=pending, new_call_token=None)

    async def matching(self, session_id: str | None, body: CreateResponse, content: Conversation) -> str | None:
        """Return a named session; None if the request has another history."""
        if session_id is None or body.conversation_id is not None or content.decisions:
            return session_id
        if not any(message.type == "ai" for message in content.messages):
            return session_id
        thread = self.records.thread_of(session_id)
        state = await self.host.kept.aget_state({"configurable": {"thread_id": thread}})
        return None if state.values and continued_input(content.messages, state) is None else session_id

    def _request(self, body: CreateResponse, content: Conversation, token: str) -> ChatRequest:
        messages: list[AnyMessage] = list(content.messages)
        system = list(content.instructions)
        if not messages and not content.decisions and system:
            messages = [HumanMessage(system.pop())]  # clients that have only a system prompt
        decisions: dict[tuple[str, int], dict[str, Any]] = {}
        for id_, decision in content.decisions.items():
            if (place := place_of_approval(id_)) is None:
                raise ProblemError("invalid", f"There is no approval request {id_!r}.", param="input")
            if decisions.setdefault(place, decision) != decision:
                message = f"The call of the approval request {id_!r} has two different responses; send one."
                raise ProblemError("invalid", message, param="input")
        return ChatRequest(
            messages=messages,
            instructions="\n\n".join(filter(None, [body.instructions, *system])),
            options=options_of(body),
            client_tools=client_tools_of(body),
            unsupported_tools=unsupported_tools_of(body),
            offers_own_tools=any(is_agent(tool, body.model) for tool in body.tools or []),
            stream=bool(body.stream),
            new_call_token=token,
            marks_questions=True,
            decisions=decisions,
            shows_reasoning=summary_wanted(body) is not None or ENCRYPTED_REASONING in (body.include or []),
            shows_calls=self.host.settings.show_calls if body.show_calls is None else body.show_calls,
        )

    async def _previous(self, body: CreateResponse, content: Conversation) -> Record | None:
        """Return the response that a request continues: by its id, or as the one whose calls it answers."""
        if body.previous_response_id is not None:
            return await self.records.previous(body.previous_response_id)
        token = _answered_token(content) or pending_question(content.messages)
        return await self.records.find(token) if token is not None else None

    async def _check_newest(self, record: Record) -> None:
        if not await self._is_newest(record):
            raise BusySessionError("Another request has continued the session.")

    async def _is_newest(self, record: Record) -> bool:
        """Whether nothing has continued the session of a response since."""
        stored = await self.host.saver.aget_tuple({"configurable": {"thread_id": self.records.thread(record)}})
        if stored is None:
            return False
        return record["checkpoint"] in (None, stored.config["configurable"]["checkpoint_id"])

    async def _branch(self, record: Record, request: ChatRequest) -> ChatRequest:
        """Return a request that carries the history of an earlier response itself.

        Raises:
            ProblemError: If the history is no longer stored.
        """
        messages = await self.history(record)
        raw = record["calls"]
        return replace(request, messages=[*messages, *(_with_raw_id(message, raw) for message in request.messages)])

    async def history(self, record: Record) -> list[AnyMessage]:
        """Return the messages of a session at the end of a response.

        Raises:
            ProblemError: If they are no longer stored.
        """
        place = {"thread_id": self.records.thread(record), "checkpoint_id": record["checkpoint"]}
        state = await self.host.kept.aget_state({"configurable": place})
        if record["checkpoint"] is None or not state.values:
            raise ProblemError(
                "previous_response",
                "The history of the previous response is not stored: its session was deleted or pruned, or its run was "
                "stopped. Send the conversation as input.",
                param="previous_response_id",
            )
        return messages_of(state, set(record["calls"].values()))


def _answered_token(content: Conversation) -> str | None:
    """Return the token in the ids of the calls and approval requests that a request answers; None if it is not one."""
    results, _ = trailing_results(content.messages)
    ids = [*(result.tool_call_id for result in results), *content.decisions]
    tokens = {token_of_item(id_) for id_ in ids}
    return tokens.pop() if len(tokens) == 1 else None


def messages_of(state: StateSnapshot, client_ids: Collection[str] = ()) -> list[AnyMessage]:
    """Return the messages of a state, with those of a wave that waits for the caller.

    Args:
        client_ids: Ids of the caller's calls, whose results may be stored by now.
    """
    messages: list[AnyMessage] = list(state.values.get("messages", []))
    for task in state.tasks:
        finished = (task.result or {}).get("messages", ())
        messages += [each for each in finished if getattr(each, "tool_call_id", None) not in client_ids]
    return messages


def _with_raw_id(message: AnyMessage, raw: Mapping[str, str]) -> AnyMessage:
    if isinstance(message, ToolMessage) and message.tool_call_id in raw:
        return message.model_copy(update={"tool_call_id": raw[message.tool_call_id]})
    return message


async def items_of(value: str | Sequence[InputItem], records: Records) -> list[InputItem]:
    """Return a request's input as items, with the stored items that its references name.

    Raises:
        ProblemError: If a reference names an unknown item.
    """
    items = as_items(value)
    references = [item.id or "" for item in items if item.type == "item_reference"]
    return replace_references(items, await records.items(references)) if references else items


def input_of(items: Sequence[InputItem], token: str) -> list[dict[str, Any]]:
    """Return a request's items for storage, each with an id, and messages with parts."""
    return [_stored(item, f"msg_{token}{0xF000 + index:04x}") for index, item in enumerate(items)]


def _stored(item: InputItem, id_: str) -> dict[str, Any]:
    stored = {**item.model_dump(exclude_none=True), "id": item.id or id_}
    if item.type == "message":
        stored["status"] = "completed"
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            extra: dict[str, Any] = {"annotations": []} if item.role == "assistant" else {}
            stored["content"] = [{"type": kind, "text": item.content, **extra}]
    return stored
