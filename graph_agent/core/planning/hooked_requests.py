"""Sends the requests for a plan or an answer through hooks, summaries and corrections of the reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from langchain_core.messages import AIMessage, AnyMessage

from graph_agent.base.types import NO_USAGE
from graph_agent.base.usage import usage_of
from graph_agent.core.hooks.loop_hooks import LoopHooks
from graph_agent.core.hooks.protocol import HookRequest, sees_answers
from graph_agent.core.hooks.request_messages import CarriedMessages, result_texts
from graph_agent.core.planning.ask import finish_stream
from graph_agent.core.planning.reply import Planned, ended_plan, plan_of_answer, schema_misfit
from graph_agent.core.planning.request_state import closing
from graph_agent.core.planning.requests import ModelRequests, finished_plan, without_markup
from graph_agent.core.planning.summary import renew_summary, use_summary
from graph_agent.core.planning.text_correction import apply_known_drop, plan_in_text, sign_of_ignored_tools
from graph_agent.core.state.events import StoredEvent
from graph_agent.core.state.schema import HookWork
from graph_agent.models.stream_filters import has_no_answer

PATCHED_MODEL = "RequestPatch.model"
"""The field named in the error for a patch's model that cannot be built."""


async def prepare(
    requests: ModelRequests,
    stored: Sequence[StoredEvent],
    new: Sequence[StoredEvent] = (),
    *,
    may_summarize: bool = True,
) -> None:
    """Have the hooks rewrite the tool results of these requests, and summarize long ones, before the first is sent.

    Args:
        may_summarize: Whether the input may still request a summary.

    Raises:
        HookError: If a hook with `on_error = "fail"` fails.
        UserError, LimitMetError: Same as for `renew_summary`.
    """
    active = requests.active
    if active.settings.record_requests:
        # Imported here: most agents record none.
        from graph_agent.core.state.model_requests import RequestLog

        active.request_log = RequestLog([*stored, *new], active.settings.recorded_chars, active.hashes)
    if "summary" in active.loop:
        use_summary(active, stored, new)
    # A summary must not quote what a hook hides from the model.
    if rewriters := active.agent.rewriters:
        active.result_texts = await result_texts(rewriters, active.history, active.warn, requests.count_reply)
    if may_summarize and active.window is not None and active.summarizes:
        await renew_summary(requests, stored, new)


async def request_plan(requests: ModelRequests) -> Planned:
    """Ask for the next wave, and return the reply as the loop hooks leave it.

    Raises:
        HookError: If a hook with `on_error = "fail"` fails.
        RefusedError: If the model or its provider refuses; the error's message is the answer.
        PlanningError: If a structured plan is invalid after its repair.
        LimitMetError: If a structured plan is invalid and a limit forbids the repair, or a limit forbids a rerun.
        Exception: The error of the last provider.
    """
    return await (
        _through_hooks(requests, partial(_first_plan, requests))
        if requests.active.agent.hooks
        else _first_plan(requests)
    )


async def reviewed(requests: ModelRequests, answer: AIMessage) -> AIMessage:
    """Return an answer as the loop hooks leave it; called before the user receives it.

    Raises:
        HookError: If a hook with `on_error = "fail"` fails.
        LimitMetError: If a limit forbids a rerun.
        Exception: As `answer`.
    """
    if not any(map(sees_answers, requests.active.agent.hooks)):
        return answer
    return (await _through_hooks(requests, answer)).message


async def _through_hooks(requests: ModelRequests, first: Callable[[], Awaitable[Planned]] | AIMessage) -> Planned:
    """Send a request through the loop hooks.

    Args:
        first: Sends the original request for a plan; or the answer that was composed.
    """
    active, carried = requests.active, None
    done: HookWork = active.loop.get("hooks") or {"reruns": 0, "calls": [], "ended": []}
    work: HookWork = {"reruns": done["reruns"], "calls": [*done["calls"]], "ended": [*done["ended"]]}

    async def handler(request: HookRequest | None, keep: Sequence[AnyMessage]) -> tuple[Planned, HookRequest]:
        nonlocal carried
        before = active.loop.get("request_only_messages", [])
        if request is None:
            planned = plan_of_answer(first, NO_USAGE) if isinstance(first, AIMessage) else await first()
            request = _hook_request(requests, answers=isinstance(first, AIMessage))
            carried = CarriedMessages(before, active.conversation, request.messages)
            return planned, request
        assert carried is not None
        active.loop = {**active.loop, "request_only_messages": carried.after_rerun(request.messages, keep)}
        active.warn_of_replaced(requests.stream.drop() if active.settings.stream_before_guards else [])
        return await _rerun(requests, request)

    hooks = LoopHooks[Planned](
        active.agent.hooks,
        work,
        limit=lambda planned: requests.limit_met(NO_USAGE, planned.message),
        check_model=lambda model: active.agent.models.ready(model, PATCHED_MODEL, active.settings),
        warn=active.warn,
        count_reply=requests.count_reply,
        report=partial(active.report_hook, plans=not isinstance(first, AIMessage)),
    )
    try:
        planned, request, decision = await hooks.wrap(handler)
    finally:
        if work != done:
            active.loop = {**active.loop, "hooks": work}
    if decision is None:
        return planned
    (name, plan), deps = decision, active.agent
    if plan.response_override is None:
        # The text of a structured plan is its reasoning, and a structured response is not composed while planning.
        is_answer = deps.response is None and deps.mode(request.settings) != "wave"
        return replace(planned, ended=True, final=is_answer and not has_no_answer(planned.message.text))
    planned = ended_plan(planned, plan.response_override)
    active.warn_of_replaced(requests.stream.drop())
    fault = None if deps.response is None else await schema_misfit(deps.response, planned.message.text)
    if fault is not None:
        active.warn(f"The answer of the hook {name} does not fit the response format: {fault}")
    return planned


def _hook_request(requests: ModelRequests, *, answers: bool) -> HookRequest:
    """Return the request that was sent, in the form in which hooks receive it.

    Args:
        answers: Whether it asked for the answer.
    """
    active = requests.active
    options = dict(active.settings.model_options())
    return HookRequest(
        model=active.model.client.model,
        messages=[*active.history, *(closing(active.deps, active.mode) if answers else ())],
        tools=list(active.deps.toolbox.schemas),
        max_tokens=options.pop("max_tokens", None),
        optional_params=options,
        kwargs={},
        settings=active.settings,
        session_id=requests.session_id,
        step=active.loop["step"] + (not answers),
        phase="answer" if answers else "plan",
    )


async def _rerun(requests: ModelRequests, request: HookRequest) -> tuple[Planned, HookRequest]:
    """Send a patched request; return its reply, and the request with the model that answered."""
    active = requests.active
    own = request.model is active.model.client.model
    other = None if own else await active.agent.models.ready(request.model, PATCHED_MODEL, active.settings)
    with active.patched(request, other):
        if request.phase == "answer":
            response = active.deps.response
            answer = await requests.answer(quiet=True, schema=response.json_schema if response else None)
            planned = plan_of_answer(answer, usage_of(answer, request.settings.prices))
        else:
            planned = await requests.plan_once()
            await finish_stream(requests.stream, planned)
    if own:
        # After a fallback, the next rerun must not go back to the model that failed.
        request = replace(request, model=active.model.client.model)
    return replace(planned, extra={**planned.extra, "reruns": request.depth}), request


async def _first_plan(requests: ModelRequests) -> Planned:
    active = requests.active
    if active.agent.models.drops_tools.get(active.model.name):
        apply_known_drop(active)
    planned = await requests.plan_once()
    if active.mode == "native":
        if planned.calls:
            active.record_native_call()
        elif not requests.may_correct():
            planned = await without_markup(requests, planned)
        elif (sign := await sign_of_ignored_tools(requests, planned)) is not None:
            return await plan_in_text(requests, planned, sign)
    return await finished_plan(requests, planned)
