"""Sends the request for the next wave of calls: through the provider's tools, in text, or as a structured plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from graph_agent.base.finish import cut_off, is_paused, refusal_text
from graph_agent.base.types import NO_USAGE
from graph_agent.base.usage import usage_of
from graph_agent.core.planning.echoes import without_echoes
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.plan_cache import through_cache
from graph_agent.core.planning.refusals import finish_refusal
from graph_agent.core.planning.reply import Planned, read_reply, schema_misfit, with_answer, with_free_ids
from graph_agent.core.planning.structured_plan import ask_for_plan
from graph_agent.models import stream_filters
from graph_agent.models.continuation import MOST_PAUSES, joined_turn, with_earlier_blocks
from graph_agent.models.reply_end import ended_prose
from graph_agent.models.stream_watch import StreamWatch, Visibility

if TYPE_CHECKING:
    from graph_agent.core.planning.overlap import PlanningOverlap


async def plan_once(
    exchange: Exchange, request: NextRequest, tail: Sequence[AnyMessage] = (), *, quiet: bool = False
) -> Planned:
    """Send one planning request, and return the plan parsed from the reply: calls to run, or an answer.

    If the provider pauses its turn (`pause_turn`), the request is continued up to `MOST_PAUSES` times, unless the plan
    has calls or a limit forbids it; the parts become one message. In native and text mode, a call whose id the session
    has already gets another one. Usage, warnings and events go to the exchange.

    Args:
        exchange: Sends the requests of the pass, and recovers after failures.
        request: The request.
        tail: Messages after the conversation, such as an invalid reply and a notice about it.
        quiet: Whether to stream nothing of the reply.

    Raises:
        RefusedError: The model or its provider refused; the error's message is the answer.
        PlanningError: A structured plan is still invalid after its repair.
        LimitMetError: A limit forbids the repair of a structured plan, or a further request after a prediction.
        Exception: The error of the last provider.
    """
    planned = await _send(exchange, request, tail, quiet=quiet)
    so_far, given = planned.message, tail
    for _ in range(MOST_PAUSES):
        if planned.calls or not is_paused(planned.message) or exchange.limit_met(NO_USAGE, so_far) is not None:
            break
        await _end_paused(exchange, planned)
        tail, earlier = [*given, so_far], so_far
        # The request that was sent is older than what its reply recorded in the loop state.
        request = exchange.sent.override(loop=exchange.request.loop)
        planned = await _send(exchange, request, tail, quiet=quiet)
        so_far = joined_turn(earlier, planned.message)
        planned = replace(planned, message=with_earlier_blocks(earlier, planned.message))
    request = exchange.sent
    if request.mode == "wave" or not planned.calls:
        return planned
    # Hooks send the calls back to the provider, which refuses an id that its request holds already.
    return with_free_ids(planned, request.earlier.ids_with(request.history))


async def _send(exchange: Exchange, request: NextRequest, tail: Sequence[AnyMessage], *, quiet: bool) -> Planned:
    """Send one planning request and return its plan, without continuing a paused turn. Adds the plan's usage to the
    exchange.

    With one of the settings `dispatch="streamed"`, `predict` or `candidates`, `_send_with_overlap` does so. A removed
    invention adds a warning. Parameters and errors are those of `plan_once`.
    """
    settings = request.settings
    if settings.dispatch == "streamed" or settings.predict or settings.candidates != 1:
        planned = await _send_with_overlap(exchange, request, tail, quiet=quiet)
    else:
        ask = partial(_ask_once, exchange, tail, quiet=quiet)
        planned = await exchange.send(request, ask, purpose="plan", visibility=_visibility(request))
    exchange.count(planned.usage, planned.message.usage_metadata)
    if planned.invented:
        exchange.warn_of_invention(planned.invented)
    return planned


async def _send_with_overlap(
    exchange: Exchange, request: NextRequest, tail: Sequence[AnyMessage], *, quiet: bool
) -> Planned:
    """Send one planning request, or several, as the settings `dispatch`, `predict` and `candidates` require, and return
    the plan.

    A plan that was predicted while the wave ran is returned without a request, unless there is a `tail`. With the
    setting `candidates` above 1, that many requests are sent at once and one plan is chosen. With
    `dispatch="streamed"`, calls may begin while the reply is still arriving; with `predict`, so may calls that are
    likely. Hooks or middleware that see replies exclude both. Parameters and errors are those of `plan_once`.
    """
    # Imported here: few agents begin calls early.
    from graph_agent.core.planning.overlap import overlap_of

    settings = request.settings
    overlap = overlap_of(request) if settings.dispatch == "streamed" or settings.predict else None
    if overlap is not None and not tail and (predicted := await overlap.predicted(exchange)) is not None:
        return predicted
    if settings.candidates == 1:
        ask = partial(_ask_once, exchange, tail, quiet=quiet)
    else:
        ask = partial(_ask_several, exchange, tail, overlap)
    send = partial(exchange.send, request, ask, purpose="plan", visibility=_visibility(request))
    return await (send() if overlap is None else overlap.during(exchange, send))


def _ask_once(
    exchange: Exchange, tail: Sequence[AnyMessage], request: NextRequest, stream: StreamWatch, *, quiet: bool
) -> Awaitable[Planned]:
    """Ask for the next wave in the mode of the request, and return the plan.

    In mode `wave`, the request is for a structured plan, and nothing is streamed; in other modes `ask_for_calls` sends
    it, whose parameters these are.
    """
    if request.mode == "wave":
        # A structured plan is no text for the reader; its answer is sent whole.
        stream.is_quiet = True
        return ask_for_plan(request, tail, exchange.limit_met)
    return ask_for_calls(request, tail, stream, quiet=quiet)


def _ask_several(
    exchange: Exchange,
    tail: Sequence[AnyMessage],
    overlap: PlanningOverlap | None,
    request: NextRequest,
    stream: StreamWatch,
) -> Awaitable[Planned]:
    """Send the requests of all candidates at once, and return the plan that is chosen; see `candidates`. Nothing is
    streamed.

    Args:
        exchange: Receives the usage and warnings.
        tail: Messages after the conversation.
        overlap: Begins calls that all possible plans share before the choice, if it `streams`; None to begin none.
        request: The request that the candidates vary.
        stream: The watch of the reply, which stays quiet.
    """
    # Imported here: few agents plan by several requests.
    from graph_agent.core.planning.candidates import ask_candidates

    # A coroutine, so that what one candidate raises before its first wait is its own failure.
    async def ask(request: NextRequest, stream: StreamWatch) -> Planned:
        return await _ask_once(exchange, tail, request, stream, quiet=True)

    stream.is_quiet = True
    begin = partial(overlap.begin, source="agreed") if overlap is not None and overlap.streams else None
    return ask_candidates(request, ask, exchange, begin)


async def _end_paused(exchange: Exchange, paused: Planned) -> None:
    """Finish the stream of a paused turn, and add a `warning` event with the turn's text as commentary, if it is not
    blank.

    The continued turn is streamed as another message.

    Args:
        exchange: Has sent the request.
        paused: The plan of the paused turn.
    """
    await exchange.stream.finish(paused.raw_text, paused.raw_text, paused.message.id)
    text = {"commentary": paused.raw_text} if paused.raw_text.strip() else {}
    exchange.warn(f"The provider of {exchange.sent.model.name} paused its turn, which goes on.", **text)


def _visibility(request: NextRequest) -> Callable[[], Visibility]:
    """Return a factory of the filter for a streamed planning reply, which holds back calls, markup and the sentinel
    (`No more actions.`).

    The filter is the first that applies: for text mode, all text calls; for an enforced response schema, the sentinel
    only; for a reply after which the request may be repeated in text (`may_correct`), calls, of a model that takes
    tools only at the beginning; else markup, or only the sentinel where no markup is sought.
    """
    if request.mode == "text":
        return stream_filters.TextCallFilter
    if _schema_of_plan(request) is not None:
        return stream_filters.SentinelFilter
    if not may_correct(request):
        return stream_filters.MarkupFilter if seeks_markup(request) else stream_filters.SentinelFilter
    return stream_filters.LeadingCallFilter if request.model.takes_tools else stream_filters.CallFilter


def may_correct(request: NextRequest) -> bool:
    """Whether a native reply without calls may be followed by the same request in text mode.

    It may once per input, for an agent with tools, before any wave of calls or rerun by a hook, and unless the model
    has called natively in this session.
    """
    loop = request.loop
    tried = loop.get("recovery", {}).get("asked_in_text")
    worked = loop["waves"] or loop.get("request_only_messages") or request.model.name in loop.get("native_tools", ())
    return bool(request.deps.toolbox.names) and not tried and not worked


def seeks_markup(request: NextRequest) -> bool:
    """Whether markup of a tool call in an answer must be cut off.

    True in the modes `text` and `wave`, and for an endpoint without the rules of a known provider or server, which may
    have failed to parse a call. False for an agent without tools.
    """
    return bool(request.deps.toolbox.names) and (request.mode != "native" or not request.model.is_known)


def _schema_of_plan(request: NextRequest) -> dict[str, Any] | None:
    """Return the response's JSON schema if the provider enforces it on planning replies without calls.

    None without a response format, if such a reply is never the answer, or if the provider does not enforce it.
    """
    deps, settings = request.deps, request.settings
    if deps.response is None or not deps.may_answer_while_planning(settings):
        return None
    enforced = deps.client.enforces_schema(deps.response.json_schema, settings, request.mode)
    return deps.response.json_schema if enforced else None


def ask_for_calls(
    request: NextRequest, tail: Sequence[AnyMessage], stream: StreamWatch, *, quiet: bool
) -> Awaitable[Planned]:
    """Send one request for calls through the provider's tools, or in text, and return the plan of the reply.

    The plan is taken from the plan cache if the cache has one. Nothing is streamed if planning replies are never the
    answer, must be checked against a response schema that the provider does not enforce, or must pass a guard first. In
    text mode, a call that copies an example of the prompt gets a `fault`.

    Args:
        request: The request, in native or text mode.
        tail: Messages after the conversation.
        stream: Receives the text for the reader. The caller must finish it with `finish_stream`.
        quiet: Whether to stream nothing in any case.

    Raises:
        RefusedError: The model or its provider refused; not if a content filter cut off a reply with calls, each of
            which gets a `fault`.
        Exception: The provider's error.
    """
    deps, settings, mode, schema = request.deps, request.settings, request.mode, _schema_of_plan(request)
    answers = deps.may_answer_while_planning(settings)
    # A structured response may need a repair, unless the provider enforces the schema; a reader cannot take it back.
    is_checked = deps.response is not None and schema is None
    stream.is_quiet = quiet = quiet or is_checked or not answers or deps.withholds(settings)
    messages = request.messages(tail)

    async def ask() -> Planned:
        reply = await deps.client.ask("plan", messages, settings, mode=mode, quiet=quiet, schema=schema, watch=stream)
        planned = read_reply(
            reply,
            deps.toolbox.names,
            text=mode == "text" and not stream.is_answer,
            prices=settings.prices,
            max_tokens=settings.max_output_tokens,
        )
        if mode == "text":
            planned = without_echoes(planned, deps.toolbox.schemas, messages)
        text = refusal_text(reply, visible=answers and deps.response is None)
        # Calls that a content filter cut off get error results, so that the model can try again.
        if text is not None and (cut_off(reply) is None or not (planned.calls or planned.unread)):
            raise await finish_refusal(stream, reply, text, usage_of(reply, settings.prices))
        return planned

    return through_cache(request, messages, ask) if deps.caches_plans(settings) else ask()


async def finish_stream(stream: StreamWatch, planned: Planned) -> None:
    """Stream the rest of a planning reply whose tokens were partly held back.

    Nothing more is streamed of a reply that has neither calls nor an answer.

    Args:
        stream: The stream of the reply.
        planned: The plan of the reply, whose message text is the text for the reader.
    """
    shown = planned.message.text if planned.calls or planned.answers else None
    await stream.finish(planned.raw_text, shown, planned.message.id)


async def fits(request: NextRequest, planned: Planned) -> bool:
    """Whether a planning reply is a valid answer by a response schema that the provider enforces; False without such a
    schema.
    """
    response = request.deps.response if _schema_of_plan(request) else None
    return response is not None and await schema_misfit(response, planned.raw_text) is None


async def without_markup(exchange: Exchange, planned: Planned) -> Planned:
    """Return a plan without calls whose answer does not end in the markup of a call that the server failed to parse.

    Markup that is cut off adds a warning. The plan is returned unchanged if it has no markup, if markup is not sought
    (`seeks_markup`), or if it fits an enforced schema.

    Args:
        exchange: Has sent the request.
        planned: The plan, which has no calls.
    """
    request = exchange.request
    if not seeks_markup(request) or await fits(request, planned):
        return planned
    message, dropped = ended_prose(planned.message, turns=False, markup=True)
    exchange.warn_of_invention(dropped)
    return with_answer(planned, stream_filters.without_sentinel(message.text)) if dropped else planned


async def finished_plan(exchange: Exchange, planned: Planned) -> Planned:
    """Stream the rest of a planning reply, and return its plan; if the reply holds a call that cannot be parsed, ask
    once more.

    The second request has a notice about the unreadable call, and its plan replaces the first. A warning is added. It
    is sent once per input, and not if a limit forbids it; the first plan is then returned as it is.

    Args:
        exchange: Sends the requests; the plan is the reply to the newest one.
        planned: The plan.

    Raises:
        Exception: The errors of `plan_once`.
    """
    request, stream = exchange.request, exchange.stream
    if (
        not planned.unread
        or request.loop.get("recovery", {}).get("asked_again")
        or exchange.limit_met(NO_USAGE, planned.message) is not None
    ):
        await finish_stream(stream, planned)
        return planned
    exchange.record(asked_again=True)
    await stream.finish(planned.raw_text, None, planned.message.id)
    message = (
        f"The model {request.model.name} wrote a call that cannot be read; it was not run, and is asked for once more."
    )
    exchange.warn(message, **({"commentary": stream.text} if stream.text else {}))
    notice = f"{request.deps.prompts.render('written_call')}\n{planned.unread}"
    second = await plan_once(exchange, exchange.request, [AIMessage(planned.raw_text), HumanMessage(notice)])
    await finish_stream(exchange.stream, second)
    return second
