"""A node's requests in an agent with hooks: hooks rewrite tool results, and may have the model asked again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from langchain_core.messages import AIMessage, AnyMessage

from graph_agent.budgets import usage_of
from graph_agent.deps import AgentDeps
from graph_agent.hooks.protocol import HookRequest, sees_answers
from graph_agent.models.cleaning import with_text
from graph_agent.models.client import Mode
from graph_agent.models.errors import classify_model_error
from graph_agent.models.finish_reasons import refusal_text
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.usage import less_usage
from graph_agent.models.visibility import CallFilter, without_sentinel
from graph_agent.planning.ask import RefusedError, ask_for_calls, ask_for_plan, finish_stream
from graph_agent.planning.hook_loop import PATCHED_MODEL, run_hook_loop
from graph_agent.planning.hook_messages import CarriedMessages
from graph_agent.planning.prompt import closing, plan_request
from graph_agent.planning.reply import Planned
from graph_agent.planning.requests import ModelRequests
from graph_agent.planning.result_texts import result_texts
from graph_agent.state.schema import HookWork
from graph_agent.types import NO_USAGE, Usage


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
        carried = CarriedMessages(active.loop.get("carried", []), active.conversation, first.messages)
        done: HookWork = active.loop.get("hooks") or {"reruns": 0, "calls": [], "ended": []}
        work: HookWork = {"reruns": done["reruns"], "calls": [*done["calls"]], "ended": [*done["ended"]]}

        async def rerun(request: HookRequest, keep: Sequence[AnyMessage]) -> tuple[Planned, HookRequest]:
            nonlocal noted
            await note(less_usage(requests.usage, noted))
            noted = requests.usage
            active.loop = {**active.loop, "carried": carried.after_rerun(request.messages, keep)}
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
                return await ask_for_plan(deps, request.messages, request.settings, active.planner, requests.limit_met)
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
