"""Compares a request's own history with that of its session.

A client without a session of its own sends its whole conversation with each request. An *exchange* is an input of the
session with its answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.types import StateSnapshot

from graph_agent.base._internal.text import text_of
from graph_agent.base.approvals.requests import HeldCall
from graph_agent.base.approvals.text import decisions_in_text
from graph_agent.base.errors import DecisionError
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.input_messages import is_user_input, new_user_messages
from graph_agent.base.model_error_text import public_text
from graph_agent.interfaces.server.chat.schemas import new_messages
from graph_agent.interfaces.server.problems import InvalidRequestError
from graph_agent.session.results import open_interrupts


def continued_input(messages: Sequence[AnyMessage], state: StateSnapshot) -> list[AnyMessage] | None:
    """Return the messages that a request adds to its session; None if the request has another history than the session.

    A request has a history if it has a user message before an assistant message. Without one, all its messages after
    the last assistant message are new. A history must be that of the session, with two exceptions. Steering and inputs
    without an answer (they failed or were stopped) may be missing, and questions with their answers may be added.
    Messages that repeat an input without an answer, or a decision on its calls, are left out unless they are the last.

    Args:
        messages: The messages of the request.
        state: The newest state of the session.

    Raises:
        InvalidRequestError: The message decides on calls, and the input of these calls has failed since.
    """
    new = new_messages(messages)
    history = _pieces(messages[: len(messages) - len(new)])
    has_history = any(piece.is_user for piece in history)
    exchanges, is_whole = _exchanges(state.values)
    if exchanges and open_interrupts(state):
        exchanges[-1].answer, exchanges[-1].is_waiting = None, True
    unanswered: list[str] = []
    rest = len(history)
    # From the newest on: a request with a shorter or an edited history differs there.
    for exchange in reversed(exchanges):
        before = exchange.start_in(history, rest) if has_history else None
        if before is not None:
            rest = before
        elif exchange.is_required and has_history:
            return None
        elif exchange.is_required:
            break
        elif rest == len(history):
            unanswered.insert(0, exchange.text)
    if has_history and is_whole and any(piece.is_user for piece in history[:rest]):
        return None
    failed = exchanges[-1] if exchanges and not exchanges[-1].is_required else None
    if failed is not None and failed.asked and has_history and new and not unanswered:
        # The newest input has failed after the decision on its calls; a client that has no answer keeps the decision.
        new = new[1:] if len(new) > 1 else new
        while len(new) > 1 and _is_decision(new[0], failed.asked):
            new = new[1:]
        if _is_decision(new[0], failed.asked):
            raise InvalidRequestError(
                "The calls of this question are decided, and the input has failed since. Send the input again.",
                "messages",
            )
    for text in unanswered:
        # Without another message behind it, the input is sent again.
        if len(new) > 1 and _squeezed(new[0].content) == text:
            new = new[1:]
    return new


def _is_decision(message: AnyMessage, calls: Sequence[HeldCall]) -> bool:
    """Return whether the text of a message is a valid decision on these calls."""
    try:
        decisions_in_text(text_of(message.content), calls)
    except DecisionError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Piece:
    """A user message, or the joined texts of the assistant between two user messages."""

    is_user: bool
    text: str
    """The text without any white space."""


@dataclass(slots=True)
class _Exchange:
    """An input of a session and its answer, as a client may have them. All texts are without white space."""

    text: str
    """The input."""
    answer: str | None = None
    """The last text of the answer; None if there is none, or the input failed or was stopped."""
    is_waiting: bool = False
    """Whether the session waits for an answer, so that the last text that the client has is a question, or a call
    follows.
    """
    has_more: bool = False
    """Whether the client may have further texts before the last one, and messages that answered questions."""
    asked: list[HeldCall] = field(default_factory=list)
    """The calls about which an approval was last requested; empty if none was."""
    answered_before: _Exchange | None = None
    """The newest exchange before this one that has an answer; None if there is none."""

    @property
    def is_required(self) -> bool:
        """Whether the client's history must contain this exchange to be the history of the session."""
        return self.answer is not None or self.is_waiting

    def start_in(self, history: Sequence[_Piece], end: int) -> int | None:
        """Return the index of this exchange's user message in a history, if the exchange is the last one before the
        index `end`.

        Messages that answered the exchange's questions may stand in between. None if another exchange stands there, or
        the answer in the history differs.
        """
        at = end
        if at > 0 and not history[at - 1].is_user:
            at -= 1
            if not self._ends_with(history[at].text):
                return None
        elif self.answer is not None:
            return None
        while at > 0 and history[at - 1].is_user:
            if history[at - 1].text == self.text:
                return at - 1
            if not (self.has_more and (self.is_required or self.asked)):
                return None
            at -= 1 if at > 1 and history[at - 2].is_user else 2
        return None

    def _ends_with(self, text: str) -> bool:
        """Return whether `text`, without white space, may be the end of this exchange in the client's history.

        While the session waits for an answer, any text may. An answered exchange must end with its answer. Without an
        answer, any text may be a part of one, except the answer of an equal input before, to which it belongs.
        """
        if self.is_required:
            return self.is_waiting or self._has_answer(text)
        # The client may have a part of the answer; but an equal input before may have this one.
        before = self.answered_before
        return before is None or before.text != self.text or not before._has_answer(text)

    def _has_answer(self, text: str) -> bool:
        """Return whether `text`, without white space, is the answer of this exchange, or ends with it if the client may
        have further texts.

        Two equal JSON objects count as the same answer, whatever their form.
        """
        answer = self.answer or ""
        return text == answer or (self.has_more and text.endswith(answer)) or _is_same_json(text, answer)


def _exchanges(values: Mapping[str, Any]) -> tuple[list[_Exchange], bool]:
    """Return the exchanges of a session, i.e. its inputs with their answers, oldest first, and whether they are
    complete.

    Exchanges of a history with which the session began come first, from its messages. If middleware has changed the
    messages, so that these and the events differ, they are left out, and the result is not complete. The others are
    read from events, which middleware cannot change.
    """
    messages: list[AnyMessage] = list(values.get("messages", ()))
    events = list(values.get("events", ()))
    inputs = [message for message in messages if isinstance(message, HumanMessage) and is_user_input(message)]
    unread = new_user_messages(messages, (values.get("loop") or {}).get("last_input_id") or "")
    read = [_squeezed(message.content) for message in inputs[: len(inputs) - len(unread)]]
    received = [_squeezed(each["content"]) for each in events if each["type"] == "user_message"]
    brought = len(read) - len(received)
    is_whole = brought >= 0 and read[brought:] == received
    found: list[_Exchange] = []
    oldest = inputs[brought] if is_whole and brought < len(inputs) else None
    first = next((at for at, message in enumerate(messages) if message is oldest), len(messages))
    for piece in _pieces(messages[:first]) if is_whole else ():
        if piece.is_user:
            found.append(_Exchange(piece.text))
        elif found:
            found[-1].answer = piece.text
    for each in events:
        if each["type"] == "user_message":
            found.append(_Exchange(_squeezed(each["content"])))
        elif found:
            _add_event(found[-1], each)
    found += [_Exchange(_squeezed(message.content)) for message in unread]
    for earlier, later in pairwise(found):
        later.answered_before = earlier if earlier.answer is not None else earlier.answered_before
    return found, is_whole


def _add_event(exchange: _Exchange, event: StoredEvent) -> None:
    """Update an exchange with an event that followed its input.

    An answer becomes the exchange's answer, or removes it if the answer reports an error; an abort removes it, too. An
    approval request sets the calls asked about. The exchange has more, which a client's own history does not show, if
    anything but a plan without calls, a change of status and one answer followed the input.
    """
    match event["type"]:
        case "agent_response":
            exchange.has_more |= exchange.answer is not None
            exchange.answer = None if "error" in event else _squeezed(public_text(text_of(event["content"]))) or None
        case "status":
            exchange.answer = None if event["to"] == "ABORTED" else exchange.answer
        case "plan":
            exchange.has_more |= bool(event["calls"] or event.get("reruns"))
        case "approval_request":
            exchange.has_more, exchange.asked = True, event["calls"]
        case _:
            # A warning, for example, follows text that a refusal replaced after it was sent.
            exchange.has_more = True


def _pieces(messages: Sequence[AnyMessage]) -> list[_Piece]:
    """Return messages as texts of user and assistant, without white space. Tool results and other messages are left
    out.

    Messages of the assistant with no user message between them are one text; each message of the user is one of its
    own.
    """
    found: list[_Piece] = []
    for message in messages:
        if isinstance(message, HumanMessage):
            found.append(_Piece(True, _squeezed(message.content)))
        elif isinstance(message, AIMessage):
            # Results of calls may stand between the texts.
            begun = found.pop().text if found and not found[-1].is_user else ""
            found.append(_Piece(False, begun + _squeezed(message.content)))
    return found


def _squeezed(content: str | list[Any]) -> str:
    """Return the text of a message's content without any white space."""
    # Clients strip texts, and join them in ways of their own.
    return "".join(text_of(content).split())


def _is_same_json(text: str, other: str) -> bool:
    """Return whether two texts without white space are the same JSON object, which a client may have formatted or
    reordered.
    """
    if not (text.startswith("{") and other.startswith("{")):
        return False
    try:
        return bool(json.loads(text) == json.loads(other))
    except (ValueError, RecursionError):
        return False
