"""Replays a recorded session with an agent, and reports where it differs.

The agent's model gives its recorded replies, or another model replies in its place. Calls get their recorded results:
no tool runs, except those that the caller names, and no delegate is contacted. An input is one message of a user with
everything up to its answer; a step is one plan with its calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from langgraph.checkpoint.memory import InMemorySaver

from graph_agent.base.approvals.requests import HeldCall
from graph_agent.base.errors import ConfigError, InputError
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.types import SessionStatus
from graph_agent.core.state.model_requests import learned_rules
from graph_agent.devtools.input_differences import (
    Difference,
    DifferenceKind,
    InputComparison,
    recorded_requests,
    unfinished_wave,
)
from graph_agent.devtools.json_values import ABSENT
from graph_agent.devtools.playback import Playback, asked_calls
from graph_agent.devtools.recording import RecordedInput, Recording, as_left, decision_in, read_recording, recording_of
from graph_agent.devtools.script import Failure, Reply, Script, Stop, script_of
from graph_agent.devtools.stand_ins import rebuild
from graph_agent.session.forks import copy_session
from graph_agent.session.session import Session

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import Interrupt


Answers = Literal["exact", "ignore"]
"""Whether another text of an answer counts as a difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The outcome of a replay."""

    session_id: str
    """Id of the recorded session."""
    differences: tuple[Difference, ...]
    """The differences, in order; the first one alone, unless the replay was to continue."""
    answers: Answers
    """Whether differences of answers count."""
    inputs: int
    """Number of inputs that were compared, the one that differs included."""
    steps: int
    """Number of steps that were compared."""
    stopped: str = ""
    """Why the replay ended before its recording; empty if it did not."""
    gaps: tuple[str, ...] = ()
    """What the session does not have stored, one sentence each."""

    @property
    def is_equal(self) -> bool:
        """Whether there is no difference that counts."""
        return not self.counted

    @property
    def counted(self) -> tuple[Difference, ...]:
        """The differences that count: all, or all but those of answers if `answers` is `ignore`."""
        return tuple(each for each in self.differences if self.answers == "exact" or each.kind != "answer")

    def raise_for_differences(self) -> None:
        """Raise `AssertionError` with the differences that count; do nothing if there are none."""
        if counted := self.counted:
            raise AssertionError("\n".join([f"The replay of {self.session_id!r} differs:", *map(str, counted)]))

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as plain JSON, with all differences, also those that do not count."""
        return {
            "session_id": self.session_id,
            "equal": self.is_equal,
            "inputs": self.inputs,
            "steps": self.steps,
            "differences": [each.as_json() for each in self.differences],
            "stopped": self.stopped,
            "gaps": list(self.gaps),
        }


async def replay(
    recording: Recording | Session[Any, Any],
    graph: CompiledStateGraph[Any, Any, Any, Any],
    *,
    model: BaseChatModel | None = None,
    tools: Mapping[str, BaseTool] | None = None,
    number: int | None = None,
    from_step: int = 1,
    answers: Answers | None = None,
    ignore_prompt: bool = False,
    keep_going: bool = False,
) -> Replay:
    """Replay a recorded session with an agent, in memory, and return where it differs.

    Args:
        recording: The session, as stored or as read.
        graph: The agent, with its prompt, hooks and configuration; it and its database are unchanged.
        model: Replies in place of the recorded model; None for the recorded replies.
        tools: Name of a tool → the tool that runs in its place; each has the mark `effect: read`.
        number: The input to compare; -1 is the newest, None for all.
        from_step: The first step to compare, and the first that a new model plans; it needs a `number`.
        answers: Whether a changed text of an answer counts as a difference; None to count it unless a new model
            answers.
        ignore_prompt: Whether the system prompt is expected to differ from the recorded requests.
        keep_going: Whether to continue after a difference, to the first call that cannot be answered.

    Raises:
        ConfigError: If the graph is no agent, or one of `tools` may write.
        InputError: If there is no such session, input or step.
        DamagedSessionError: If a part of the stored session is missing.
    """
    if isinstance(recording, Session):
        recording = await read_recording(recording.saver, recording.id)
    replayer = Replayer(
        graph, model=model, tools=tools, answers=answers, ignore_prompt=ignore_prompt, keep_going=keep_going
    )
    return await replayer.replay(recording, number=number, from_step=from_step)


class Replayer:
    """Replays sessions with one agent, one after the other, in memory.

    Each input is replayed on the history before it as it was recorded, so that a new model answers the same question.

    Args:
        graph: The agent, with its prompt, hooks and configuration; it and its database are unchanged.
        model: Replies in place of the recorded model; None for the recorded replies.
        tools: Name of a tool → the tool that runs in its place; each has the mark `effect: read`.
        answers: `exact` counts a changed text of an answer as a difference, `ignore` does not; None for `ignore` with a
            new model, and else `exact`.
        ignore_prompt: Whether the system prompt is expected to differ from the recorded requests.
        keep_going: Whether to continue after a difference, to the first call that cannot be answered. A call without a
            recorded result then runs if its tool has the mark `effect: read`.

    Raises:
        ConfigError: If the graph is no agent, or one of `tools` may write.
    """

    def __init__(
        self,
        graph: CompiledStateGraph[Any, Any, Any, Any],
        *,
        model: BaseChatModel | None = None,
        tools: Mapping[str, BaseTool] | None = None,
        answers: Answers | None = None,
        ignore_prompt: bool = False,
        keep_going: bool = False,
    ) -> None:
        real = dict(tools or {})
        for name, tool in real.items():
            if (tool.metadata or {}).get("effect") != "read":
                raise ConfigError(
                    f"The tool {name!r} may write, so it never runs in a replay. If it only reads, mark it: "
                    'metadata={"effect": "read"}.'
                )
            real[name] = tool if tool.name == name else tool.model_copy(update={"name": name})
        self._has_new_model = model is not None
        self._answers: Answers = answers or ("ignore" if model is not None else "exact")
        self._ignores_prompt, self._real, self._keep_going = ignore_prompt, real, keep_going
        self._saver = InMemorySaver()
        self._playback = Playback()
        self.current: RecordedInput | None = None
        """The input that is replayed now, or was last; None before the first one."""
        self._rebuilt = partial(rebuild, graph, playback=self._playback, real=self._real, checkpointer=self._saver)
        self._recorded_agent = self._rebuilt()
        self._agent = self._rebuilt(model=model) if model is not None else self._recorded_agent

    async def replay(self, recording: Recording, *, number: int | None = None, from_step: int = 1) -> Replay:
        """Replay a session from its first input on, and return where it differs. Nothing of it remains in memory.

        Args:
            recording: The session as it ran.
            number: The input to compare, which is the last one replayed; -1 is the newest, None for all.
            from_step: The first step to compare, and the first that a new model plans; it needs a `number`.

        Raises:
            InputError: If there is no such input or step.
        """
        chosen = None if number is None else recording.input(number)
        if from_step != 1:
            known = [step.number for step in (chosen or recording.inputs[-1]).steps if step.number]
            if chosen is None or from_step not in known:
                what = "name its input too" if chosen is None else f"the input has the steps {known}"
                raise InputError(f"The replay cannot begin at step {from_step}: {what}.")
        try:
            return await self._replay(recording, chosen, from_step)
        finally:
            # One replayer may replay many sessions, whose states would stay in memory.
            for thread in [*self._saver.storage]:
                await self._saver.adelete_thread(thread)

    async def _replay(self, recording: Recording, chosen: RecordedInput | None, from_step: int) -> Replay:
        """Replay the inputs up to the chosen one, from the first, and compare them with the recording.

        If an input is chosen, only that one is compared, and of it the steps from `from_step` (from 1). Ends at the
        first difference that counts, unless the replay continues then (`keep_going`), and at an input that waits for
        something that the recording does not have.
        """
        events = [entry for each in recording.inputs for entry in each.events]
        comparison = InputComparison(
            requests={} if self._has_new_model else recorded_requests(events),
            ignores_prompt=self._ignores_prompt,
            replaced_tools=frozenset(self._real),
        )
        # What the recording process had learned from refusals decides how requests look.
        learned = learned_rules(events)
        agent = self._rebuilt(model_rules=learned) if learned else self._recorded_agent
        history = Session(agent, recording.session_id)
        differences: list[Difference] = []
        inputs, steps, stopped = 0, 0, ""
        for each in recording.inputs:
            if chosen is not None and each.number > chosen.number:
                break
            first = from_step if each is chosen else 1
            is_compared = chosen is None or each is chosen
            # The next input has given open calls of this one their results, which its own replay must not have.
            played = each if each is recording.inputs[-1] else as_left(each)
            inputs += is_compared
            if not self._has_new_model or not is_compared:
                run = _InputRun(
                    played, history, comparison if is_compared else None, first, keep_going=self._keep_going
                )
                await self._play(run)
            else:
                run = await self._play_anew(played, history, comparison, first)
            differences += run.differences
            steps += run.steps
            stopped = run.stopped
            if (stopped and not run.waits) or (not self._keep_going and any(map(self._counts, run.differences))):
                break
        return Replay(
            session_id=recording.session_id,
            differences=tuple(differences),
            answers=self._answers,
            inputs=inputs,
            steps=steps,
            stopped=stopped,
            gaps=recording.gaps,
        )

    def _counts(self, difference: Difference) -> bool:
        """Whether a difference counts: every one, except that of an answer unless `answers` is `exact`."""
        return self._answers == "exact" or difference.kind != "answer"

    async def _play(self, run: _InputRun) -> None:
        """Replay an input, and show it as the current one."""
        self.current = run.recorded
        await run.run(self._playback)

    async def _play_anew(
        self, recorded: RecordedInput, history: Session, comparison: InputComparison, first: int
    ) -> _InputRun:
        """Replay an input with the new model from the step `first` on, in a copy of the session; return that run.

        It is first replayed with its recorded replies in `history`, which the next input needs. If that stopped early,
        so that the next input cannot follow, the run is stopped, too.
        """
        before = await history.events()
        base = _InputRun(recorded, history, None, 1, keep_going=False)
        await self._play(base)
        end = len(before)
        if first > 1:
            steps = (entry["seq"] for entry in await history.events() if entry["seq"] >= end and entry["step"] < first)
            end = max(steps, default=end - 1) + 1
        # In a copy, since the next input continues the recorded history.
        trial = Session(self._agent, f"{history.id}-replay-{recorded.number}")
        if end:
            await copy_session(self._saver, history.id, trial.id, end - 1)
        run = _InputRun(recorded, trial, comparison, first, keep_going=self._keep_going, resumes=first > 1)
        await self._play(run)
        run.waits = base.waits
        if base.stopped and not run.stopped and not base.is_at_end:
            run.waits = False
            run.stopped = f"The history after input {recorded.number} cannot be rebuilt. {base.stopped}"
        return run


class _InputRun:
    """Replays one input in a session, and compares it with its recording.

    Args:
        recorded: The recorded input.
        session: The session that runs it.
        comparison: Compares the steps; None to compare nothing.
        first_step: The first step to compare.
        keep_going: Whether to continue after a difference.
        resumes: Whether the session has the steps before `first_step` already, and is resumed.
    """

    def __init__(
        self,
        recorded: RecordedInput,
        session: Session,
        comparison: InputComparison | None,
        first_step: int,
        *,
        keep_going: bool,
        resumes: bool = False,
    ) -> None:
        self.recorded, self._session, self._comparison = recorded, session, comparison
        self._first_step = first_step if resumes else 0
        # Step 0 has what happened before the first plan.
        self._next_step, self._keep_going, self._resumes = first_step if first_step > 1 else 0, keep_going, resumes
        self._events: list[StoredEvent] = []
        self._decisions = [entry for entry in recorded.events if entry["type"] == "approval_decision"]
        self._is_decided = False
        """Whether a difference has ended the replay early."""
        self.differences: list[Difference] = []
        self.steps = 0
        """Number of steps that were compared."""
        self.stopped = ""
        """Why the replay cannot go on after this input; empty if it can."""
        self.waits = False
        """Whether the input waits for a person as it was recorded, so that the next one can be replayed."""
        self.is_at_end = True
        """Whether the replay stopped where the recording of the input ends, or did not stop early."""

    async def run(self, playback: Playback) -> None:
        """Replay the input to its end. Stops at the first difference unless `keep_going`, or where the recording ends.

        An input that was aborted while it waited for a person is aborted there, too. The difference that ended the
        replay is added, unless the steps before it differ and `keep_going` is not set. The outcome is in the
        attributes.
        """
        recorded = self.recorded
        self._events = [dict(entry) for entry in await self._session.events()]
        playback.load(
            _script(recorded, self._first_step),
            self._session,
            step=max(0, self._first_step - 1),
            runs_reading_tools=self._keep_going,
        )
        asked = await playback.play(recorded.contents, self._decision, self._see, resumes=self._resumes)
        fault = playback.fault
        if asked and recorded.status == SessionStatus.ABORTED:
            await self._session.abort()
            self._events = [dict(entry) for entry in await self._session.events()]
        elif asked or fault is not None:
            found = self._explain(playback, asked)
            self.is_at_end = found is None
            now = await self._now()
            # Where the recording ends in the middle of a step, the step is equal so far as both have it.
            is_request = fault is not None and not fault.name
            self._compare(now, None if found is None or is_request else playback.step)
            if found is not None and (self._keep_going or not self.differences):
                wave = unfinished_wave(recorded, now) if fault is not None and fault.name else ()
                self.differences += self._limited(list(wave) or [found])
            return
        if not self._is_decided:
            await self._compare_end()

    def _explain(self, playback: Playback, asked: Sequence[Interrupt]) -> Difference | None:
        """Return the difference that ended the replay; None if the recording ends there.

        Also sets `stopped` and `waits`.

        The recording ends after a failure, at a stop by time, and in a running input. A call without a recorded result
        is a difference in any case. `asked` are the interrupts without a decision.
        """
        recorded, fault = self.recorded, playback.fault
        if fault is not None and fault.name:
            tool = fault.tool
            reads = tool is not None and (tool.metadata or {}).get("effect") == "read"
            what = "reads" if reads else "may write, so it never runs in a replay"
            self.stopped = f"The call {fault.name} has no recorded result; it {what}."
            return self._difference("call", playback.step, fault.name, dict(fault.arguments or {}))
        if fault is not None:
            self.stopped = fault.text
            is_end = recorded.status in (SessionStatus.FAILED, SessionStatus.RUNNING) or _is_late(recorded)
            return None if is_end else self._difference("model", playback.step, "", "a further request")
        self.waits = recorded.status == SessionStatus.RUNNING
        if playback.waits_for:
            self.stopped = f"The recording ends before the result of {playback.waits_for}."
            return None
        self.stopped = "The agent asks a person, and no answer is recorded."
        if self.waits:
            return None
        call = next(iter(asked_calls(asked[0])), None)
        name, value = (call["name"], call["arguments"]) if call is not None else ("", asked[0].value)
        return self._difference("approval", playback.step, name, value)

    def _difference(self, kind: DifferenceKind, step: int, name: str, now: Any) -> Difference:
        """Return the difference for something (`now`) that the replay has in a step, and the recording has not."""
        return Difference(input=self.recorded.number, step=step, kind=kind, name=name, recorded=ABSENT, now=now)

    async def _see(self, entry: StoredEvent) -> bool:
        """Note an event of the replay; compare the steps before a new plan. Returns whether to end the replay."""
        self._events.append(entry)
        if entry["type"] == "plan":
            self._is_decided = self._compare(await self._now(), entry["step"])
        return self._is_decided

    def _decision(self, call: HeldCall) -> dict[str, Any] | None:
        """Return the recorded decision on a call, with `decided_by`; None if there is none.

        It is the first decision on the call's id, else the first on its name. Each is used once.
        """
        same = [entry for entry in self._decisions if entry["name"] == call["name"]]
        found = next((entry for entry in same if entry["id"] == call["id"]), same[0] if same else None)
        if found is None:
            return None
        self._decisions.remove(found)
        return {**decision_in(found), "decided_by": found["decided_by"]}

    async def _now(self) -> RecordedInput:
        """Return the replayed input, as far as it has run."""
        # The messages have the arguments of calls that did not start.
        messages = (await self._session.driver.state()).values.get("messages", ())
        inputs = recording_of(self._session.id, self._events, messages).inputs
        # An input is stored with its first plan.
        return inputs[-1] if len(inputs) >= self.recorded.number else replace(self.recorded, steps=())

    def _compare(self, now: RecordedInput, end: int | None) -> bool:
        """Compare the steps before `end` (all for None) that have not been compared, and add the differences.

        Results that only the recording of a waiting input has are no differences. Returns whether to end the replay,
        i.e. whether there is a difference, unless `keep_going`. Does nothing without a comparison.
        """
        if self._comparison is None or (end is not None and end <= self._next_step):
            return False
        requests = recorded_requests(self._events)
        found = self._comparison.steps(self.recorded, now, requests, self._next_step, end)
        if self.waits:  # a call that waits gets a result from the input that supersedes it
            found = (each for each in found if each.kind != "result" or each.now is not ABSENT)
        self.differences += self._limited(found)
        newest = max((step.number for each in (self.recorded, now) for step in each.steps), default=0)
        self.steps += max(0, (newest + 1 if end is None else end) - max(1, self._next_step))
        self._next_step = newest + 1 if end is None else end
        return bool(self.differences) and not self._keep_going

    def _limited(self, found: Iterable[Difference]) -> list[Difference]:
        """Return the differences to report: all if the replay continues after a difference, else only the first of the
        replay.
        """
        return list(found) if self._keep_going else [*islice(found, 1 - len(self.differences))]

    async def _compare_end(self) -> None:
        """Compare the remaining steps, and then answer, status and stop reason, and add the differences.

        The latter are not compared if a difference of the steps ends the replay. Does nothing without a comparison.
        """
        if self._comparison is None:
            return
        now = await self._now()
        if self._compare(now, None):
            return
        # All of them: the status that differs may be of interest where the answer is not.
        self.differences += self._comparison.end(self.recorded, now)


def _script(recorded: RecordedInput, first_step: int) -> Script:
    """Return the script of an input for a replay, from the step `first_step` on.

    Failures that no model raised are left out, and so is the answer of an input that a deadline ended, because the
    replay takes another time. An aborted input ends with an abort.
    """
    script = script_of(recorded, first_step)
    items = [
        item
        for item in script.items
        if not (isinstance(item, Reply) and item.purpose == "answer" and _is_late(recorded))
        and not (isinstance(item, Failure) and not item.is_of_model)
    ]
    end = [Stop("abort")] if recorded.status == SessionStatus.ABORTED else []
    return Script([*items, *end], script.results)


def _is_late(recorded: RecordedInput) -> bool:
    """Whether a deadline stopped an input, which no replay repeats."""
    return recorded.stop_reason == "deadline"
