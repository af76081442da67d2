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
from graph_agent.base.finish import refusal_text
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.history_notes import is_kept_note, is_note
from graph_agent.base.types import NO_USAGE
from graph_agent.base.usage import LimitMetError, usage_of
from graph_agent.core.extensions.truncation import truncate
from graph_agent.core.planning.compaction import find_cut, newest_input
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.recovery import ChangedRequest, fallen_back, shortened
from graph_agent.core.state.schema import LoopState, Summary
from graph_agent.models.errors import classify_model_error, describe_model_error
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
"""Words that are estimated as one token, for the length that the model is asked for."""
_CHARS_PER_TOKEN = 4
"""Characters that are estimated as one token."""
_MESSAGE_CHARS = 4_000
"""Characters to which a message is truncated in the request for a summary."""
_RESULT_CHARS = 2_000
"""Characters to which a result is truncated in the request for a summary."""
_ARGUMENT_CHARS = 500
"""Characters to which the arguments of a call are truncated in the request for a summary."""
_MOST_LINES = 1_000_000
"""High enough that `truncate` limits characters only."""


def use_summary(request: NextRequest, stored: Sequence[StoredEvent], new: Sequence[StoredEvent] = ()) -> NextRequest:
    """Return a request that shows the current summary in place of the messages that it covers; it shows these if the
    event of the summary is missing.

    Args:
        request: The request; returned unchanged if the loop state refers to no summary.
        stored: The events of the session, one of which is the summary.
        new: Events that this node adds after the stored ones, before those of the requests.
    """
    if (summary := request.loop.get("summary")) is None:
        return request
    return request.override(summary=_summary_text(summary["event"], stored, new))


async def renew_summary(exchange: Exchange, stored: Sequence[StoredEvent], new: Sequence[StoredEvent] = ()) -> None:
    """Ask the model for a new summary of the older messages, if the next request would fill a given share of its
    window.

    The share is the setting `summarize_at`. The summary adds a `summary` event. If the request for it fails or its
    reply is empty, a `warning` event is added, no further one is sent in this input, and requests hold a note in place
    of the older part. Nothing happens if the window is unknown, a summary failed in this input, or too little would be
    replaced to be worth a model call.

    Args:
        exchange: Sends the requests of the pass; call this after `use_summary` and after hooks have rewritten the
            results.
        stored: The events of the session.
        new: Events that this node adds after the stored ones, before those of the requests.

    Raises:
        UserError: The model refused the request for a reason that the user must fix.
        LimitMetError: After the summary, a budget or the limit of turns forbids a plan.
    """
    current = exchange.request
    window, share = current.window, current.settings.summarize_at
    if window is None or share is None or not current.summarizes:
        return
    threshold = share * window
    size = _request_tokens(current)
    if size < threshold:
        return
    messages = current.messages()
    # The provider counts tokens of the tools too, and in its own way.
    scale = max(size / max(1, estimated_tokens(messages)), 0.25)
    found = find_cut(messages, int(threshold * (_KEPT_SHARE - _SUMMARY_SHARE) / scale))
    cut = _stored_cut(messages, found, current.conversation)
    kept_from = messages[cut].id
    older = [one for one in messages[:cut] if not isinstance(one, SystemMessage) and not is_kept_note(one)]
    # The newest input is in the summary for later inputs, but stays in requests until the next one.
    staying = {message.id for message in newest_input(current.conversation)}
    replaced = estimated_tokens([one for one in older if not is_note(one) and one.id not in staying])
    if not kept_from or replaced * scale < threshold * _WORTH_SHARE:
        return
    try:
        text = await request_summary(exchange, older, int(threshold / scale))
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a provider may raise anything; a note replaces the summary
        log_traceback(logger, "The request for a summary", error)
        exchange.record(unsummarized=True)
        public, logged = [
            "The reply was empty."
            if isinstance(error, EmptySummaryError)
            else describe_model_error(error, public=public)
            for public in (True, False)
        ]
        what = "The older part of the conversation could not be summarized"
        exchange.warn(f"{what}: {public}", f"{what}: {logged}")
        exchange.adopt(shortened(exchange.request))
        return
    _use(exchange, text, kept_from, older, len(stored) + len(new) + len(exchange.events), messages[cut:])
    newest = next((message for message in reversed(current.conversation) if isinstance(message, AIMessage)), None)
    if (met := exchange.limit_met(NO_USAGE, newest or AIMessage(""))) is not None:
        raise LimitMetError(*met)


def _stored_cut(request: Sequence[AnyMessage], kept_from: str | None, conversation: Sequence[AnyMessage]) -> int:
    """Return the index of the first message to keep, which must be a stored message and no tool result; 0 to keep all.

    A message that only a hook added cannot be the cut: the requests of the next input lack it, and would then hold the
    whole conversation. The next suitable message after `kept_from` is taken, or else the last one before it.

    Args:
        request: The messages of the request; one has the id `kept_from`.
        kept_from: Id of the first message to keep, stored or added by a hook; None to keep all.
        conversation: The stored messages.
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
    """Return the content of the `summary` event at an index of the session's events.

    None if no such event is there, because the history has been replaced.

    Args:
        index: Index in `stored` followed by `new`.
        stored: The events of the session.
        new: Events that this node adds after the stored ones.
    """
    at = index - len(stored)
    found = stored[index] if at < 0 else new[at] if at < len(new) else {}
    return found.get("content") if found.get("type") == "summary" else None


class EmptySummaryError(Exception):
    """Raised if the reply to a request for a summary has no text or is a refusal."""


def _request_tokens(request: NextRequest) -> int:
    """Return the tokens of the next request: the provider's count or an estimate, whichever is larger.

    The provider's count is that of the newest reply since the last summary, without its reasoning, plus an estimate of
    the messages after it. It cannot be used alone, because some providers report too little, or zero. Without such a
    reply, the estimate is returned.
    """
    conversation = request.conversation
    estimated = request.estimated_tokens()
    # Counts from before a summary include the replaced messages.
    since = (request.loop.get("summary") or {"at": 0})["at"]
    for index in range(len(conversation) - 1, since - 1, -1):
        message = conversation[index]
        if isinstance(message, AIMessage) and (usage := message.usage_metadata):
            reasoning = (usage.get("output_token_details") or {}).get("reasoning") or 0
            later = estimated_tokens(conversation[index + 1 :])
            return max(estimated, usage["total_tokens"] - reasoning + later)
    return estimated


def _summary_request(prompts: Prompts, messages: Sequence[AnyMessage], tokens: int) -> HumanMessage:
    """Return the message that asks for a summary and quotes the messages.

    Args:
        prompts: Renders the message.
        messages: The messages to summarize.
        tokens: Estimated tokens to which the quoted messages are truncated together; the summary may fill a tenth of
            them, and 100 words in any case.
    """
    words = max(100, int(tokens * _SUMMARY_SHARE * _WORDS_PER_TOKEN))
    text = "\n\n".join(_lines(message) for message in messages)
    text = truncate(text, max_chars=tokens * _CHARS_PER_TOKEN, max_lines=_MOST_LINES).text
    return HumanMessage(prompts.render("summary", conversation=text, words=words))


async def request_summary(
    exchange: Exchange, older: Sequence[AnyMessage], tokens: int, instructions: str | None = None
) -> str:
    """Ask the current model to summarize messages, and return the summary, truncated if it is over twice the allowed
    length.

    The request's usage is counted. A failing model is replaced by the next fallback model only.

    Args:
        exchange: Sends the request.
        older: The messages; the first may be the note with the previous summary.
        tokens: Tokens to which the messages are truncated; the summary may fill a tenth of them.
        instructions: System message of the request; None if there is none.

    Raises:
        EmptySummaryError: The model's reply has no text, or is a refusal.
        Exception: The error of the last provider.
    """
    prompts = exchange.request.deps.prompts
    messages: list[AnyMessage] = [SystemMessage(instructions)] if instructions else []
    messages.append(_summary_request(prompts, older, tokens))

    async def ask(request: NextRequest, stream: StreamWatch) -> AIMessage:
        # Text mode offers no tools to this request.
        client, settings = request.deps.client, request.settings
        reply = await client.ask("answer", messages, settings, mode="text", quiet=True, watch=stream)
        if refusal_text(reply, visible=True) is not None or not reply.text.strip():
            raise EmptySummaryError
        return reply

    reply = await exchange.send(exchange.request, ask, purpose="summary", recover=by_fallback)
    exchange.count(usage_of(reply, exchange.request.settings.prices), None)
    most = int(2 * tokens * _SUMMARY_SHARE) * _CHARS_PER_TOKEN
    return truncate(reply.text.strip(), max_chars=most, max_lines=_MOST_LINES).text


def by_fallback(request: NextRequest, error: Exception) -> ChangedRequest:
    """Return the request addressed to the next fallback model after a transient error.

    After any other, `may_help` is False.

    For requests that the input can do without, such as a summary, which need no other recovery.
    """
    if classify_model_error(error) != "transient":
        return ChangedRequest(request, may_help=False)
    return fallen_back(request, error)


def _use(
    exchange: Exchange, text: str, kept_from: str, older: Sequence[AnyMessage], index: int, kept: Sequence[AnyMessage]
) -> None:
    """Record a summary: log it, add its event, and make requests from now on show it in place of the older messages.

    Cuts of results stay only for kept messages; a note in place of older messages is no longer needed.

    Args:
        exchange: Sends the requests of the pass; its next request is changed.
        text: The summary.
        kept_from: Id of the first message that requests still contain.
        older: The messages that the summary covers.
        index: Index that the event will have among the events of the session.
        kept: The messages of the request from `kept_from` on.
    """
    request, cut_ids = exchange.request, {message.id for message in kept}
    conversation = request.conversation
    positions = {message.id: at for at, message in enumerate(conversation)}
    inputs = [message.id for message in newest_input(conversation) if message.id and message.id not in cut_ids]
    summary: Summary = {
        "event": index,
        "kept_from": kept_from,
        "inputs": [(positions[id_], id_) for id_ in inputs],
        "at": len(conversation),
    }
    replaced = sum(not is_note(message) for message in older)
    exchange.events.append(event("summary", request.loop["step"], content=text, messages=replaced))
    cuts = {id_: chars for id_, chars in request.loop.get("truncations", {}).items() if id_ in cut_ids}
    loop: LoopState = {**request.loop, "summary": summary, "truncations": cuts}
    loop.pop("kept_from", None)
    if not cuts:
        loop.pop("truncations")
    exchange.request = request.override(loop=loop, summary=text)
    logger.info("Summarized %d messages of the conversation", replaced)


def _lines(message: AnyMessage) -> str:
    """Return a message as the request for a summary quotes it: role and text, each call, or a result.

    Each is truncated, but a note, such as a former summary, is quoted in full as `Earlier summary`. A message without
    text and calls is quoted as `[content that is not text]`.
    """
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
    """Truncate a text to `chars` characters: its beginning and end stay, with a marker line between that is not
    counted."""
    return truncate(text, max_chars=chars, max_lines=_MOST_LINES).text
