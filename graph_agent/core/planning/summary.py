"""Summarizes the older part of a conversation; requests hold the summary in its place.

When a request would fill a given share of the model's context window, the model summarizes the older part. The summary
is a `summary` event; the messages and the events of the session stay complete. The loop state refers to the event, so
a summary is stored once and holds until the next one replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from graph_agent.base._internal.failure_log import get_logger, log_traceback
from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.errors import UserError
from graph_agent.base.history_notes import is_kept_note, is_note
from graph_agent.base.types import NO_USAGE
from graph_agent.base.usage import LimitMetError, usage_of
from graph_agent.core.planning.compaction import find_cut, newest_input
from graph_agent.core.planning.request_state import RequestState, plan_request
from graph_agent.core.planning.requests import ModelRequests
from graph_agent.core.state.events import StoredEvent, event
from graph_agent.core.state.schema import LoopState, Summary
from graph_agent.core.tools.truncation import truncate
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.models.finish import refusal_text
from graph_agent.models.prompts import Prompts
from graph_agent.models.stream_watch import StreamWatch

logger = get_logger("graph_agent.planning.summary")

_KEPT_SHARE = 0.4
"""Share of the threshold that the system prompt and the kept messages may fill after a summary."""
_WORTH_SHARE = 0.2
"""Share of the threshold that a summary must replace; a smaller part is not worth a model call."""
_SUMMARY_SHARE = 0.1
"""Share of the threshold that the summary itself may fill."""
_WORDS_PER_TOKEN = 0.6
_CHARS_PER_TOKEN = 4
_MESSAGE_CHARS = 4_000
_RESULT_CHARS = 2_000
_ARGUMENT_CHARS = 500
_MOST_LINES = 1_000_000


def use_summary(active: RequestState, stored: Sequence[StoredEvent], new: Sequence[StoredEvent] = ()) -> None:
    """Apply the current summary to requests.

    Args:
        active: The current model, before the first request is sent.
        new: Events that the node's update adds to them before those of the requests.
    """
    if (summary := active.loop.get("summary")) is not None:
        active.summary = _summary_text(summary["event"], stored, new)


async def renew_summary(
    requests: ModelRequests, stored: Sequence[StoredEvent], new: Sequence[StoredEvent] = ()
) -> None:
    """Request a new summary if requests would fill the configured share of the window.

    If the model does not return a summary, requests hold a note in place of the older part for this input.

    Args:
        requests: The requests of a node, after `use_summary`; their hooks have rewritten the results.

    Raises:
        UserError: If the model refuses the request for a reason that the user must fix.
        LimitMetError: If the summary has used up a budget.
    """
    active = requests.active
    window, share = active.window, active.settings.summarize_at
    if window is None or share is None:
        return
    threshold = share * window
    size = _request_tokens(active)
    if size < threshold:
        return
    request = plan_request(active.deps, active.prepared_history, active.settings, active.mode, active.planner)
    # The provider counts tokens of the tools too, and in its own way.
    scale = max(size / max(1, estimated_tokens(request)), 0.25)
    found = find_cut(request, int(threshold * (_KEPT_SHARE - _SUMMARY_SHARE) / scale))
    cut = _stored_cut(request, found, active.conversation)
    kept_from = request[cut].id
    older = [one for one in request[:cut] if not isinstance(one, SystemMessage) and not is_kept_note(one)]
    # The newest input is in the summary for later inputs, but stays in requests until the next one.
    staying = {message.id for message in newest_input(active.conversation)}
    replaced = estimated_tokens([one for one in older if not is_note(one) and one.id not in staying])
    if not kept_from or replaced * scale < threshold * _WORTH_SHARE:
        return
    try:
        text = await request_summary(requests, older, int(threshold / scale))
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a provider may raise anything; a note replaces the summary
        log_traceback(logger, "The request for a summary", error)
        active.record(unsummarized=True)
        public, logged = [
            "The reply was empty."
            if isinstance(error, EmptySummaryError)
            else describe_model_error(error, public=public)
            for public in (True, False)
        ]
        what = "The older part of the conversation could not be summarized"
        active.warn(f"{what}: {public}", f"{what}: {logged}")
        active.shorten()
        return
    _use(active, text, kept_from, older, len(stored) + len(new) + len(active.events), request[cut:])
    newest = next((message for message in reversed(active.conversation) if isinstance(message, AIMessage)), None)
    if (met := requests.limit_met(NO_USAGE, newest or AIMessage(""))) is not None:
        raise LimitMetError(*met)


def _stored_cut(request: Sequence[AnyMessage], kept_from: str | None, conversation: Sequence[AnyMessage]) -> int:
    """Return the index of the first message to keep; 0 for no cut.

    It is a stored message: a message that a hook carries is not in the requests of the next input, which would then
    hold the whole conversation.

    Args:
        kept_from: Id of the first message to keep, stored or carried; None for no cut.
    """
    if kept_from is None:
        return 0
    cut = next(index for index, message in enumerate(request) if message.id == kept_from)
    stored = {message.id for message in conversation}
    # A result stays with its call.
    possible = [at for at, one in enumerate(request) if one.id in stored and not isinstance(one, ToolMessage)]
    later = next((index for index in possible if index >= cut), None)
    return later if later is not None else max(possible, default=0)


def _summary_text(index: int, stored: Sequence[StoredEvent], new: Sequence[StoredEvent]) -> str | None:
    """Return the content of a `summary` event; None if the history has been replaced and has no such event there."""
    at = index - len(stored)
    found = stored[index] if at < 0 else new[at] if at < len(new) else {}
    return found.get("content") if found.get("type") == "summary" else None


class EmptySummaryError(Exception):
    """The reply to a request for a summary has no text, or refuses."""


def _request_tokens(active: RequestState) -> int:
    """Return the tokens of the next request: the larger of the provider's count and an estimate.

    The provider's count is that of the newest reply, with an estimate of the messages since. Some providers report too
    little, or nothing but zeros.
    """
    conversation = active.conversation
    estimated = active.estimated_request_tokens()
    # Counts from before a summary include the replaced messages.
    since = (active.loop.get("summary") or {"at": 0})["at"]
    for index in range(len(conversation) - 1, since - 1, -1):
        message = conversation[index]
        if isinstance(message, AIMessage) and (usage := message.usage_metadata):
            reasoning = (usage.get("output_token_details") or {}).get("reasoning") or 0
            later = estimated_tokens(conversation[index + 1 :])
            return max(estimated, usage["total_tokens"] - reasoning + later)
    return estimated


def _summary_request(prompts: Prompts, messages: Sequence[AnyMessage], tokens: int) -> HumanMessage:
    """Return the request for a summary of messages.

    Args:
        tokens: Estimated tokens of which the summary may fill a tenth; the messages are truncated to them.
    """
    words = max(100, int(tokens * _SUMMARY_SHARE * _WORDS_PER_TOKEN))
    text = "\n\n".join(_lines(message) for message in messages)
    text = truncate(text, max_chars=tokens * _CHARS_PER_TOKEN, max_lines=_MOST_LINES).text
    return HumanMessage(prompts.render("summary", conversation=text, words=words))


async def request_summary(
    requests: ModelRequests, older: Sequence[AnyMessage], tokens: int, instructions: str | None = None
) -> str:
    """Have the current model summarize messages.

    Args:
        older: The messages; the first may be the note with the previous summary.
        instructions: System message of the request; None if there is none.

    Raises:
        EmptySummaryError: If the model's reply has no text, or refuses.
        Exception: The error of the last provider.
    """
    active = requests.active
    request: list[AnyMessage] = [SystemMessage(instructions)] if instructions else []
    request.append(_summary_request(active.deps.prompts, older, tokens))

    async def ask(stream: StreamWatch) -> AIMessage:
        # Text mode offers no tools to this request.
        reply = await active.deps.client.ask("answer", request, active.settings, mode="text", quiet=True, watch=stream)
        if refusal_text(reply, visible=True) is not None or not reply.text.strip():
            raise EmptySummaryError
        return reply

    def recover(error: Exception) -> bool:
        return classify_model_error(error) == "transient" and active.fall_back(error)

    reply = await requests.send(ask, purpose="summary", recover=recover)
    requests.count(usage_of(reply, active.settings.prices), None)
    most = int(2 * tokens * _SUMMARY_SHARE) * _CHARS_PER_TOKEN
    return truncate(reply.text.strip(), max_chars=most, max_lines=_MOST_LINES).text


def _use(
    active: RequestState, text: str, kept_from: str, older: Sequence[AnyMessage], index: int, kept: Sequence[AnyMessage]
) -> None:
    """Record a summary, so that the requests from now on hold it in place of the older messages."""
    conversation, cut_ids = active.conversation, {message.id for message in kept}
    positions = {message.id: at for at, message in enumerate(conversation)}
    inputs = [message.id for message in newest_input(conversation) if message.id and message.id not in cut_ids]
    summary: Summary = {
        "event": index,
        "kept_from": kept_from,
        "inputs": [(positions[id_], id_) for id_ in inputs],
        "at": len(conversation),
    }
    replaced = sum(not is_note(message) for message in older)
    active.events.append(event("summary", active.loop["step"], content=text, messages=replaced))
    cuts = {id_: chars for id_, chars in active.loop.get("truncations", {}).items() if id_ in cut_ids}
    loop: LoopState = {**active.loop, "summary": summary, "truncations": cuts}
    loop.pop("kept_from", None)
    if not cuts:
        loop.pop("truncations")
    active.loop, active.summary = loop, text
    logger.info("Summarized %d messages of the conversation", replaced)


def _lines(message: AnyMessage) -> str:
    """Return a message in the form in which the request for a summary quotes it."""
    if is_note(message):
        return f"Earlier summary: {message.text}"
    if isinstance(message, ToolMessage):
        return f"Result of {message.name or 'a tool'} ({message.status}): {_short(message.text, _RESULT_CHARS)}"
    role = {"human": "User", "ai": "Assistant"}.get(message.type, message.type.capitalize())
    lines = [f"{role}: {_short(message.text, _MESSAGE_CHARS)}"] if message.text.strip() else []
    if isinstance(message, AIMessage):
        for call in message.tool_calls:
            arguments = json.dumps(call["args"], ensure_ascii=False, default=str)
            lines.append(f"Assistant called {call['name']}({_short(arguments, _ARGUMENT_CHARS)})")
    return "\n".join(lines) or f"{role}: [content that is not text]"


def _short(text: str, chars: int) -> str:
    return truncate(text, max_chars=chars, max_lines=_MOST_LINES).text
