"""One pass through `plan`: what it reads, and the update it gathers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent._internal.text import as_text, plain, text_of
from graph_agent.budgets import LOGGED, RECURSION_LIMIT, STEPS_FOR_A_WAVE, LimitMet, budget_met, has_budget, limit_met
from graph_agent.context import coerce_context, set_fields
from graph_agent.deps import AgentParts
from graph_agent.events.calls import announce
from graph_agent.events.queries import answers_of_wave, failed_ids, is_structured, results_of_wave, since_plan
from graph_agent.events.types import IN_HISTORY, StoredEvent, event
from graph_agent.execution.delegate_call import calls_that_wait, unanswered
from graph_agent.execution.settlement import never_run, settle
from graph_agent.models.stream_watch import Spoken
from graph_agent.runs.inbox import NoteKind
from graph_agent.runs.notes import listen, take_follow_ups
from graph_agent.runs.run import run_of
from graph_agent.runs.spending import spent
from graph_agent.state.channels import status_event
from graph_agent.state.messages import new_user_messages, rewrite
from graph_agent.state.schema import NOT_BEGUN, Bookkeeping, Outcome, PlanState, RemoteTask
from graph_agent.state.usage import add_usage, fresh
from graph_agent.types import NO_USAGE, Call, SessionStatus, StopReason, Usage
from graph_agent.waves.schema import Selection, select

logger = logging.getLogger(__name__)

_LIMIT_REASON = "Not run: the limit was reached before its turn came."
_HOOK_REASON = "Not run: a hook ended the work with this reply."
_CIRCLE_REASON = "Not run: it needs calls that need it."
_ABORT_REASON = "Not run: the run was stopped before its turn came."


_OF_THE_SESSION = ("turn", "last_input_id", "text_tools", "native_tools", "kept_from", "cuts", "taken")
"""What the bookkeeping keeps when a new input begins."""


class Step:
    """What one pass through `plan` has read and found so far.

    Args:
        state: What the node reads.
        parts: The agent.
        config: The node's config.
        runtime: The node's runtime.
    """

    def __init__(self, state: PlanState, parts: AgentParts, config: RunnableConfig, runtime: Runtime[Any]) -> None:
        self.state = state
        self.parts = parts
        self.config = config
        self.runtime = runtime
        self.run = run_of(config)
        self.history = state["messages"]
        self.loop: Bookkeeping = {**NOT_BEGUN, **state.get("loop", NOT_BEGUN)}
        self.settings = parts.settings(runtime, config, self.loop)
        self.events: list[StoredEvent] = []
        self.changes: dict[str, Any] = {}
        self.asking = calls_that_wait(state.get("remote"), state.get("ready", [])) if state.get("arrived") else []
        """Calls of the wave whose delegates wait for a person's answer."""
        self.newest_reply: AIMessage | None = None
        """The newest plan's, in this pass."""
        self.streamed: Spoken | None = None
        """What of the newest request's reply has reached the reader; None before the first request."""
        self.direct_answer: AIMessage | None = None
        """The newest planning reply, where it is the answer; None otherwise."""
        self.cut_off: AIMessage | None = None
        """What there is of the newest request's reply where it was cut off, with its tokens; None otherwise."""

    async def take_input(self) -> None:
        """Settle what an earlier run left open, note the user's words, and start counting anew."""
        remote = self.state.get("remote")
        if remote and remote["open"]:
            # New input answers no question that was asked before it.
            await self.withdraw(remote["open"])
        await self.parts.prepare()
        await self.settle()
        self.begin_counting()
        if users := new_user_messages(self.history, self.loop["last_input_id"]):
            self.events += [event("user_message", 0, content=plain(message.content)) for message in users]
            self.loop["last_input_id"] = users[-1].id or ""
            await take_follow_ups(self.run, self.loop, users)
        status = self.state.get("status", SessionStatus.CREATED.value)
        if status != SessionStatus.RUNNING:
            self.events.append(status_event(status, SessionStatus.RUNNING.value, 0))
        self.events += [event("warning", 0, message=warning) for warning in self.parts.warnings]
        self.changes |= {
            "status": SessionStatus.RUNNING.value,
            "stop_reason": None,
            "structured_response": None,
        }

    async def settle(self, *, goes_on: bool = False) -> None:
        """Give the calls that an earlier run left open their results; if the input goes on, those that cannot run."""
        tools = self.parts.toolbox
        runs_again = (lambda name: not tools.writes(name) or tools.repeatable(name)) if goes_on else None
        settled, events = await settle(
            self.history, self.config, self.runtime, self.loop, tools.writes, runs_again=runs_again
        )
        self.replace_history(settled)
        self.events += events

    def replace_history(self, messages: list[AnyMessage]) -> None:
        """Have the history be another list of messages, most of them the same objects; before anything is said."""
        if messages is not self.history:
            self.changes["messages"] = rewrite(self.state["messages"], messages)
            self.history = messages

    def begin_counting(self) -> None:
        """Count steps, usage and time anew."""
        last = self.loop
        self.loop = {**NOT_BEGUN, **{key: last[key] for key in _OF_THE_SESSION if key in last}}  # type: ignore[literal-required, typeddict-item]  # keys of the very same type
        # What this input's own context says is newer than what was changed before it.
        context = coerce_context(self.runtime.context, self.parts.context_schema)
        brought = set_fields(context) if context is not None else {}
        if changed := {name: value for name, value in last.get("changed", {}).items() if name not in brought}:
            self.loop["changed"] = changed
        if changed != last.get("changed", {}):
            self.settings = self.parts.settings(self.runtime, self.config, self.loop)
        self.run.begin_input()
        self.changes["usage"] = fresh(NO_USAGE)

    async def listen(self, kinds: Sequence[NoteKind]) -> bool:
        """Take in what was said to the session since; True when the user has steered it."""
        changed = self.loop.get("changed")
        heard = await listen(self.run, self.loop, kinds, self.loop["step"], self._check_change)
        self.events += heard.events
        for message in heard.messages:
            self.say(message)
            self.history = [*self.history, message]
        if self.loop.get("changed") is not changed:
            self.settings = self.parts.settings(self.runtime, self.config, self.loop)
        return bool(heard.messages)

    async def _check_change(self, loop: Bookkeeping) -> None:
        """Raise `ConfigError` for a changed configuration that cannot be had."""
        await self.parts.models.chain(self.parts.settings(self.runtime, self.config, loop))

    def cut_short(self) -> bool:
        """Whether an abort or a budget ends the input here; the calls that waited are answered then."""
        met: tuple[StopReason, float | None] | None = ("aborted", None) if self.run.aborted else None
        met = met or self.budget_met(NO_USAGE, self.newest_reply)
        if met is None:
            return False
        reason = _ABORT_REASON if met[0] == "aborted" else _LIMIT_REASON
        self._give_up_asking()
        self.skip([(call, reason) for call in self.loop["waiting"]])
        self.loop["waiting"] = []
        self.stop(*met)
        return True

    def budget_met(self, asked: Usage, newest: AIMessage | None) -> tuple[StopReason, float] | None:
        """The budget that has no room for another plan beside the answer, and its size; None when there is none.

        Args:
            asked: What was used since this pass last counted.
            newest: The newest plan's reply, which may be in no history; None for the history's own.
        """
        if not has_budget(self.settings):
            return None
        usage = add_usage(add_usage(self.state.get("usage"), self.changes.get("usage")), asked)
        replies = self.history if newest is None else [newest]
        return budget_met(spent(self.run, self.loop, usage, replies, self.settings), self.settings)

    def send_again(self) -> bool:
        """Send the delegations whose agents have asked a person back, to ask; False when there are none."""
        if not self.asking:
            return False
        if self.state["remaining_steps"] < STEPS_FOR_A_WAVE:
            self._give_up_asking()
            self.skip([(call, _LIMIT_REASON) for call in self.loop["waiting"]])
            self.loop["waiting"] = []
            self.stop_at_recursion_limit()
        else:
            self.changes["ready"] = self.asking
            self.run.plan_calls(call["id"] for call in self.asking)
        return True

    async def withdraw_unanswered(self) -> None:
        """Tell the agents that asked a person, where planning is over, that nobody will answer."""
        remote = self.state.get("remote")
        if remote and self.asking and self.concluded:
            await self.withdraw({call["id"]: remote["open"][call["id"]] for call in self.asking})

    async def withdraw(self, tasks: Mapping[str, RemoteTask]) -> None:
        """Tell the agents whose tasks wait for a person that no answer will come; the state forgets the tasks."""
        await self.parts.toolbox.withdraw(tasks)
        forgotten = self.changes.get("remote", {"open": {}})["open"]
        self.changes["remote"] = {"contexts": {}, "open": {**forgotten, **dict.fromkeys(tasks)}}

    def _give_up_asking(self) -> None:
        for call in self.asking:
            message, told = unanswered(call, self.loop["step"])
            self.say(message)
            self.history = [*self.history, message]
            self.events.append(told)

    def go_on_with_the_wave(self) -> bool:
        """Make ready those of the wave's waiting calls that can run now; False when there are none."""
        if not self.loop["waiting"]:
            return False
        wave = [*since_plan(self.state["events"]), *self.events]
        chosen = self._select(wave)
        self.skip(chosen.skipped)
        self.loop["waiting"] = chosen.waiting
        if not chosen.ready:
            # Nothing is under way that they could wait for: a person's edit has made them need each other.
            self.skip([(call, _CIRCLE_REASON) for call in chosen.waiting])
            self.loop["waiting"] = []
            return False
        if self.state["remaining_steps"] < STEPS_FOR_A_WAVE:
            self.skip([(call, _LIMIT_REASON) for call in [*chosen.ready, *chosen.waiting]])
            self.loop["waiting"] = []
            self.stop_at_recursion_limit()
        else:
            self.make_ready(chosen.ready, wave)
        return True

    @property
    def limit_met(self) -> LimitMet | None:
        """The limit of the configuration that forbids another plan, and its size; None when there is none."""
        return limit_met(self.loop["step"], self.loop["turn"], self.settings)

    def _select(self, wave: Sequence[StoredEvent]) -> Selection:
        """What of the wave's waiting calls can run now; no call of the wave is under way."""
        waiting = self.loop["waiting"]
        if not is_structured(wave):
            return Selection(waiting, [], [])
        results, failed = results_of_wave(wave), failed_ids(wave)
        known = {*results, *failed, *(call["id"] for call in waiting)}
        gone = {need for call in waiting for need in call.get("needs", ()) if need not in known}
        return select(waiting, results, failed | gone)

    def at_limit(self) -> bool:
        """Whether the input may not be planned any further; it is ended then."""
        if (met := self.limit_met) is not None:
            self.stop(*met)
        elif self.loop["step"] > 0 and self.state["remaining_steps"] < STEPS_FOR_A_WAVE:
            self.stop_at_recursion_limit()
        else:
            return False
        return True

    def make_ready(self, calls: list[Call], wave: Sequence[StoredEvent] = ()) -> None:
        """Have calls run next; `wave` is what the history has of their wave already."""
        self.changes["ready"] = calls
        self.run.plan_calls(call["id"] for call in calls)
        if self.settings.effect_ledger:
            self.loop["ledger"] = True
        else:
            self.loop.pop("ledger", None)
        self.events += announce(calls, wave, self.loop["step"], self.runtime.stream_writer)

    def skip(self, calls: Sequence[tuple[Call, str]]) -> None:
        """Answer calls that will not be run, each with its reason."""
        for call, reason in calls:
            message, told = never_run(call["id"], call["name"], reason, self.loop["step"])
            self.say(message)
            self.history = [*self.history, message]
            self.events.append(told)

    def end_unrun(self, message: AIMessage, calls: Sequence[Call], *, answers: bool) -> None:
        """End planning with a reply whose calls are not run; `answers` says whether its text is the answer."""
        outcome: Outcome = {"stop_reason": "completed"}
        if answers:
            outcome["draft"] = AIMessage(message.text)
            # A chat window would show the text twice.
            message = message.model_copy(update={"content": ""})
        self.say(message)
        self.history = [*self.history, message]
        self.skip([(call, _HOOK_REASON) for call in calls])
        self.conclude(outcome)

    def say(self, message: Any) -> None:
        """Add a message to the history."""
        self.changes["messages"] = [*self.changes.get("messages", []), message]

    def count(self, usage: Usage) -> None:
        """Count what a plan took."""
        self.loop["turn"] += usage["model_calls"]
        before = self.changes.get("usage")
        if before is not None:
            usage = fresh(add_usage(before, usage)) if "fresh" in before else add_usage(before, usage)
        self.changes["usage"] = usage

    def answer_directly(self) -> bool:
        """End planning with the results of the wave, where they are the answer; False where they are not.

        They are when every call of the wave is of a tool with `return_direct` and has succeeded.
        """
        if self.loop["waiting"] or not self.parts.toolbox.return_direct:
            return False
        answers, direct = answers_of_wave(self.state["events"]), self.parts.toolbox.return_direct
        if not answers or any(entry["status"] != "success" or entry.get("name") not in direct for entry in answers):
            return False
        text = "\n\n".join(text_of(entry["content"]) or as_text(entry["content"]) for entry in answers)
        self.conclude({"stop_reason": "completed", "draft": AIMessage(text), "unguarded": True})
        return True

    def stop(self, reason: StopReason, limit: float | None, *, cut_short: bool = False) -> None:
        """End planning at a limit, or because somebody stopped the run.

        Args:
            reason: Why.
            limit: The limit that was met; None where there is none.
            cut_short: Whether a request was cut short: what was streamed of its reply is the beginning of the answer.
        """
        outcome: Outcome = {"stop_reason": reason}
        if cut_short and self.streamed is not None and self.streamed.text:
            begun = AIMessage(self.streamed.text, id=self.streamed.id)
            if (told := self.cut_off) is not None:
                figures = {"usage_metadata": told.usage_metadata, "response_metadata": told.response_metadata}
                begun = begun.model_copy(update=figures)
            outcome["draft"] = begun
        if limit is not None:
            outcome["limit"] = limit
            self._report_limit(reason, limit)
        self.conclude(outcome)

    def stop_at_recursion_limit(self) -> None:
        """End planning where LangGraph allows no further wave: its limit is nearer than `max_steps`."""
        limit = self.config["recursion_limit"]
        self._report_limit(RECURSION_LIMIT, limit)
        self.conclude({"stop_reason": "step_limit", "limit": limit, "limit_name": RECURSION_LIMIT})

    def _report_limit(self, name: str, limit: float) -> None:
        text = LOGGED[name]
        logger.warning(text % limit if "%g" in text else text, extra=IN_HISTORY)
        self.events.append(event("limit", self.loop["step"], reason=name, limit=limit))

    def fail(self, kind: str, message: str, cause: Exception) -> None:
        """End planning because no plan can be had; `finalize` reports the error."""
        self.events.append(event("error", self.loop["step"], kind=kind, message=message))
        self.run.cause = cause
        outcome: Outcome = {"stop_reason": "failed"}
        if self.streamed is not None and self.streamed.text:
            outcome["draft"] = AIMessage(self.streamed.text, id=self.streamed.id)
        self.conclude(outcome)

    def conclude(self, outcome: Outcome) -> None:
        """End planning."""
        self.changes["ready"] = []
        self.loop["outcome"] = outcome

    @property
    def concluded(self) -> bool:
        """Whether planning is over."""
        return self.loop["outcome"] is not None

    def update(self) -> list[tuple[str, Any]]:
        """Everything gathered."""
        if self.settings.deadline_s is not None:
            self.loop["worked_s"] = round(self.run.worked_s(self.loop.get("worked_s", 0.0)), 3)
        return [*self.changes.items(), ("loop", self.loop), ("events", self.events)]
