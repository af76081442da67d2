"""Converts the stored conversation to the messages of requests, once for all requests of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.input_messages import STEERING_MARK
from graph_agent.core.extensions.request_messages import with_message_text
from graph_agent.core.planning.kept_results import KeptResults
from graph_agent.core.state.messages import FAILURE_MARK, without_failure_report
from graph_agent.core.state.schema import RequestOnlyMessages
from graph_agent.core.state.stored_messages import StoredMessages
from graph_agent.models.prompts import Prompts
from graph_agent.models.sanitize import SafeMessages, sanitized, sanitized_all, without_calls
from graph_agent.models.system_prompt import PromptContent
from graph_agent.models.wire.parsing.calls import UNFINISHED


class PreparedHistory:
    """Cache of one run's conversation in the form that requests send.

    Each message is converted once, and is not examined at all if an earlier run of the session has examined the same
    object. If a message that was converted before has been edited, all are converted again.

    Args:
        stored: What is known about the messages that the run was lent; None if it was not lent any.
    """

    def __init__(self, stored: StoredMessages | None = None) -> None:
        self._stored = stored
        self._source: list[AnyMessage] = []
        self._prepared = SafeMessages()
        self._counted, self._tokens = 0, 0
        self._system: tuple[PromptContent, SafeMessages] = "", SafeMessages()
        self.hashes: dict[int, tuple[Any, str]] = {}
        """Cache that a `RequestLog` uses: `id()` of a message → the message and its hash."""

    @cached_property
    def kept(self) -> KeptResults:
        """Finds the tool results that must stay in requests; used only for shortened conversations."""
        return KeptResults()

    def of(self, history: Sequence[AnyMessage], prompts: Prompts) -> SafeMessages:
        """Return the messages in the form that requests send, in the same order. The returned list is the cache itself.

        Only messages that the last call did not have are converted. If older ones have changed, all are converted
        again.

        Args:
            history: The conversation; usually that of the last call with some new messages.
            prompts: Renders the text of a steering message for the model.
        """
        known = len(self._prepared)
        # Equal messages are the same objects, which makes this comparison cheap.
        if history[:known] != self._source:
            known, self._source, self._prepared = 0, [], SafeMessages()
            self._counted, self._tokens = 0, 0
        stored = None if known else self._stored
        if stored is not None:
            known = self._add_known(history, prompts, stored)
        for message in history[known:]:
            self._prepared.add(sanitized(_converted(message, prompts) if _is_marked(message) else message))
        self._source += history[known:]
        if stored is not None:
            self._record(stored)
        return self._prepared

    def begin(self, prompt: PromptContent) -> SafeMessages:
        """Return the messages before the conversation: the system message, or none for an empty prompt.

        The messages of the newest prompt are cached; the returned list is the cache itself.
        """
        # Blocks may change in place, so only text is compared.
        if not (isinstance(prompt, str) and prompt == self._system[0]):
            self._system = prompt, sanitized_all([SystemMessage(prompt)] if prompt else [])
        return self._system[1]

    def _add_known(self, history: Sequence[AnyMessage], prompts: Prompts, stored: StoredMessages) -> int:
        """Begin the cache with the messages that an earlier run of the session has examined, and return their number; 0
        if there are none.

        Only those that requests send in another form are converted again.
        """
        count, (traits, changed) = stored.find("prepared", history, (0, []))
        self._source, self._prepared = [*history[:count]], SafeMessages(history[:count], traits=traits)
        for at in changed:
            self._prepared[at] = sanitized(_converted(history[at], prompts))
        return count

    def _record(self, stored: StoredMessages) -> None:
        """Record for the session's next run how many of the stored messages were examined, and which of them requests
        send in another form.
        """
        count, (_, changed) = stored.find("prepared", self._source, (0, []))
        new = range(count, min(stored.count, len(self._source)))
        changed = [*changed, *(at for at in new if self._prepared[at] is not self._source[at])]
        stored.facts["prepared"] = self._source[: stored.count], (self._prepared.traits, changed)

    def estimated_tokens(self) -> int:
        """Estimate the tokens of the messages that `of` returned last. Each message is counted once and remembered."""
        self._tokens += estimated_tokens(self._prepared[self._counted :])
        self._counted = len(self._prepared)
        return self._tokens


def with_carried(history: Sequence[AnyMessage], carried: Sequence[RequestOnlyMessages]) -> list[AnyMessage]:
    """Return the conversation with messages inserted that only requests have, such as those of loop hooks.

    Args:
        history: The stored conversation.
        carried: Messages with the index in `history` before which they stand (`at`), in ascending order.
    """
    messages, done = list[AnyMessage](), 0
    for piece in carried:
        messages += [*history[done : piece["at"]], *piece["messages"]]
        done = piece["at"]
    return [*messages, *history[done:]]


def _is_marked(message: AnyMessage) -> bool:
    """Whether a message must be converted by `_converted` before it is sent; True for few messages."""
    if STEERING_MARK in message.additional_kwargs or FAILURE_MARK in message.response_metadata:
        return True
    if isinstance(message, AIMessage):
        calls = message.tool_calls
        return bool(calls) and calls[0]["name"] == UNFINISHED
    return message.name == UNFINISHED


def _converted(message: AnyMessage, prompts: Prompts) -> AnyMessage:
    """Return the form in which the model receives a message; most are returned unchanged.

    The user's steering is put into the prompt template `steering`. The report of a failed input becomes a short note.
    Older versions stored calls without a name for cut-off replies; these become text, and their results become notices
    of the framework.
    """
    if isinstance(message, HumanMessage) and STEERING_MARK in message.additional_kwargs:
        return with_message_text(message, prompts.render("steering", content=message.text))
    # Earlier versions stored a call without a name for a reply that was cut off, which providers refuse.
    if isinstance(message, AIMessage) and any(call["name"] == UNFINISHED for call in message.tool_calls):
        message = without_calls(with_message_text(message, message.text or "A call that was cut off."))
    if isinstance(message, ToolMessage) and message.name == UNFINISHED:
        return HumanMessage(f"[Notice from the agent framework, not from the user: {message.text}]", id=message.id)
    return without_failure_report(message)
