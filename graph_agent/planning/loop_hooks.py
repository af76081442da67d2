"""Runs the hook loop: shows a reply to the hooks in order, and reruns, replaces or ends as they request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage

from graph_agent.calls import fingerprint
from graph_agent.deps import AgentDeps
from graph_agent.errors import SlowSchemaError
from graph_agent.hooks.copies import LazyRequestCopy, copied, fail_or_skip
from graph_agent.hooks.protocol import HookRequest, HookResponse, LoopHook, LoopPlan, RequestPatch, sees_answers
from graph_agent.models.client import Mode
from graph_agent.models.errors import classify_model_error
from graph_agent.models.finish_reasons import refusal_text
from graph_agent.models.sanitize import with_text, without_calls
from graph_agent.models.side_calls import run_side_call
from graph_agent.models.stream_filters import CallFilter, has_no_answer, without_sentinel
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.planning.ask import RefusedError, ask_for_calls, ask_for_plan, finish_stream
from graph_agent.planning.hook_messages import CarriedMessages, result_texts, without_open_calls
from graph_agent.planning.reply import Planned
from graph_agent.planning.request_state import closing, plan_request
from graph_agent.planning.requests import ModelRequests
from graph_agent.settings.budgets import LimitMet, LimitMetError, usage_of
from graph_agent.state.schema import HookWork
from graph_agent.types import NO_USAGE, Call, Usage
from graph_agent.usage import less_usage

PATCHED_MODEL = "RequestPatch.model"
"""The field named in the error for a patch's model that cannot be built."""

Rerun = Callable[[HookRequest, Sequence[AnyMessage]], Awaitable[tuple[Planned, HookRequest]]]
"""Sends a patched request and keeps messages for later requests; returns the reply and the request as answered."""


async def run_hook_loop(
    deps: AgentDeps,
    planned: Planned,
    request: HookRequest,
    *,
    work: HookWork,
    limit: Callable[[Planned], LimitMet | None],
    rerun: Rerun,
    warn: Callable[[str], None],
    count_reply: Callable[[AIMessage], None],
) -> Planned:
    """Show a reply to the hooks in order; the reply of a rerun is shown from the first hook again.

    A rerun is refused, with a warning, if the input has had `max_agentic_loops` reruns, or if the reply repeats calls
    that were rerun before in this input. The hook that requested it gets no more reruns in this input and is shown only
    replies without calls, which may be the answer; the current reply goes on to the next hook. A rerun that a limit
    forbids ends the input at that limit, and the current reply is not used; an answer that ends an input is used.

    Args:
        deps: The agent.
        planned: The reply.
        request: The request of the reply.
        work: The record of the input's hook work; updated in place.
        limit: Returns the limit that forbids another model call after a reply, and its size; None if there is none.
        rerun: Sends a patched request.
        warn: Receives warnings for the user.
        count_reply: Receives each reply of a model that a hook calls itself.

    Raises:
        HookError: If a hook with `on_error = "fail"` fails.
        LimitMetError: If a limit forbids a rerun.
        Exception: The error of `rerun`.
    """
    first = 0
    while True:
        # A hook without reruns left may still replace an answer.
        indexes = [index for index in range(first, len(deps.hooks)) if index not in work["ended"] or not planned.calls]
        found = await _first_plan(deps, indexes, planned, request, warn, count_reply)
        if found is None:
            return planned
        index, plan, patched = found
        name = type(deps.hooks[index]).__name__
        if plan.response_override is not None:
            override = _override(planned, plan.response_override)
            if (fault := await _format_fault(deps, override.message)) is not None:
                warn(f"The answer of the hook {name} does not fit the response format: {fault}")
            return override
        if plan.terminate:
            return replace(planned, ended=True, final=_is_answer(deps, planned, request))
        calls = _fingerprint(planned.calls)
        most = request.settings.max_agentic_loops
        if index in work["ended"] or calls in work["calls"]:
            refused = "the model makes the same calls again"
        elif (reruns := work["reruns"]) >= most:
            refused = f"the model was asked again {reruns} times, which is all that max_agentic_loops allows"
        elif (met := limit(planned)) is not None and request.phase == "answer":
            # There is no other answer to end the input with.
            refused = "a limit forbids it"
        elif met is not None:
            warn(
                f"The hook {name} wants the model asked again, but a limit forbids it; its last reply is not followed."
            )
            work["ended"].append(index)
            raise LimitMetError(*met)
        else:
            work["reruns"] += 1
            work["calls"] += [calls] if calls else []
            first = 0
            request = replace(patched, depth=request.depth + 1)
            planned, request = await rerun(request, plan.keep_messages)
            planned = replace(planned, extra={**planned.extra, "reruns": request.depth})
            continue
        if index not in work["ended"]:
            warn(f"The hook {name} wants the model asked again, but {refused}; its last reply counts.")
            work["ended"].append(index)
        first = index + 1


async def _first_plan(
    deps: AgentDeps,
    indexes: Sequence[int],
    planned: Planned,
    request: HookRequest,
    warn: Callable[[str], None],
    count_reply: Callable[[AIMessage], None],
) -> tuple[int, LoopPlan, HookRequest] | None:
    """The first of these hooks that requests a change: its index, plan and patched request; None if none does."""
    for index in indexes:
        hook = deps.hooks[index]
        if not planned.calls and not sees_answers(hook):
            continue
        response = HookResponse(copied(planned.message), copied(planned.calls), copied(planned.usage))
        lent = LazyRequestCopy.of(request)
        try:
            plan = await _build_plan(hook, response, lent, count_reply)
            if plan is None:
                continue
            if not isinstance(plan.response_override, str | AIMessage | None):
                raise TypeError(f"response_override is {plan.response_override!r}; give text or an AIMessage")
            patched = (plan.request_patch or RequestPatch()).apply(request)
            _check_messages([*patched.messages, *plan.keep_messages])
            # Copied, because the hook may change its own objects later.
            messages = copied(without_open_calls(patched.messages))
            patched = replace(patched, messages=messages, tools=copied(patched.tools))
            plan = replace(plan, keep_messages=copied(list(plan.keep_messages)))
            if patched.model is not request.model:
                await deps.models.ready(patched.model, PATCHED_MODEL)
        except BaseException as error:  # noqa: BLE001 - a hook may raise anything; its `on_error` selects the response
            fail_or_skip(hook, error, warn)
        else:
            return index, plan, patched
    return None


async def _build_plan(
    hook: LoopHook, response: HookResponse, request: HookRequest, count_reply: Callable[[AIMessage], None]
) -> LoopPlan | None:
    """Call a hook; None if it requests no change."""
    returned = await run_side_call(hook.should_run, response, request, on_reply=count_reply)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"should_run returned {returned!r}; return a pair (bool, context)")
    wanted, context = returned
    if not wanted:
        return None
    plan = await run_side_call(hook.build_plan, context, response, request, on_reply=count_reply)
    if not isinstance(plan, LoopPlan):
        raise TypeError(f"build_plan returned {plan!r}; return a LoopPlan")
    return plan if plan.response_override is not None or plan.terminate or plan.run_agentic_loop else None


def _check_messages(messages: Sequence[Any]) -> None:
    for message in messages:
        if not isinstance(message, BaseMessage):
            raise TypeError(f"A patch's messages hold {message!r}; give LangChain messages")


def _override(planned: Planned, override: str | AIMessage) -> Planned:
    """The plan that answers with a hook's override: no call is run."""
    message = without_calls(override) if isinstance(override, AIMessage) else AIMessage(override)
    # A message that a hook returns twice, or took from the history, would replace the stored one by its id.
    message = copied(message).model_copy(update={"id": None})
    return replace(planned, message=message, calls=[], last=True, action="answer", reasoning="", final=True)


async def _format_fault(deps: AgentDeps, answer: AIMessage) -> str | None:
    """Why an answer is no valid structured response; None if it is valid or none is required."""
    if deps.response is None:
        return None
    try:
        await asyncio.to_thread(deps.response.read, answer.text)
    except (ValueError, SlowSchemaError) as error:
        return str(error)
    return None


def _is_answer(deps: AgentDeps, planned: Planned, request: HookRequest) -> bool:
    """Whether the text of a reply that ends the loop is an answer.

    The text of a structured plan is its reasoning, and a structured response is not composed while planning.
    """
    if deps.response is not None or deps.mode(request.settings) == "wave":
        return False
    return not has_no_answer(planned.message.text)


def _fingerprint(calls: Sequence[Call]) -> str:
    """One key for a set of calls, independent of order and ids; empty for no calls."""
    return "\n".join(sorted(fingerprint(call) for call in calls))


class HookedRequests:
    """The requests of one pass through a node, whose results and replies are shown to the agent's hooks.

    A rerun is retried and falls back like any request; a rerun whose patch names another model has no fallback. The
    usage of reruns, and of models that a hook calls itself, is added to `ModelRequests.usage`.

    Args:
        requests: The node's requests.
        session_id: The session id that hooks receive.
    """

    def __init__(self, requests: ModelRequests, session_id: str) -> None:
        self._requests = requests
        self._active = requests.active
        self._session_id = session_id

    async def rewrite_results(self) -> None:
        """Have the hooks rewrite the tool results of these requests, before the first is sent.

        Raises:
            HookError: If a hook with `on_error = "fail"` fails.
        """
        active = self._active
        if not active.agent.rewriters:
            return
        active.result_texts = await result_texts(
            active.agent.rewriters, active.history, active.warn, self._requests.count_reply
        )

    async def plan(self, note: Callable[[Usage], Awaitable[None]]) -> Planned:
        """Ask for the next wave, and return the reply as the hooks leave it.

        Args:
            note: Stores the usage before a rerun, in case this process is killed.

        Raises:
            HookError: If a hook with `on_error = "fail"` fails.
            LimitMetError: As `ModelRequests.plan`, and if a limit forbids a rerun.
            Exception: As `ModelRequests.plan`.
        """
        planned = await self._requests.plan()
        return await self._run_hooks(planned, self._first_request(), note)

    async def guard(self, answer: AIMessage) -> AIMessage:
        """Return an answer as the hooks leave it; called before the user receives it.

        Raises:
            HookError: If a hook with `on_error = "fail"` fails.
            LimitMetError: If a limit forbids a rerun.
            Exception: As `ModelRequests.answer`.
        """
        active = self._active
        if not any(map(sees_answers, active.agent.hooks)):
            return answer
        request = replace(
            self._first_request(),
            messages=[*active.history, *closing(active.deps, active.mode)],
            step=active.loop["step"],
            phase="answer",
        )
        return (await self._run_hooks(_as_plan(answer, NO_USAGE), request, _note_nothing)).message

    async def _run_hooks(
        self, planned: Planned, first: HookRequest, note: Callable[[Usage], Awaitable[None]]
    ) -> Planned:
        requests, active = self._requests, self._active
        noted = NO_USAGE
        carried = CarriedMessages(active.loop.get("request_only_messages", []), active.conversation, first.messages)
        done: HookWork = active.loop.get("hooks") or {"reruns": 0, "calls": [], "ended": []}
        work: HookWork = {"reruns": done["reruns"], "calls": [*done["calls"]], "ended": [*done["ended"]]}

        async def rerun(request: HookRequest, keep: Sequence[AnyMessage]) -> tuple[Planned, HookRequest]:
            nonlocal noted
            await note(less_usage(requests.usage, noted))
            noted = requests.usage
            active.loop = {**active.loop, "request_only_messages": carried.after_rerun(request.messages, keep)}
            return await self._rerun(request)

        try:
            return await run_hook_loop(
                active.agent,
                planned,
                first,
                work=work,
                limit=lambda planned: requests.limit_met(NO_USAGE, planned.message),
                rerun=rerun,
                warn=active.warn,
                count_reply=requests.count_reply,
            )
        finally:
            if work != done:
                active.loop = {**active.loop, "hooks": work}

    def _first_request(self) -> HookRequest:
        active = self._active
        options = dict(active.settings.model_options())
        return HookRequest(
            model=active.model.client.model,
            messages=list(active.history),
            tools=list(active.deps.toolbox.schemas),
            max_tokens=options.pop("max_tokens", None),
            optional_params=options,
            kwargs={},
            settings=active.settings,
            session_id=self._session_id,
            step=active.loop["step"] + 1,
        )

    async def _rerun(self, request: HookRequest) -> tuple[Planned, HookRequest]:
        """Send a patched request; return its reply, and the request with the model that answered."""
        requests, active = self._requests, self._active
        own = request.model is active.model.client.model

        async def ask(stream: StreamWatch) -> Planned:
            deps, mode = (active.deps, active.mode) if own else await self._with_patched_model(request)
            deps = _patched(deps, request)
            if request.phase == "answer":
                return await self._ask_for_answer(deps, request, mode)
            if mode == "wave":
                limit, answered = requests.limit_met, requests.answered
                return await ask_for_plan(deps, request.messages, request.settings, active.planner, limit, answered)
            planned = await ask_for_calls(deps, request.messages, request.settings, mode, stream)
            await finish_stream(stream, planned)
            return planned

        def recover(error: Exception) -> bool:
            # The messages are the hook's, so shortening or rewriting the history would not change the request.
            return own and classify_model_error(error) == "transient" and active.fall_back(error)

        planned = await requests.send(ask, recover=recover, visibility=CallFilter)
        requests.count(planned.usage, planned.message.usage_metadata if own else None)
        # After a fallback, the next rerun must not go back to the model that failed.
        return planned, replace(request, model=active.model.client.model) if own else request

    async def _ask_for_answer(self, deps: AgentDeps, request: HookRequest, mode: Mode) -> Planned:
        messages = plan_request(deps, request.messages, request.settings, mode, self._active.planner)
        schema = deps.response.json_schema if deps.response else None
        reply = await deps.client.answer(messages, request.settings, mode=mode, quiet=True, schema=schema)
        usage = usage_of(reply, request.settings.prices)
        if (refusal := refusal_text(reply, visible=True)) is not None:
            raise RefusedError.from_reply(reply, refusal, usage)
        return _as_plan(with_text(reply, without_sentinel(reply.text)), usage)

    async def _with_patched_model(self, request: HookRequest) -> tuple[AgentDeps, Mode]:
        """The agent with the model of a patch, and the mode in which that model is asked for calls."""
        active = self._active
        ready = await active.agent.models.ready(request.model, PATCHED_MODEL)
        client = active.agent.offering(ready.client)
        deps = replace(active.deps, client=client, planner=ready.planner, tool_calling=ready.tool_calling)
        mode = deps.mode(request.settings)
        return deps, "text" if mode == "native" and ready.name in active.loop["text_tools"] else mode


def _as_plan(answer: AIMessage, usage: Usage) -> Planned:
    """An answer in the form in which the hook loop processes replies."""
    return Planned(answer, [], usage, True, "answer", answer.text, answers=True, final=True)


async def _note_nothing(_: Usage) -> None:
    """Store no usage: after a crash the answer's request is sent again in any case."""


def _patched(deps: AgentDeps, request: HookRequest) -> AgentDeps:
    """The agent with the tools and options of a patched request."""
    options = {**request.optional_params, **request.kwargs}
    if request.max_tokens is not None:
        options["max_tokens"] = request.max_tokens
    return replace(
        deps,
        client=deps.client.with_overrides(request.tools, options),
        planner=deps.planner.with_overrides(options),
        toolbox=deps.toolbox.offering(request.tools),
        # A hook may patch the same request differently each time.
        cache=None,
    )
