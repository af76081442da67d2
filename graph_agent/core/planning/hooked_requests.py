"""Sends requests through the features of a pass: rewritten results, summaries, loop hooks, corrections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage

from graph_agent.base.history.events import StoredEvent
from graph_agent.base.types import NO_USAGE
from graph_agent.base.usage import usage_of
from graph_agent.core.extensions.hook_protocol import HookRequest, sees_answers
from graph_agent.core.extensions.loop_hooks import LoopHooks
from graph_agent.core.extensions.request_messages import CarriedMessages, result_texts
from graph_agent.core.planning.answer_request import ask_for_answer
from graph_agent.core.planning.ask import finish_stream, finished_plan, may_correct, plan_once, without_markup
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.next_request import RequestOfHook
from graph_agent.core.planning.recovery import options_warned
from graph_agent.core.planning.reply import Planned, ended_plan, plan_of_answer, schema_misfit
from graph_agent.core.planning.summary import renew_summary, use_summary
from graph_agent.core.planning.text_correction import apply_known_drop, plan_in_text, sign_of_ignored_tools
from graph_agent.core.state.channels import collect_writes
from graph_agent.core.state.schema import HookWork
from graph_agent.models.stream_filters import has_no_answer

PATCHED_MODEL = "RequestPatch.model"
"""Name of the field in the error for a model of a hook's patch that cannot be built."""


async def prepare(
    exchange: Exchange, stored: Sequence[StoredEvent], new: Sequence[StoredEvent] = (), *, may_summarize: bool = True
) -> None:
    """Prepare the requests of a pass before the first is sent: hooks rewrite tool results, and old messages are
    summarized.

    Also sets up the recording of requests if `record_requests` is set, and applies a stored summary.

    Args:
        exchange: Sends the requests of the pass; its next request and its log of requests are changed.
        stored: The events of the session.
        new: Events that this node adds after the stored ones, before those of the requests.
        may_summarize: Whether a new summary may be requested; it is if the model's window is known, `summarize_at` is
            set, and the conversation has become long enough.

    Raises:
        HookError: A hook with `on_error = "fail"` failed.
        UserError: The model refused the request for a summary for a reason that the user must fix.
        LimitMetError: After a summary, a budget or the limit of turns forbids a plan.
    """
    request = exchange.request
    if request.settings.record_requests:
        # Imported here: most agents record none.
        from graph_agent.core.state.model_requests import RequestLog

        log = RequestLog([*stored, *new], request.settings.recorded_chars, request.prepared.hashes)
        exchange.request_log = log
    if "summary" in request.loop:
        exchange.request = request = use_summary(request, stored, new)
    # A summary must not quote what a hook hides from the model.
    if rewriters := request.agent.rewriters:
        texts = await result_texts(rewriters, request.history, exchange.warn, exchange.count_reply)
        exchange.request = exchange.request.override(result_texts=texts)
    if may_summarize and request.window is not None and request.settings.summarize_at is not None:
        await renew_summary(exchange, stored, new)


async def request_plan(
    exchange: Exchange, stored: Sequence[StoredEvent], new: Sequence[StoredEvent], writes: list[tuple[str, Any]]
) -> Planned:
    """Ask for the next wave, after `prepare`, and return the plan of the reply as the loop hooks leave it.

    Warns once per input if the tool that the caller's tool choice requires is withheld, i.e. no longer offered after a
    loop. The rest of a reply that hooks replaced is not streamed.

    Args:
        exchange: The requests of the pass.
        stored: The events of the session.
        new: Events that the node's update adds to them before those of the requests.
        writes: Receives the writes of middleware to state fields, as pairs of field and value.

    Raises:
        HookError: A hook with `on_error = "fail"` failed.
        RefusedError: The model or its provider refused; the error's message is the answer.
        PlanningError: A structured plan is still invalid after its repair.
        LimitMetError: A limit forbids the repair of an invalid structured plan, a rerun that a hook requests, or a plan
            after a summary.
        UserError: The model refused the request for a summary for a reason that the user must fix.
        Exception: The error of the last provider.
    """
    await prepare(exchange, stored, new)
    collect_writes(writes)
    if "withheld" in exchange.request.loop:
        _warn_of_withheld_choice(exchange)
    first = partial(_first_plan, exchange)
    return await (_through_hooks(exchange, first) if exchange.request.agent.hooks else first())


async def reviewed(exchange: Exchange, answer: AIMessage) -> AIMessage:
    """Pass an answer through the loop hooks, which may replace it or have the model asked again, and return the final
    answer.

    The user has not received the answer yet. It is returned unchanged if no hook inspects answers.

    Raises:
        HookError: A hook with `on_error = "fail"` failed.
        LimitMetError: A limit forbids asking the model again.
        RefusedError: The model or its provider refused.
        Exception: The error of the last provider.
    """
    if not any(map(sees_answers, exchange.request.agent.hooks)):
        return answer
    return (await _through_hooks(exchange, answer)).message


def _warn_of_withheld_choice(exchange: Exchange) -> None:
    """Warn, once per input, if the tool that the caller's `tool_choice` requires is withheld after a detected loop.

    There is no warning if the tool is still offered, because all tools are withheld.
    """
    loop, choice = exchange.request.loop, exchange.request.agent.client_tool_choice
    if loop.get("recovery", {}).get("free_choice") or choice not in loop.get("withheld", ()):
        return
    if choice not in exchange.request.deps.toolbox.names:
        exchange.record(free_choice=True)
        exchange.warn(f"Tool {choice} is disabled for this input; the tool choice is ignored.")


async def _first_plan(exchange: Exchange) -> Planned:
    """Ask for the next wave, without loop hooks, and return the plan. If the model's server ignores tools, ask in text.

    - If this process knows that the server drops tools, the first request is in text already.
    - A native reply without calls that shows signs of ignored tools is requested again in text, once per input and
      before any work.
    - Later in an input, markup of a call is cut from such a reply.
    - A native call is recorded for the model, so that its later replies are not doubted.
    - A reply with a call that cannot be parsed is requested once more; see `finished_plan`.

    Raises the errors of `plan_once`.
    """
    request = exchange.request
    if request.agent.models.drops_tools.get(request.model.name):
        apply_known_drop(exchange)
    planned = await plan_once(exchange, exchange.request)
    request = exchange.request
    if request.mode == "native":
        if planned.calls:
            _record_native_call(exchange)
        elif not may_correct(request):
            planned = await without_markup(exchange, planned)
        elif (sign := await sign_of_ignored_tools(exchange, planned)) is not None:
            return await plan_in_text(exchange, planned, sign)
    return await finished_plan(exchange, planned)


def _record_native_call(exchange: Exchange) -> None:
    """Record in the loop state, and for this process, that the current model has called a tool natively.

    The loop state is not changed for a model whose profile states that it takes tools, at an endpoint with the rules of
    a known provider or server.
    """
    request = exchange.request
    known, model = request.loop.get("native_tools", []), request.model
    request.agent.models.drops_tools[model.name] = False
    if not (model.takes_tools and model.is_known) and model.name not in known:
        exchange.change_loop(native_tools=[*known, model.name])


async def _through_hooks(exchange: Exchange, first: Callable[[], Awaitable[Planned]] | AIMessage) -> Planned:
    """Send a request through the loop hooks, which may have it sent again with changes. Returns the final plan.

    If a hook ends the input, the plan's calls do not run; text that the hook gives replaces the reply's, and streamed
    text of the reply becomes commentary of a `warning` event. An answer of a hook that does not fit the response format
    adds a `warning` event, too. If the hook gives no text, that of the reply is the answer, except in mode `wave` and
    in an agent with a response format.

    Args:
        exchange: Sends the requests of the pass.
        first: Sends the original request for a plan; or an answer that was already composed, which the hooks inspect.

    Raises:
        HookError: A hook with `on_error = "fail"` failed.
        LimitMetError: A limit forbids a rerun.
        Exception: The errors of `plan_once`.
    """
    carried: CarriedMessages | None = None
    answers = isinstance(first, AIMessage)

    async def handler(request: HookRequest | None, keep: Sequence[AnyMessage]) -> tuple[Planned, HookRequest]:
        nonlocal carried
        before = exchange.request.loop.get("request_only_messages", [])
        if request is None:
            planned = plan_of_answer(first, NO_USAGE) if isinstance(first, AIMessage) else await first()
            request = _hook_request(exchange, answers=answers)
            carried = CarriedMessages(before, exchange.request.conversation, request.messages)
            return planned, request
        assert carried is not None
        exchange.change_loop(request_only_messages=carried.after_rerun(request.messages, keep))
        exchange.warn_of_replaced(exchange.stream.drop() if request.settings.stream_before_guards else [])
        return await _rerun(exchange, request)

    deps = exchange.request.agent
    work: HookWork = exchange.request.loop.get("hooks") or {"reruns": 0, "calls": [], "ended": []}
    hooks = LoopHooks[Planned](
        deps.hooks,
        work,
        record=lambda work: exchange.change_loop(hooks=work),
        limit=lambda planned: exchange.limit_met(NO_USAGE, planned.message),
        check_model=lambda model: deps.models.ready(model, PATCHED_MODEL, exchange.request.settings),
        warn=exchange.warn,
        count_reply=exchange.count_reply,
        report=partial(exchange.report_hook, plans=not answers),
    )
    planned, request, decision = await hooks.wrap(handler)
    if decision is None:
        return planned
    name, plan = decision
    if plan.response_override is None:
        # The text of a structured plan is its reasoning, and a structured response is not composed while planning.
        is_answer = deps.response is None and deps.mode(request.settings) != "wave"
        return replace(planned, ended=True, final=is_answer and not has_no_answer(planned.message.text))
    planned = ended_plan(planned, plan.response_override)
    exchange.warn_of_replaced(exchange.stream.drop())
    fault = None if deps.response is None else await schema_misfit(deps.response, planned.message.text)
    if fault is not None:
        exchange.warn(f"The answer of the hook {name} does not fit the response format: {fault}")
    return planned


def _hook_request(exchange: Exchange, *, answers: bool) -> HookRequest:
    """Return the request that was sent, in the form (`HookRequest`) in which hooks receive it.

    A request for the answer includes its closing message. One for a plan has the number of the plan to come as its
    step.

    Args:
        exchange: Sends the requests of the pass; its own next request is converted.
        answers: Whether the request was for the answer; False for a plan.
    """
    request = exchange.request
    options = dict(request.settings.model_options())
    return HookRequest(
        model=request.model.client.model,
        messages=[*request.history, *(request.closing() if answers else ())],
        tools=list(request.deps.toolbox.schemas),
        max_tokens=options.pop("max_tokens", None),
        optional_params=options,
        kwargs={},
        settings=request.settings,
        session_id=request.session_id,
        step=request.loop["step"] + (not answers),
        phase="answer" if answers else "plan",
    )


async def _rerun(exchange: Exchange, request: HookRequest) -> tuple[Planned, HookRequest]:
    """Send a request that a hook has patched; return the plan of its reply, and the request with the model that
    answered.

    A model that the patch names is built first; its request has no fallback. Otherwise, after a fallback, the returned
    request has the fallback model, so that the next rerun does not go back to the one that failed. A reply to a request
    for the answer is not streamed. The plan has the number of reruns so far in `extra`.

    Args:
        exchange: Sends the request.
        request: The patched request.

    Raises:
        Exception: The errors of `plan_once` and `ask_for_answer`; `ConfigError` for a model that cannot be built.
    """
    own = exchange.request
    has_own_model = request.model is own.model.client.model
    other = None if has_own_model else await own.agent.models.ready(request.model, PATCHED_MODEL, own.settings)
    patched = exchange.adopt(options_warned(own.override(of_hook=RequestOfHook(request, other))))
    if request.phase == "answer":
        response = own.agent.response
        schema = response.json_schema if response else None
        answer = await ask_for_answer(exchange, patched, quiet=True, schema=schema)
        planned = plan_of_answer(answer, usage_of(answer, request.settings.prices))
    else:
        planned = await plan_once(exchange, patched)
        await finish_stream(exchange.stream, planned)
    if has_own_model:
        # After a fallback, the next rerun must not go back to the model that failed.
        request = replace(request, model=exchange.request.model.client.model)
    return replace(planned, extra={**planned.extra, "reruns": request.depth}), request
