"""Sends the request for the answer: as free text, in a given schema, or after a fixed sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage

from graph_agent.base.finish import REFUSED, refusal_text
from graph_agent.base.usage import usage_of
from graph_agent.core.planning.ask import seeks_markup
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.recovery import recovered
from graph_agent.core.planning.refusals import finish_refusal
from graph_agent.core.planning.reply import answer_in, is_better
from graph_agent.core.state.messages import stream_rest
from graph_agent.models.binding import ModelCall
from graph_agent.models.errors import is_content_refusal
from graph_agent.models.reply_end import ended_prose
from graph_agent.models.sanitize import cited_metadata, with_text
from graph_agent.models.stream_filters import AnswerFilter, SentinelFilter, TurnFilter, without_sentinel
from graph_agent.models.stream_watch import StreamWatch, Visibility
from graph_agent.models.waits import limit_waits


async def ask_for_answer(
    exchange: Exchange,
    request: NextRequest,
    tail: Sequence[AnyMessage] = (),
    *,
    quiet: bool = False,
    schema: dict[str, Any] | None = None,
    without_tools: bool = False,
) -> AIMessage:
    """Ask the model for the answer, and return the reply with only the answer as text, which may be empty.

    Removed from the text are calls, planning markup, the sentinel (`No more actions.`), and results or user turns that
    the model invented; the latter add a warning. With a schema, the text stays whole, but for the sentinel, if the
    shortened one fits the schema no better. The rest of the answer is streamed, and the reply's usage is counted.

    Args:
        exchange: Sends the request, recovers after failures, and counts its usage.
        request: The request; the message that asks for the answer is appended.
        tail: Messages after the one that asks for the answer, such as an invalid reply and its error.
        quiet: Whether to keep the reply's tokens out of the message stream.
        schema: JSON schema of the answer; None for free text. With a schema, tokens are streamed only if the provider
            enforces it.
        without_tools: Whether to offer no tools, and write the calls of the history as text. This is for a model that
            ignores the tool choice and calls a tool in place of its answer.

    Raises:
        RefusedError: The model or its provider refused; the error's message is the answer.
        Exception: The error of the last provider.
    """

    async def ask(request: NextRequest, stream: StreamWatch) -> AIMessage:
        deps, settings, client, mode = request.deps, request.settings, request.deps.client, request.mode
        if without_tools and mode == "native":
            client, mode = client.with_overrides((), {}), "text"
        messages = request.answer_messages(tail)
        reply = await client.ask("answer", messages, settings, mode=mode, quiet=quiet, schema=schema, watch=stream)
        markup = schema is None and seeks_markup(request)
        reply, invented = ended_prose(reply, turns=request.mode != "native", markup=markup)
        exchange.warn_of_invention(invented)
        if (refusal := refusal_text(reply, visible=True)) is not None:
            raise await finish_refusal(stream, reply, refusal, usage_of(reply, settings.prices))
        answer = answer_in(reply, deps, request.mode, request.history)
        if schema is not None and not await is_better(answer, reply.text, deps.response):
            answer = without_sentinel(reply.text)
        # An answer that differs, such as one with escapes in JSON, is streamed whole.
        await stream.finish(reply.text, answer if answer and answer in reply.text else None, reply.id)
        return with_text(reply, answer)

    # With a schema, the reply is streamed only if the provider enforces it.
    visibility = _visibility(request, free=schema is None and bool(request.deps.toolbox.names))
    reply = await exchange.send(request, ask, purpose="answer", visibility=visibility)
    exchange.count(usage_of(reply, request.settings.prices), reply.usage_metadata)
    return reply


async def ask_for_answer_after(exchange: Exchange, sentence: str) -> tuple[AIMessage, Exception | None]:
    """Ask for an answer that follows a fixed sentence. The reader receives both as one streamed message.

    Errors are returned, not raised. A refusal, also by a provider's content filter, is no error: its text is added to
    the message, and a `warning` event is recorded. After another failure, the next request goes on below the same
    sentence if a change may help (see `recovered`). Calls, markup and inventions are removed from the answer, as in
    `ask_for_answer`.

    Args:
        exchange: Sends the exchange's own next request, and counts its usage.
        sentence: The sentence, which is streamed before the model is asked.

    Returns:
        The message, which begins with the sentence, and None; or, if no model answered, the message with only what was
        streamed and the error of the last model.
    """
    request = exchange.request

    def recover(error: Exception) -> ModelCall | None:
        nonlocal request
        change = recovered(request, error)
        exchange.sent = request = exchange.adopt(change)
        if not change.may_help:
            return None
        return request.deps.client.answering(request.answer_messages(), request.settings, mode=request.mode)

    request = exchange.begin_request(request)
    exchange.stream = request.new_watch(_visibility(request, sentence))
    limit_waits(fallback=request.has_fallback, ends=request.ends)
    with exchange.metered("answer"):
        message, failure = await request.deps.client.answer_after(
            sentence,
            request.answer_messages(),
            request.settings,
            mode=request.mode,
            recover=recover,
            watch=exchange.stream,
        )
        if failure is None:
            exchange.count(usage_of(message, request.settings.prices), message.usage_metadata)
    if failure is not None and not is_content_refusal(failure):
        return message, failure
    # A model that is asked natively invents no results in its text.
    turns, markup = request.mode != "native", seeks_markup(request)
    message, invented = ended_prose(message, len(sentence), turns=turns, markup=markup)
    exchange.warn_of_invention(invented)
    body = message.text.removeprefix(sentence).strip()
    below = message.model_copy(update={"content": body})
    answer, stream = answer_in(below, request.deps, request.mode, request.history), exchange.stream
    await stream.finish(message.text, message.text if answer == body else None, message.id)
    whole = message.text if body else sentence
    shown = whole if answer == body else "\n\n".join(filter(None, [sentence, answer]))
    refusal = refusal_text(below, visible=True) if failure is None else REFUSED
    if refusal is not None:
        exchange.warn_of_refusal()
        # Below the text so far, which may have been streamed.
        shown = "\n\n".join(filter(None, [shown, refusal.removeprefix(body).strip()]))
    if shown != message.text:
        message = with_text(message, shown)
        if stream.text:
            stream_rest(message, stream.text)
    return message, None


def after_sentence(sentence: str, answer: AIMessage) -> AIMessage:
    """Return the answer with a fixed sentence in a paragraph before it; unchanged if the sentence is empty.

    The new message has only the id, the text and the citations of the answer.
    """
    if not sentence:
        return answer
    text = "\n\n".join(filter(None, [sentence, answer.text]))
    return AIMessage(text, id=answer.id, response_metadata=cited_metadata(answer, text))


def _visibility(request: NextRequest, prefix: str = "", *, free: bool = True) -> Callable[[], Visibility]:
    """Return a factory of the filter for streamed answers, which holds back text that is not meant for the reader.

    Such text is the sentinel (`No more actions.`); calls in place of the answer, if `free`; turns that the model
    invents, unless calls are asked for natively; and markup of calls, if `free` and `seeks_markup`.

    Args:
        prefix: The fixed beginning of the answer, which the filter passes on.
        free: Whether the answer is free text of an agent with tools, where a model may write a call in its place.
    """

    def inner() -> Visibility:
        return AnswerFilter(prefix) if free else SentinelFilter()

    turns, markup = request.mode != "native", free and seeks_markup(request)
    return lambda: TurnFilter(inner(), len(prefix), turns=turns, markup=markup) if turns or markup else inner()


async def guarded_answer(exchange: Exchange, answer: AIMessage) -> AIMessage:
    """Pass a given answer through the middleware that rewrites model replies, and return the answer that the middleware
    leaves.

    No request is sent unless the middleware sends one; its usage is counted. This is for an answer that no request
    returned, such as the results of tools with `return_direct`.
    """
    request = exchange.request
    with exchange.metered("answer"):
        return await request.deps.client.guarded(request.answer_messages(), answer)
