"""Asking for the next wave where hooks may have the model asked again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from langchain_core.messages import AIMessage, AnyMessage

from graph_agent._internal.lru import Bounded
from graph_agent.budgets import LimitMet, usage_of
from graph_agent.deps import AgentParts
from graph_agent.hooks.protocol import HookRequest, sees_answers
from graph_agent.models.cleaning import with_text
from graph_agent.models.client import Mode
from graph_agent.models.errors import classify_model_error
from graph_agent.models.finish_reasons import refusal_in
from graph_agent.models.sentinel import without_sentinel
from graph_agent.models.stream_watch import Spoken
from graph_agent.models.visibility import WithoutCalls
from graph_agent.planning.ask import RefusedError, ask_for_calls, ask_for_plan, settle
from graph_agent.planning.carried_messages import CarriedMessages
from graph_agent.planning.hook_loop import PATCHED_MODEL, through_hooks
from graph_agent.planning.prompt import closing, plan_request
from graph_agent.planning.reply import Planned
from graph_agent.planning.requests import Asking
from graph_agent.state.schema import HookWork
from graph_agent.state.usage import less_usage
from graph_agent.types import NO_USAGE, Usage


class AskingWithHooks(Asking):
    """One node's requests, each planning reply of which is shown to the agent's hooks.

    A rerun is retried, and goes to the next fallback model, as any request does; one that a patch has sent to another
    model is that model's alone. What it takes is counted, as `usage` and as turns; so is
    what a hook asks models of its own.
    """

    async def plan_through_hooks(
        self,
        session_id: str,
        budget_met: Callable[[Usage, AIMessage], LimitMet | None],
        note: Callable[[Usage], Awaitable[None]],
    ) -> Planned:
        """As `plan`, with what the hooks made of the reply.

        Args:
            session_id: What hooks are told the session is.
            budget_met: Of what this plan has used, and its newest reply: the budget that has no room for another, and
                its size; None when there is none.
            note: Keeps what was used before a rerun, for the case that this process does not live to tell.

        Raises:
            HookError: When a hook fails that declares `on_error = "fail"`.
            LimitMetError: As `plan`, and when a hook wants a rerun that a limit forbids.
            Exception: As for `plan`.
        """
        self.budget_met = budget_met
        self._tell_of_free_choice()
        await self.rewrite_results()
        planned = await self.plan()
        if not self._agent.hooks:
            return planned
        return await self._through_hooks(planned, self._first_request(session_id), note)

    async def guard(self, answer: AIMessage, session_id: str, *, by_model: bool) -> AIMessage:
        """Show an answer to the hooks before the user gets it; the answer as they leave it.

        Args:
            answer: The answer.
            session_id: What hooks are told the session is.
            by_model: Whether it is the reply to a request, which middleware has seen then; any other is shown to the
                middleware that rewrites replies first.

        Raises:
            HookError: When a hook fails that declares `on_error = "fail"`.
            LimitMetError: When a hook wants a rerun that a limit forbids.
            Exception: As for `answer`.
        """
        if not by_model:
            answer = await self._parts.client.guarded(self._answer_request(), answer)
        if not any(map(sees_answers, self._agent.hooks)):
            return answer
        request = replace(
            self._first_request(session_id),
            messages=[*self._history, *closing(self._parts, self._mode)],
            step=self.loop["step"],
            phase="answer",
        )
        return (await self._through_hooks(_as_plan(answer, NO_USAGE), request, _keep_nothing)).message

    async def _through_hooks(
        self, planned: Planned, first: HookRequest, note: Callable[[Usage], Awaitable[None]]
    ) -> Planned:
        noted = NO_USAGE
        carried = CarriedMessages(self.loop.get("carried", []), self._whole, first.messages)
        done: HookWork = self.loop.get("hooks") or {"reruns": 0, "calls": [], "ended": []}
        work: HookWork = {"reruns": done["reruns"], "calls": [*done["calls"]], "ended": [*done["ended"]]}

        async def ask(request: HookRequest, keep: Sequence[AnyMessage]) -> tuple[Planned, HookRequest]:
            nonlocal noted
            await note(less_usage(self.usage, noted))
            noted = self.usage
            self.loop = {**self.loop, "carried": carried.of(request.messages, keep)}
            return await self._ask_again(request)

        try:
            return await through_hooks(
                self._agent,
                planned,
                first,
                work=work,
                limit=lambda planned: self._limit_met(NO_USAGE, planned.message),
                ask=ask,
                warn=self._warn,
                heard=self._heard,
            )
        finally:
            if work != done:
                self.loop = {**self.loop, "hooks": work}

    def _first_request(self, session_id: str) -> HookRequest:
        options = dict(self._settings.model_options())
        return HookRequest(
            model=self._model.client.model,
            messages=list(self._history),
            tools=list(self._parts.toolbox.schemas),
            max_tokens=options.pop("max_tokens", None),
            optional_params=options,
            kwargs={},
            settings=self._settings,
            session_id=session_id,
            step=self.loop["step"] + 1,
        )

    def _tell_of_free_choice(self) -> None:
        choice, told = self._agent.client_tool_choice, self.loop.get("recovery", {}).get("free_choice")
        if told or choice not in self.loop.get("withheld", ()) or choice in self._parts.toolbox.names:
            return
        self._learn(free_choice=True)
        self._warn(f"{choice} is to be called, and is withheld for now; the model is free to choose.")

    async def _ask_again(self, request: HookRequest) -> tuple[Planned, HookRequest]:
        own = request.model is self._model.client.model

        async def send(watch: Spoken) -> Planned:
            parts, mode = (self._parts, self._mode) if own else await self._moved(request)
            parts = _patched(parts, request)
            if request.phase == "answer":
                return await self._answer_again(parts, request, mode)
            if mode == "wave":
                return await ask_for_plan(parts, request.messages, request.settings, self._planner, self._limit_met)
            planned = await ask_for_calls(parts, request.messages, request.settings, mode, watch)
            await settle(watch, planned)
            return planned

        def recover(error: Exception) -> bool:
            # Its messages are the hook's: what would shorten or rewrite the history changes nothing here.
            return own and classify_model_error(error) == "transient" and self._fall_back(error)

        planned = await self._through(send, recover, WithoutCalls)
        self._count(planned.usage, planned.message.usage_metadata if own else None)
        # Another model may have taken over: the next rerun must not go back to the one that fell silent.
        return planned, replace(request, model=self._model.client.model) if own else request

    async def _answer_again(self, parts: AgentParts, request: HookRequest, mode: Mode) -> Planned:
        sent = plan_request(parts, request.messages, request.settings, mode, self._planner)
        schema = parts.response.json_schema if parts.response else None
        reply = await parts.client.answer(sent, request.settings, mode=mode, quiet=True, schema=schema)
        usage = usage_of(reply, request.settings.prices)
        if (words := refusal_in(reply, heard=True)) is not None:
            raise RefusedError.of(reply, words, usage)
        return _as_plan(with_text(reply, without_sentinel(reply.text)), usage)

    async def _moved(self, request: HookRequest) -> tuple[AgentParts, Mode]:
        """The agent with a patch's model, and how that one is asked for calls."""
        ready = await self._agent.models.ready(request.model, PATCHED_MODEL)
        client = self._agent.offering(ready.client)
        parts = replace(self._parts, client=client, planner=ready.planner, tool_calling=ready.tool_calling)
        mode = parts.mode(request.settings)
        return parts, "text" if mode == "native" and ready.name in self.loop["text_tools"] else mode


def _as_plan(answer: AIMessage, usage: Usage) -> Planned:
    """An answer, as the loop around hooks takes replies."""
    return Planned(answer, [], usage, True, "answer", answer.text, answers=True, final=True)


async def _keep_nothing(_: Usage) -> None:
    """Keep no note of what was used: the answer's request is sent again in any case when the process is killed."""


def _patched(parts: AgentParts, request: HookRequest) -> AgentParts:
    """The agent as it sends a patched request."""
    options = {**request.optional_params, **request.kwargs}
    if request.max_tokens is not None:
        options["max_tokens"] = request.max_tokens
    return replace(
        parts,
        client=parts.client.asked_with(request.tools, options),
        planner=parts.planner.asked_with(options),
        toolbox=parts.toolbox.offering(request.tools),
        # What a hook makes of a request may differ each time.
        cache=None,
        _instructions=Bounded(),
    )
