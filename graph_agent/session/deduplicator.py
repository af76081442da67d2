"""Decides whether an input with an id, or an answer with one, is run, resumed, or has its result already.

An input is one message to a session (a LangGraph thread); its sender may give it an id, so that a repeated request runs
it only once. Its mark is that id with a digest of the content (`InputId`). An answer is what resumes an interrupt
(`Command(resume=…)`). The checkpoints of an input are found by its id. An answer continues a checkpoint of another
input, so a record among the writes of that checkpoint precedes its run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from langchain_core.messages import convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, PregelTask, StateSnapshot

from graph_agent.base.errors import InputSupersededError
from graph_agent.base.input_ids import (
    ANSWERS,
    INPUT_ID,
    MOST_INPUTS,
    RECENT_INPUTS,
    InputId,
    InputStoredError,
    check_input_id,
    digest_of,
    input_id_in,
)
from graph_agent.core.execution.ledger import wave_recovery
from graph_agent.core.state.own_checkpoint import load, put_writes
from graph_agent.core.state.registry import is_dispatched, runs_until
from graph_agent.core.state.run import AgentHandle, Run, RunHandle, with_handle

Recent = dict[str, str]
"""Hash of an input's id → id of the newest checkpoint of the input, oldest input first."""


async def find_recent(
    saver: BaseCheckpointSaver[Any], newest: CheckpointTuple, input_id: str
) -> CheckpointTuple | None:
    """Return the newest checkpoint of an earlier input, found by the list of recent inputs in the newest checkpoint.

    If the newest checkpoint has no such list, all checkpoints of the session are read. For checkpointers without an
    index of inputs. None if the input is not among the recent ones, or its checkpoint is not stored any more.

    Args:
        saver: The checkpointer.
        newest: The session's newest checkpoint.
        input_id: Id of the input.
    """
    recent = await _stored(saver, newest)
    if recent is None:
        recent = await _scanned(saver, newest)
    if (found := recent.get(_key(input_id))) is None:
        return None
    return await load(saver, _at(newest, found)) or await load(saver, _at(newest, found, ANSWERS))


async def find_checkpoint(
    saver: BaseCheckpointSaver[Any], newest: CheckpointTuple, input_id: str
) -> CheckpointTuple | None:
    """Return the newest checkpoint of an input: `newest` itself if it belongs to the input; None if there is none.

    Otherwise it is found by the checkpointer's index of inputs, or by `find_recent` if the checkpointer has none.

    Args:
        saver: The checkpointer.
        newest: The session's newest checkpoint.
        input_id: Id of the input.
    """
    stored = input_id_in(newest.metadata)
    if stored is not None and stored.id == input_id:
        return newest
    if (find := index_of(saver)) is not None:
        return await find(str(newest.config["configurable"]["thread_id"]), input_id)
    return await find_recent(saver, newest, input_id)


async def inputs_before(
    saver: BaseCheckpointSaver[Any], newest: CheckpointTuple | None, mark: InputId | None
) -> Mapping[str, str] | str | None:
    """Return what the checkpoints of a run store about the session's earlier inputs, under `RECENT_INPUTS`.

    It is a mapping of at most `MOST_INPUTS` inputs, hash of an input id → id of its last checkpoint, oldest first. If
    the newest checkpoint belongs to the same input or to none with an id, it is the id of the checkpoint that stores
    the mapping. None, to store nothing, if this input has no id and the newest checkpoint stores nothing.

    Args:
        saver: The checkpointer.
        newest: The session's newest checkpoint; None for a new session.
        mark: The mark of the run's input; None for an input without an id.
    """
    if newest is None:
        return {} if mark is not None else None
    before, stored = input_id_in(newest.metadata), newest.metadata.get(RECENT_INPUTS)
    if stored is None and mark is None:
        return None  # such a session is searched as a whole when it gets an input with an id
    if stored is not None and (before is None or (mark is not None and before.id == mark.id)):
        return stored if isinstance(stored, str) else str(newest.checkpoint["id"])
    recent = await _stored(saver, newest)
    if recent is None:
        recent = await _scanned(saver, newest)
    if before is not None:
        recent.pop(_key(before.id), None)  # the newest is last
        recent[_key(before.id)] = newest.checkpoint["id"]
    return dict([*recent.items()][-MOST_INPUTS:])


async def _stored(saver: BaseCheckpointSaver[Any], newest: CheckpointTuple) -> Recent | None:
    """Return the recent inputs that are stored for the newest checkpoint, without the input that it belongs to.

    If the checkpoint has the id of another one, they are read there. None if none are stored.
    """
    stored = newest.metadata.get(RECENT_INPUTS)
    if isinstance(stored, str):
        first = await load(saver, _at(newest, stored))
        stored = first.metadata.get(RECENT_INPUTS) if first is not None else None
    return dict(stored) if isinstance(stored, Mapping) else None


async def _scanned(saver: BaseCheckpointSaver[Any], newest: CheckpointTuple) -> Recent:
    """Return the recent inputs of the session, at most `MOST_INPUTS`, from a scan of all its checkpoints.

    The result maps the hash of an input id to the newest checkpoint of the input, oldest first. Inputs without an id
    are left out.
    """
    found: Recent = {}

    def add(each: CheckpointTuple) -> None:
        """Record the input of a checkpoint, if the input has an id."""
        if (mark := input_id_in(each.metadata)) is not None:
            found[_key(mark.id)] = max(found.get(_key(mark.id), ""), each.checkpoint["id"])

    for namespace in ("", ANSWERS):
        async for each in saver.alist(_at(newest, None, namespace)):
            add(each)
    return dict(sorted(found.items(), key=lambda item: item[1])[-MOST_INPUTS:])


def _key(input_id: str) -> str:
    """Return the hash of an input's id, 16 hexadecimal digits."""
    return hashlib.sha256(input_id.encode()).hexdigest()[:16]


def _at(newest: CheckpointTuple, checkpoint_id: str | None, namespace: str = "") -> RunnableConfig:
    """Return the config of a checkpoint in the thread of `newest`; of the whole namespace if the id is None."""
    at = newest.config["configurable"]
    named = {"checkpoint_id": checkpoint_id} if checkpoint_id is not None else {}
    return {"configurable": {"thread_id": at["thread_id"], "checkpoint_ns": namespace, **named}}


_LISTS = ("messages", "events")
"""Channels of which a pruned checkpoint has a full copy."""


def pruned_state(answer: CheckpointTuple) -> StateSnapshot:
    """Return the state at the end of an input whose checkpoints were pruned.

    `answer` is what remains of it in the namespace `ANSWERS`. The state has only the messages and events of that input,
    and no tasks.
    """
    at, stored = answer.config["configurable"], answer.checkpoint["channel_values"]
    values = {name: getattr(value, "value", value) if name in _LISTS else value for name, value in stored.items()}
    config: RunnableConfig = {"configurable": {**at, "checkpoint_ns": ""}}
    return StateSnapshot(values, (), config, answer.metadata, answer.checkpoint["ts"], None, (), ())


def stored_chunks(state: StateSnapshot, outputs: str | Sequence[str], options: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the chunks with which a stream of the graph would end in a stored state: its values and its open
    interrupts.

    Args:
        state: The stored state.
        outputs: Names of the graph's output keys, unless `options` has `output_keys`.
        options: The options `stream_mode`, `output_keys`, `version` and `subgraphs` of `stream`, which determine the
            form of the chunks. Only the modes `values` and, with open interrupts, `updates` yield a chunk; in `v2`, a
            dict with `type`, `ns` and `data`, and for `values` with `interrupts`.
    """
    modes = options.get("stream_mode") or "values"
    is_list = not isinstance(modes, str)
    keys = options.get("output_keys") or outputs
    interrupts = tuple(asked for task in state.tasks if task.result is None for asked in task.interrupts)
    values = {key: state.values[key] for key in ([keys] if isinstance(keys, str) else keys) if key in state.values}
    asked = {INTERRUPT: interrupts} if interrupts else {}
    for mode in modes if is_list else [modes]:
        if mode not in ("values", "updates") or (mode == "updates" and not asked):
            continue
        payload: dict[str, Any] = {**values, **asked} if mode == "values" else asked
        if options.get("version") == "v2":
            fields = {"data": values, "interrupts": interrupts} if mode == "values" else {"data": payload}
            yield {"type": mode, "ns": (), **fields}
            continue
        parts = [*([()] if options.get("subgraphs") else []), *([mode] if is_list else []), payload]
        yield parts[0] if len(parts) == 1 else tuple(parts)


ANSWER = "graph_agent_answer"
"""Channel of the record of an answer among the writes of a checkpoint. It is not a state field."""

FindInput = Callable[[str, str], Awaitable[CheckpointTuple | None]]
"""Returns the newest checkpoint of an input, for a thread and an input id; None if there is none."""
ReadState = Callable[[RunnableConfig], Awaitable[StateSnapshot]]
"""Reads the state of a checkpoint, e.g. `aget_state` of a compiled graph."""


async def admit_input(
    graph: Pregel[Any, Any, Any, Any],
    saver: BaseCheckpointSaver[Any],
    given: Any,
    configurable: Mapping[str, Any],
    run: Run,
    *,
    resumes: bool,
) -> Any:
    """Return the input with which to run the graph; None to resume. Must be called while the session is locked.

    Also stores the mark of the input, and the inputs before it, in `run`. Input without an id is returned as it is. An
    answer with an id is recorded in the database before it is used. The id in `configurable` is ignored for the input
    None, and in a run within another graph's run.

    Args:
        graph: The compiled graph.
        saver: The checkpointer of the graph.
        given: The input that the program passed: a state update, a `Command`, or None.
        configurable: The complete `configurable` of the run's config.
        resumes: Whether the run continues a checkpoint instead of storing new input.

    Raises:
        InputStoredError: The input has its result already.
        InputConflictError: The id belongs to a different input of the session.
        InputSupersededError: A later input, or a later run of a server, came before this one had its result.
        InputError: The id is invalid.
    """
    input_id = configurable.get(INPUT_ID)
    admission = InputDeduplicator(saver, graph.aget_state, run.identity.session_id)
    is_nested = run.parent is not None and not isinstance(run.parent, RunHandle)
    if is_dispatched(configurable) and not is_nested:
        run.identity.recent_runs = await admission.runs_before(str(configurable["run_id"]))
    if run.identity.mark is None and input_id is not None and given is not None and not is_nested:
        run.identity.mark = InputId(check_input_id(input_id), digest_of(_content(given)))
    if run.identity.mark is not None:
        return await admission.admit(given, run.identity.mark, run)
    if resumes:
        run.identity.mark = await admission.inherited(configurable)
    if index_of(saver) is None:
        run.identity.inputs_before = await inputs_before(saver, await load(saver, admission.thread), run.identity.mark)
    if is_dispatched(configurable) and isinstance(given, Command):
        delivery = InputId(str(configurable["run_id"]), digest_of(given.resume))
        return await admission.admit_delivery(given, delivery, run)
    return given


def _content(given: Any) -> Any:
    """Return the part of a graph's input that identifies it: the answer of a `Command`, or the whole state update.

    Messages in it are converted to LangChain messages, as `Session.run` does.
    """
    if isinstance(given, Command):
        return given.resume
    if not isinstance(given, Mapping) or "messages" not in given:
        return given
    messages = given["messages"]
    return {**given, "messages": convert_to_messages(messages if isinstance(messages, list) else [messages])}


@dataclass(frozen=True, slots=True)
class InputDeduplicator:
    """Decides whether the inputs of one session that have an id must be run, resumed, or have their result already."""

    saver: BaseCheckpointSaver[Any]
    read: ReadState
    """Reads the state of a checkpoint."""
    thread_id: str

    async def admit(self, given: Any, mark: InputId, run: Run) -> Any:
        """Return `given` if it must be run, or None to resume an input that is unfinished.

        Must be called while the session is locked. An input with a new id is run, and so is an answer that corrects one
        that a delegate has refused. A new answer is recorded in the database. Of an answer to several questions, those
        that are already answered are left out.

        Args:
            given: The input: a state update, or a `Command` for an answer.
            mark: The id and digest of the input.
            run: The run, whose fence then expects the newest checkpoint that was read here.

        Raises:
            InputStoredError: The input has its result; the error has the state.
            InputConflictError: The id belongs to a different input of the session, unless that is an answer that a
                delegate has refused.
            InputSupersededError: A later input came before this one had its result.
        """
        newest = await load(self.saver, self.thread)
        run.fence.expect(self.thread_id, newest.checkpoint["id"] if newest is not None else None)
        if index_of(self.saver) is None:
            run.identity.inputs_before = await inputs_before(self.saver, newest, mark)
        if newest is None:
            return given
        known = await self._find(mark, newest)
        if known is not None and isinstance(run.parent, RunHandle) and run.parent.continues_at is not None:
            return None  # the program has chosen the checkpoint, and the input that it belongs to
        if known is not None and not await self._is_corrected(given, mark, known, newest):
            return await self._continued(given, mark, known, newest)
        if (stored := self._record(mark, newest)) is not None:
            return await self._answered(given, stored, newest)
        if isinstance(given, Command):
            await self._note_answer(given, mark, newest, run)
        return given

    async def admit_delivery(self, given: Command[Any], delivery: InputId, run: Run) -> Any:
        """Return the graph's input for an answer that a server dispatches; None to resume a run that was delivered
        before.

        A new answer is recorded in the database, and returned. A repeated one that the run has not used yet is
        returned, too.

        Args:
            given: The answer. If it has no `resume`, or the session does not exist, it is returned unchanged.
            delivery: Id of the server's run, with the digest of the answer.
            run: The run that will use the answer.

        Raises:
            InputStoredError: The answer was used already, and the run waits for another one.
            InputConflictError: The server's run has a different answer.
        """
        newest = await load(self.saver, self.thread)
        if newest is None or given.resume is None:
            return given
        # LangGraph itself resumes an input that is delivered again, but would use an answer for the next question.
        if newest.metadata.get("run_id") != delivery.id:
            if (stored := self._record(delivery, newest)) is not None:
                return await self._answered(given, stored, newest)
            await self._note_answer(given, delivery, newest, run)
            return given
        state = await self.read(newest.config)
        if any(task.interrupts and task.result is None for task in state.tasks):
            raise InputStoredError(state)
        return None

    async def seen(self, mark: InputId) -> Literal["stored", "recorded"] | None:
        """Return `stored` if the session has checkpoints of an input, `recorded` if it has only the record of an
        answer, and None if the id is new.

        Raises `InputConflictError` if the record is of a different answer.
        """
        newest = await load(self.saver, self.thread)
        if newest is None:
            return None
        if await self._find(mark, newest) is not None:
            return "stored"
        return "recorded" if self._record(mark, newest) is not None else None

    async def check(self, given: Any, mark: InputId) -> None:
        """Check, before a run begins and without a lock, that the session can receive an input. Nothing is stored.

        `given` is the graph's input, and `mark` has its id and digest. An input that has its result passes. Raises
        `InputConflictError` if the id belongs to a different input, and `InputSupersededError` if a later input came
        before this one had its result.
        """
        newest = await load(self.saver, self.thread)
        if newest is None:
            return
        known = await self._find(mark, newest)
        if known is None:
            self._record(mark, newest)
            return
        with suppress(InputStoredError):
            await self._continued(given, mark, known, newest)

    async def runs_before(self, run_id: str) -> tuple[str, ...]:
        """Return the ids of the runs that a server dispatched to the session before the run `run_id`, oldest first.

        Raises `InputSupersededError` if the run was delivered before, and a later run has followed it.
        """
        newest = await load(self.saver, self.thread)
        recent = runs_until(newest.metadata) if newest is not None else ()
        if run_id in recent[:-1]:
            raise InputSupersededError(
                f"The run {run_id!r} of session {self.thread_id!r} was delivered before, and later runs have followed "
                "it. Its input is not repeated; read the session's history, and send what is still needed again."
            )
        return tuple(each for each in recent if each != run_id)

    async def inherited(self, configurable: Mapping[str, Any]) -> InputId | None:
        """Return the mark (id and digest) of the input that a run without new input continues.

        The run continues the `checkpoint_id` in `configurable` or, without one, the newest checkpoint. Returns None if
        that input has no id, or nothing is stored.
        """
        at = {name: configurable[name] for name in ("checkpoint_id",) if configurable.get(name)}
        continued = await load(self.saver, {"configurable": {**self.thread["configurable"], **at}})
        return input_id_in(continued.metadata) if continued is not None else None

    async def _is_corrected(self, given: Any, mark: InputId, known: CheckpointTuple, newest: CheckpointTuple) -> bool:
        """Return whether an answer corrects an earlier one.

        It does if it has the id of the earlier answer and another content, and a delegate has refused the earlier
        answer to each question that it addresses. False for an input that is no answer. `given` is the graph's input,
        `known` the newest checkpoint of the input with the id, and `newest` that of the session.
        """
        stored, is_newest = input_id_in(known.metadata), known.checkpoint["id"] == newest.checkpoint["id"]
        if not isinstance(given, Command) or not is_newest or stored is None or stored.digest == mark.digest:
            return False
        state = await self.read(newest.config)
        waiting = (state.values.get("remote") or {}).get("open", {})
        asked = [interrupt.value for _, interrupt in _addressed(given, state)]
        return bool(asked) and all(
            isinstance(value, Mapping) and (waiting.get(value.get("delegation")) or {}).get("refused")
            for value in asked
        )

    async def _continued(self, given: Any, mark: InputId, known: CheckpointTuple, newest: CheckpointTuple) -> Any:
        """Return what the graph must run for an input with an id that the session has: None to resume the input, or
        `given` to run it, if LangGraph dropped it for a later input before anything read it. `known` is the newest
        checkpoint of the input.

        The content is compared first: `InputConflictError` if it differs. Raises `InputStoredError` if the input has a
        result, waits for an answer, or had its question answered under another id (without the results of the asking
        tasks), and `InputSupersededError` if a later input ended it.
        """
        mark.names(input_id_in(known.metadata), self.thread_id)
        if known.config["configurable"].get("checkpoint_ns") == ANSWERS:
            raise InputStoredError(pruned_state(known))
        state = await self.read(known.config)
        if not state.tasks:
            raise InputStoredError(state)
        if known.checkpoint["id"] == newest.checkpoint["id"]:
            if any(task.interrupts and task.result is None for task in state.tasks):
                raise InputStoredError(state)
            return None
        asked = [task for task in state.tasks if task.interrupts]
        # A delegate that had received the answer before a crash ends without a second record of it.
        has_ended = bool(asked) and all(task.result is not None for task in asked)
        if has_ended or wave_recovery(known).answer_counts:
            # Its question was answered under another id, whose result is not this one's.
            tasks = tuple(task._replace(result=None) if task.interrupts else task for task in state.tasks)
            raise InputStoredError(state._replace(tasks=tasks))
        if known.metadata.get("source") == "input":
            return given  # LangGraph has dropped it for a later input, before anything read it
        raise InputSupersededError(
            f"The input {mark.id!r} of session {self.thread_id!r} has no answer: a later input came before it was "
            "finished, and its open calls were settled then. Read the session's events, and send what is still "
            "needed under a new id."
        )

    async def _answered(self, given: Any, stored: Mapping[str, Any], newest: CheckpointTuple) -> Any:
        """Return the graph's input for an answer that the newest checkpoint records in `stored`.

        None resumes the run. A `Command` contains only the answers that the run has not used yet. Raises
        `InputStoredError` if another question is open.
        """
        state, counts = await self.read(newest.config), wave_recovery(newest).answer_counts
        waiting = {asked.id: task.id for task in state.tasks if task.result is None for asked in task.interrupts}
        before = stored["received"]
        lacking = {id_ for id_, task in waiting.items() if id_ in before and counts.get(task, 0) <= before[id_]}
        if lacking:
            if not isinstance(given, Command):
                raise InputStoredError(state)  # the question is still open
            answers: Any = given.resume
            if isinstance(answers, dict) and not lacking.isdisjoint(answers):
                answers = {id_: answer for id_, answer in answers.items() if id_ in lacking}
            return replace(given, resume=answers)
        if waiting.keys() - before.keys():
            raise InputStoredError(state)  # the session waits for the answers to its other questions
        return None

    async def _note_answer(self, given: Command[Any], mark: InputId, newest: CheckpointTuple, run: Run) -> None:
        """Record an answer at the newest checkpoint, before it is used.

        The record has the id and digest of the answer (`mark`), and how many answers each question that it addresses
        has received before. By these numbers, `_answered` knows whether a question has used the answer. `given` is the
        `Command` with the answer, `run` the run that stores the record.
        """
        state, counts = await self.read(newest.config), wave_recovery(newest).answer_counts
        received = {interrupt.id: counts.get(task.id, 0) for task, interrupt in _addressed(given, state)}
        at: RunnableConfig = {"configurable": with_handle(newest.config["configurable"], AgentHandle(run))}
        record = {"id": mark.id, "digest": mark.digest, "received": received}
        await put_writes(self.saver, at, [(ANSWER, record)], f"{ANSWER}:{mark.id}")

    def _record(self, mark: InputId, newest: CheckpointTuple) -> Mapping[str, Any] | None:
        """Return the record of the answer with this id at the newest checkpoint; None if there is none.

        Raises `InputConflictError` if the record is of a different answer.
        """
        for _, channel, value in newest.pending_writes or ():
            if channel == ANSWER and mark.names(InputId(value["id"], value["digest"]), self.thread_id):
                return dict(value)
        return None

    @property
    def thread(self) -> RunnableConfig:
        """The config that addresses the session's newest checkpoint."""
        return {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": ""}}

    async def _find(self, mark: InputId, newest: CheckpointTuple) -> CheckpointTuple | None:
        """Return the newest checkpoint of an input by its id; None if there is none."""
        return await find_checkpoint(self.saver, newest, mark.id)


def _addressed(given: Command[Any], state: StateSnapshot) -> list[tuple[PregelTask, Interrupt]]:
    """Return the open interrupts that an answer is for, each with its task.

    If the answer is a mapping, these are the interrupts whose ids are keys of it; otherwise all open ones.
    """
    return [
        (task, interrupt)
        for task in state.tasks
        if task.result is None
        for interrupt in task.interrupts
        if not isinstance(given.resume, dict) or interrupt.id in given.resume
    ]


def index_of(saver: BaseCheckpointSaver[Any]) -> FindInput | None:
    """Return the function by which a checkpointer finds the newest checkpoint of an input; None if it has no index of
    inputs.
    """
    return getattr(saver, "find_input", None)
