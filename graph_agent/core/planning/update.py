"""Builds the state update of one pass through the node `plan`.

A wave is the calls of one plan. To conclude is to end planning with an outcome, from which `finalize` answers.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from graph_agent.base._internal.failure_log import IN_HISTORY, get_logger, log_fields
from graph_agent.base._internal.text import as_text, text_of, to_json_safe
from graph_agent.base.delegate_tasks import RemoteTask
from graph_agent.base.history import call_events
from graph_agent.base.history.events import SUCCESSES, ResultStatus, StoredEvent, event
from graph_agent.base.input_messages import CONTEXT_MARK, new_user_messages
from graph_agent.base.settings.config import coerce_context, set_fields
from graph_agent.base.types import HIDDEN_ID_PREFIX, NO_USAGE, Call, SessionStatus, StopReason, Usage, plan_id_of
from graph_agent.base.usage import LOGGED, LimitMet, add_usage, budget_met, fresh, has_budget, limit_met
from graph_agent.base.waves.schema import Selection, select
from graph_agent.core.execution.delegate_call import waiting_task
from graph_agent.core.execution.deps import Task, spent
from graph_agent.core.execution.open_calls import result_without_output, settle
from graph_agent.core.state.channels import status_event, take_extras
from graph_agent.core.state.messages import newest_in_call_order, rewrite
from graph_agent.core.state.notes import seconds_since_sent, take_follow_ups
from graph_agent.core.state.run import RunHandle, WorkStoppedError, handle_of
from graph_agent.core.state.schema import INITIAL_LOOP, LoopOutcome, LoopState, PlanState, loop_of_new_input
from graph_agent.models.prompts import Prompts
from graph_agent.models.stream_watch import StreamWatch

if TYPE_CHECKING:
    from graph_agent.core.planning.exchange import Outcome

T = TypeVar("T")
logger = get_logger("graph_agent.planning.update")

AT_LIMIT = "Not run: the limit was reached before its turn came."
"""Result of a call that a limit prevented, for the model."""
_ENDED_BY_HOOK = "Not run: a hook ended the work with this reply."
_TOO_MANY = "Not run: of the {count} calls of one reply, only the first {most} run. Call it again if it is needed."
_ABORTED = "Not run: the run was stopped before its turn came."
_UNANSWERED = "The agent asked a person something, and the run was stopped before there was an answer."


def limit_event(prompts: Prompts, step: int, name: str, limit: float) -> StoredEvent:
    """Log the limit that ends an input, with advice for the developer, and return its `limit` event.

    Args:
        prompts: Renders the advice.
        step: Number of the plan.
        name: The limit's name, a key of `LOGGED`.
        limit: The limit's value, in the unit of its setting.
    """
    text, hint = LOGGED[name], prompts.render("limit_hint", reason=name, limit=limit)
    for line in filter(None, [text % limit if "%g" in text else text, hint]):
        logger.warning("%s", line, extra=IN_HISTORY)
    return event("limit", step, reason=name, limit=limit, **({"hint": hint} if hint else {}))


@dataclass(frozen=True, slots=True)
class EarlyEvents:
    """The first events of a superstep, sent on the custom stream while a model is asked, before they are stored."""

    seq: int
    """Index of the first of them in the session's history."""
    events: Sequence[StoredEvent]


class PlanUpdate:
    """One pass through the node `plan`: the state at its start, and the changes that the pass makes.

    The rules of `plan` call its methods, which change it; `as_pairs` returns the changes as an update of the graph's
    state.

    Args:
        task: The task of the node. The pass has a loop state and settings of its own, which change.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.state = state = cast("PlanState", task.state)
        self.deps = task.deps
        self.run = task.run
        self.history = state["messages"]
        self.loop: LoopState = {**INITIAL_LOOP, **task.loop}
        # Readers of a running step number its events from here.
        self.loop["events_before"] = len(state.get("events", ()))
        self.settings = task.settings
        self.events: list[StoredEvent] = []
        self.changes: dict[str, Any] = {}
        self.own_writes: list[tuple[str, Any]] = []
        """Writes to fields of the agent's `state_schema`, as pairs of field and value."""
        remote = state.get("remote")
        self.waiting_delegations: list[Call] = []
        """Calls of the wave whose delegate waits for a person's answer."""
        if state.get("wave_finished"):
            if remote:
                self.waiting_delegations = [call for call in state["ready"] if waiting_task(remote, call) is not None]
            self._set_deadline()
        self.begins = False
        """Whether this pass begins an input; False if it continues one."""
        self.steered = False
        """Whether steering (a user message sent to the running input) arrived in this pass."""
        self.newest_reply: AIMessage | None = None
        """The reply of the newest plan of this pass; None before the first."""
        self.streamed: StreamWatch | None = None
        """The stream of the newest request's reply: the text that the reader has received.

        None before the first request.
        """
        self.direct_answer: AIMessage | None = None
        """The newest planning reply if it is the answer; None otherwise."""
        self.cut_off: AIMessage | None = None
        """The part of the newest request's reply that arrived before its stream broke off, with its token counts.

        None otherwise.
        """

    async def begin_input(self) -> None:
        """Begin an input: record the user's messages, reset the counters, and settle what earlier inputs left open.

        Waiting tasks of delegates are cancelled, and open calls get results. Delegates and tools are refreshed,
        warnings of the agent and of the request become events, and facts are looked up in the agent's memory. The
        status becomes `running`. Without a new user message, as after an interruption before the first plan, the rest
        is done all the same.

        Raises:
            ConfigError: The run's context is invalid, a new tool cannot be offered, or the agent has a memory and the
                run no authenticated caller.
            UserError: The memory raised it.
        """
        remote = self.state.get("remote")
        if remote and remote["open"]:
            # New input does not answer earlier interrupts.
            await self.withdraw(remote["open"])
        if remote and remote.get("after"):
            self.change_remote(after=None)
        queued_s = round(self.run.stop.begin_input(), 6)
        self._set_deadline()
        await self.prepare()
        await self.settle()
        self.reset_counters()
        if users := new_user_messages(self.history, self.loop["last_input_id"]):
            for message in users:
                content, waited_s = to_json_safe(message.content), queued_s
                if self.run.inbox is not None and (age_s := seconds_since_sent(message)) is not None:
                    waited_s = age_s
                self.events.append(event("user_message", 0, content=content, queued_s=waited_s))
            if not self.loop["last_input_id"] or "inputs" in self.loop:
                self.loop["inputs"] = self.loop.get("inputs", 0) + len(users)
            self.loop["last_input_id"] = users[-1].id or ""
            log_fields.set({**log_fields.get({}), "input_id": self.loop["last_input_id"], "step": 0})
            if self.run.inbox is not None:
                await take_follow_ups(self.run, self.loop, users)
        status = self.state.get("status", SessionStatus.CREATED.value)
        if status != SessionStatus.RUNNING:
            self.events.append(status_event(status, SessionStatus.RUNNING.value, 0))
        warnings = (*self.deps.warnings(), *self.run.identity.warnings)
        self.events += [event("warning", 0, message=warning) for warning in warnings]
        if self.deps.memory is not None:
            # Imported here: most agents have no memory.
            from graph_agent.core.planning.recall import recall_facts

            await recall_facts(self, self.deps.memory, [message.text for message in users])
        self.changes |= {"status": SessionStatus.RUNNING.value, "stop_reason": None, "structured_response": None}

    async def prepare(self) -> None:
        """Load the delegates' descriptions and changed tools, if that is due; returns early if the run is stopped
        meanwhile.

        Raises `ConfigError` if a new tool cannot be offered.
        """
        if self.deps.toolbox.needs_refresh:
            with suppress(WorkStoppedError):
                await self.run.stop.stoppable(self.deps.prepare(), "Loading the descriptions of delegates and tools")

    def _set_deadline(self) -> None:
        """Set the input's deadline in the run, and start the run's clock with the working time of the input's earlier
        runs.
        """
        self.run.stop.worked_s(self.loop.get("worked_s", 0.0))
        self.run.stop.deadline_s = self.settings.deadline_s

    async def settle(self, *, continues: bool = False) -> None:
        """Add results for the open calls of an earlier run (see `open_calls.settle`), and their events.

        Args:
            continues: Whether the input continues after an edit, so that calls that only read or may be repeated stay
                open.
        """
        tools = self.deps.toolbox
        runs_again = (lambda name: not tools.writes(name) or tools.repeatable(name)) if continues else None
        settled, events, self.own_writes = await settle(self.task, self.history, self.loop, runs_again=runs_again)
        self.replace_history(settled)
        self.events += events

    def replace_history(self, messages: list[AnyMessage]) -> None:
        """Replace the conversation, in this pass and by the state update.

        Args:
            messages: The new conversation, which must contain all messages added by `add_message` so far. An unchanged
                message must be the same object, or else it is removed and added again.
        """
        if messages is not self.history:
            self.changes["messages"] = rewrite(self.state["messages"], messages)
            self.history = messages

    def reset_counters(self) -> None:
        """Reset the loop state and usage for a new input; keys that belong to the session stay.

        Settings of the run's context that stay for the input, such as approval patterns, become a part of the loop
        state; changes of the session that the context sets, too, are dropped. The settings of the pass and the deadline
        follow. Raises `ConfigError` for an invalid context.
        """
        last = self.loop
        given = self.task.runtime.context
        context = None if given is None else coerce_context(given, self.deps.context_schema)
        self.loop = loop_of_new_input(last, set_fields(context) if context is not None else {})
        before, now = ((loop.get("config_overrides") or {}, loop.get("approve")) for loop in (last, self.loop))
        if now != before:
            self.settings = self.task.settings_with(self.loop)
        self._set_deadline()
        if not last["last_input_id"] or "calls_before" in last:
            before_it = (self.state.get("usage") or NO_USAGE)["model_calls"]
            self.loop["calls_before"] = last.get("calls_before", 0) + before_it
        self.changes["usage"] = fresh(NO_USAGE)

    async def check_change(self, loop: LoopState) -> None:
        """Check that the models of a changed configuration can be built.

        Args:
            loop: The loop state with the change.

        Raises:
            ConfigError: A model cannot be built.
        """
        await self.deps.models.chain(self.task.settings_with(loop))

    def publish_events(self) -> None:
        """Send the events of the pass so far to readers of the run's custom stream, before a model call delays their
        storage.

        Nothing is sent without events, or unless such a reader has asked for early events. The events are still stored
        with the update.
        """
        if not self.events:
            return
        parent = self.run.parent
        reports = isinstance(parent, RunHandle) and parent.reports_early_events
        if reports or handle_of(self.task.config["configurable"]).is_watched:
            self.task.runtime.stream_writer(EarlyEvents(len(self.state.get("events", ())), [*self.events]))

    def stop_at_abort_or_budget(self) -> bool:
        """End planning if the run was aborted or a budget is used up; an abort has precedence. Returns whether planning
        ended.

        The waiting calls then get `skipped` results, and those of delegates that wait for a person `error` results.
        """
        met: tuple[StopReason, float | None] | None = ("aborted", None) if self.run.stop.aborted else None
        met = met or self.budget_met(NO_USAGE, self.newest_reply)
        if met is None:
            return False
        reason = _ABORTED if met[0] == "aborted" else AT_LIMIT
        self.answer_waiting_delegations()
        self.skip([(call, reason) for call in self.loop["waiting"]])
        self.loop["waiting"] = []
        self.stop(*met)
        return True

    def budget_met(self, asked: Usage, newest: AIMessage | None) -> tuple[StopReason, float] | None:
        """Return the budget (tokens, cost or time) that is too small for another plan and the answer, and its size;
        None otherwise.

        Always None without a budget in the settings.

        Args:
            asked: Usage that this pass has not counted yet.
            newest: The newest plan's reply, if the history may not contain it; None to use the history.
        """
        if not has_budget(self.settings):
            return None
        usage = add_usage(add_usage(self.state.get("usage"), self.changes.get("usage")), asked)
        replies = self.history if newest is None else [newest]
        return budget_met(spent(self.run, self.loop, usage, replies, self.settings), self.settings)

    async def withdraw_waiting_delegations(self) -> None:
        """If planning is over, cancel the tasks of delegates that wait for a person."""
        remote = self.state.get("remote")
        if remote and self.loop["outcome"] is not None:
            await self.withdraw({call["id"]: remote["open"][call["id"]] for call in self.waiting_delegations})

    async def withdraw(self, tasks: Mapping[str, RemoteTask]) -> None:
        """Cancel tasks of delegates that wait for a person, and remove them from the state.

        Args:
            tasks: Call id → task.
        """
        await self.deps.toolbox.withdraw(tasks)
        self.change_remote(open=dict.fromkeys(tasks))

    def change_remote(self, **fields: Mapping[str, Any] | None) -> None:
        """Add entries to fields of the state field `remote`, which holds the tasks of delegates and effects of calls.

        Args:
            fields: Field name → entries to add, where an entry None removes the stored one; None as a whole empties the
                field.
        """
        change = self.changes.setdefault("remote", {"contexts": {}, "open": {}})
        for name, entries in fields.items():
            change[name] = None if entries is None else {**change.get(name, {}), **entries}

    def answer_waiting_delegations(self) -> None:
        """Add an error result for each delegation that waits for a person, because the run was stopped before the
        answer."""
        self._add_results([(call, _UNANSWERED) for call in self.waiting_delegations], "error")

    @property
    def wave_events(self) -> list[StoredEvent]:
        """The newest `plan` event of earlier passes and all events since, those of this pass included."""
        return [*call_events.since_plan(self.state.get("events", ())), *self.events]

    @property
    def limit_met(self) -> LimitMet | None:
        """The limit of steps or turns that forbids another plan, and its size; None if there is none."""
        return limit_met(self.loop["step"], self.loop["turn"], self.settings)

    def select_waiting(self, wave: Sequence[StoredEvent]) -> Selection:
        """Divide the waiting calls into those that can run, can never run, or must wait for others.

        Without a structured plan, all can run. A call that needs a removed call can never run.

        Args:
            wave: Events of the wave so far, which have the results.
        """
        waiting = self.loop["waiting"]
        if not call_events.is_structured(wave):
            return Selection(waiting, [], [])
        results, failed = call_events.results_of_wave(wave), call_events.failed_ids(wave)
        known = {*results, *failed, *(plan_id_of(call) for call in [*waiting, *self.waiting_delegations])}
        removed = {need for call in waiting for need in call.get("needs", ()) if need not in known}
        return select(waiting, results, failed | removed)

    def stop_at_limit(self) -> bool:
        """End planning if a limit of steps or turns forbids another plan, or, after the first plan, LangGraph's
        recursion limit.

        Returns whether planning ended.
        """
        if (met := self.limit_met) is not None:
            self.stop(*met)
        elif self.loop["step"] > 0 and self.state["remaining_steps"] < self.deps.steps_for_a_wave:
            self.stop_at_recursion_limit()
        else:
            return False
        return True

    def make_ready(self, calls: list[Call], wave: Sequence[StoredEvent] | None = None) -> None:
        """Make calls the ones that the next superstep runs, and announce them by events and progress.

        If a call may write or has waited, the next checkpoint is committed before they run. The calls are recorded as
        planned by this run, and the loop state whether the effect ledger is on.

        Args:
            calls: The calls.
            wave: For calls that have waited, the events of their wave that the history already contains; None for a new
                wave.
        """
        self.changes["ready"] = calls
        # After a crash, settlement reports a call that is stored as waiting as never started.
        stored_first = wave is not None or any(self.deps.toolbox.writes(call["name"]) for call in calls)
        if stored_first and self.run.deferred is not None:
            self.run.deferred.must_commit = True
        self.run.calls.plan(call["id"] for call in calls)
        if self.settings.effect_ledger:
            self.loop["ledger"] = True
        else:
            self.loop.pop("ledger", None)
        self.events += call_events.announce(calls, wave or (), self.loop["step"], self.task.runtime.stream_writer)

    def skip(self, calls: Sequence[tuple[Call, str]]) -> None:
        """Add a `skipped` result for each call, with the reason as its text, and put results into the order of the
        calls."""
        self._add_results(calls, "skipped")
        self.order_results()

    def _add_results(self, calls: Sequence[tuple[Call, str]], status: ResultStatus) -> None:
        """Add a result message and a result event for each call that has no output.

        Args:
            calls: The calls with the text of their results.
            status: Status of the events.
        """
        step = self.loop["step"]
        results = [result_without_output(call["id"], call["name"], status, text, step) for call, text in calls]
        if results:
            self.add_message(*(message for message, _ in results))
            self.events += [result for _, result in results]

    def order_results(self) -> None:
        """Replace the history by one in which the results of the newest reply's calls follow in the order of the
        calls."""
        self.replace_history(newest_in_call_order(self.history))

    def within_limit(self, calls: list[Call]) -> list[Call]:
        """Return the first `max_calls_per_wave` calls of a reply; the others get `skipped` results."""
        most = self.settings.max_calls_per_wave
        # A model in a loop may write thousands of calls in one reply.
        if len(calls) > most:
            reason = _TOO_MANY.format(count=len(calls), most=most)
            self.skip([(call, reason) for call in calls[most:]])
        return calls[:most]

    def end_without_calls(self, message: AIMessage, calls: Sequence[Call], *, answers: bool) -> None:
        """End planning as completed with a reply whose calls do not run; each gets a `skipped` result.

        Args:
            message: The reply, which is added to the history.
            calls: Its calls.
            answers: Whether the text of the reply is the answer; the text is then removed from the added message.
        """
        outcome: LoopOutcome = {"stop_reason": "completed"}
        if answers:
            outcome["draft"] = AIMessage(message.text)
            # Otherwise a chat window shows the text twice.
            message = message.model_copy(update={"content": ""})
        self.add_message(message)
        self.skip([(call, _ENDED_BY_HOOK) for call in calls])
        self.conclude(outcome)

    def add_message(self, *messages: Any) -> None:
        """Append messages to the conversation, in this pass and in the state update."""
        self.changes["messages"] = [*self.changes.get("messages", []), *messages]
        self.history = [*self.history, *messages]

    def add_notice(self, text: str) -> None:
        """Append a user message for the model, with an id by which chat windows hide it."""
        self.add_message(HumanMessage(text, id=f"{HIDDEN_ID_PREFIX}{uuid.uuid4()}"))

    def take(self, outcome: Outcome[T]) -> T:
        """Take over loop state, events and usage of the requests of this pass, and return their result.

        Messages and a structured response that middleware wrote meanwhile are moved from `own_writes` to `extras` of
        the loop state, in place of earlier ones.

        Raises:
            BaseException: The exception that ended the requests; a cancellation if an abort or the deadline stopped
                them.
        """
        self.loop, self.streamed, self.cut_off = outcome.loop, outcome.stream, outcome.cut_off
        self.events += outcome.events
        self.count_usage(outcome.usage)
        # An earlier request of this input has had its own.
        self.loop.pop("extras", None)
        if self.own_writes and (extras := take_extras(self.own_writes, CONTEXT_MARK)):
            self.loop["extras"] = extras
        try:
            return outcome.result()
        finally:
            del outcome  # as in `Outcome.result`

    def count_usage(self, usage: Usage, turns: int | None = None) -> None:
        """Add usage to that of the input, and its model calls to the turns (model calls of planning).

        Args:
            usage: The usage.
            turns: Number of turns to add; None to add the usage's model calls.
        """
        self.loop["turn"] += usage["model_calls"] if turns is None else turns
        before = self.changes.get("usage")
        if before is not None:
            usage = fresh(add_usage(before, usage)) if "fresh" in before else add_usage(before, usage)
        self.changes["usage"] = usage

    def answer_directly(self) -> bool:
        """End planning with the results of the wave as the answer, joined by blank lines. Returns whether it did.

        It does if the wave has results, all are of tools with `return_direct` and succeeded, and no call or delegation
        waits. The answer is marked `unguarded`, so that hooks which rewrite answers still receive it.
        """
        if self.loop["waiting"] or self.waiting_delegations or not self.deps.toolbox.return_direct:
            return False
        answers, direct = call_events.answers_of_wave(self.state["events"]), self.deps.toolbox.return_direct
        if not answers or any(entry["status"] not in SUCCESSES or entry.get("name") not in direct for entry in answers):
            return False
        text = "\n\n".join(text_of(entry["content"]) or as_text(entry["content"]) for entry in answers)
        self.conclude({"stop_reason": "completed", "draft": AIMessage(text), "unguarded": True})
        return True

    def stop(self, reason: StopReason, limit: float | None, *, cut_short: bool = False) -> None:
        """End planning at a limit or an abort; a limit is logged and gets its event.

        Args:
            reason: The stop reason.
            limit: The value of the limit; None for an abort, or a reason without a value, which gets no event.
            cut_short: Whether a request was cancelled; the part of its reply that was streamed then begins the answer.
        """
        outcome: LoopOutcome = {"stop_reason": reason}
        if cut_short and self.streamed is not None and self.streamed.text:
            draft = AIMessage(self.streamed.text, id=self.streamed.id)
            if (cut_off := self.cut_off) is not None:
                figures = {"usage_metadata": cut_off.usage_metadata, "response_metadata": cut_off.response_metadata}
                draft = draft.model_copy(update=figures)
            outcome["draft"] = draft
        if limit is not None:
            outcome["limit"] = limit
            self.events.append(limit_event(self.deps.prompts, self.loop["step"], reason, limit))
        self.conclude(outcome)

    def stop_at_abort_or_deadline(self, *, cut_short: bool = False) -> None:
        """End planning because work of this pass was stopped: by an abort, or else by the deadline.

        Args:
            cut_short: Whether a request was cancelled; the part of its reply that was streamed then begins the answer.
        """
        if self.run.stop.aborted:
            self.stop("aborted", None, cut_short=cut_short)
        else:
            self.stop("deadline", self.settings.deadline_s, cut_short=cut_short)

    def stop_at_recursion_limit(self) -> None:
        """End planning because LangGraph's recursion limit allows no further wave, although `max_steps` would."""
        self.stop("recursion_limit", self.task.config["recursion_limit"])

    def fail(self, error: StoredEvent, cause: Exception) -> None:
        """End planning as failed; `finalize` reports the error to the user, after the text streamed so far.

        Args:
            error: The `error` event.
            cause: The exception behind it, which is stored in the run.
        """
        self.events.append(error)
        self.run.record_cause(cause)
        outcome: LoopOutcome = {"stop_reason": "failed"}
        if self.streamed is not None and self.streamed.text:
            outcome["draft"] = AIMessage(self.streamed.text, id=self.streamed.id)
        self.conclude(outcome)

    def conclude(self, outcome: LoopOutcome) -> None:
        """End planning with an outcome, from which `finalize` makes the answer; no calls run any more."""
        # Calls of the wave before would otherwise run again.
        self.changes["ready"] = []
        self.loop["outcome"] = outcome

    def as_pairs(self) -> list[tuple[str, Any]]:
        """Return the state update as pairs of field and value.

        With a deadline, the working time is stored in the loop state. If the last event ends the input (`limit` or
        `error`), the model calls that no event reports yet are added to it.
        """
        if self.settings.deadline_s is not None:
            self.loop["worked_s"] = round(self.run.stop.worked_s(self.loop.get("worked_s", 0.0)), 3)
        # No later event of this input would report these calls.
        if self.events and self.events[-1]["type"] in ("limit", "error"):
            self.run.report(self.loop, self.events[-1])
        return [*self.changes.items(), *self.own_writes, ("loop", self.loop), ("events", self.events)]
