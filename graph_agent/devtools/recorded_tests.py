"""Records the sessions of a test in files, and replays them without a model and without running a tool."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from unittest.mock import patch

from langchain_core.messages import AnyMessage, ToolMessage, message_to_dict, messages_from_dict
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.pregel import Pregel

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.errors import ConfigError, InputError
from graph_agent.core.state.model_requests import masked
from graph_agent.devtools.input_differences import Difference, InputComparison
from graph_agent.devtools.json_values import shown_values, value_differences
from graph_agent.devtools.playback import Playback
from graph_agent.devtools.recording import Recording, recording_of
from graph_agent.devtools.script import Reply, Script, script_of
from graph_agent.devtools.stand_ins import rebuild
from graph_agent.models.scripted import MOCK_VARIABLE
from graph_agent.session.built_agent import builder_of
from graph_agent.session.session import Session

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

Agent: TypeAlias = "CompiledStateGraph[Any, Any, Any, Any]"
FORMAT, VERSION = "graph-agent-recording", 1


class RecordedTest:
    """The recorded sessions of one test, each in a file of its own.

    Args:
        file: The file of the session without a name; a named one is in `<stem>.<name>.json` in the same folder.
        records: Whether the agents run and are recorded; otherwise their recordings are replayed.
        command: The command that records the test, for error messages.
    """

    def __init__(self, file: Path, *, records: bool, command: str) -> None:
        self._file, self._records, self._command = file, records, command
        self._open: dict[Path, tuple[Agent, tuple[Recording, Playback] | None]] = {}

    def session(self, agent: Agent | Callable[[], Agent], name: str = "") -> Session:
        """Return a new session of an agent, in memory.

        Args:
            agent: The agent, or a function that makes it; in a replay, a model in that function needs no key. Its
                checkpointer is not used.
            name: Distinguishes the sessions of one test; empty for the first.

        Raises:
            ConfigError: If the graph is not an agent of this package, or the test has a session with this name.
            InputError: If it is replayed and there is no recording, or one that is no JSON or of another version.
        """
        file = self._file.with_name(f"{self._file.stem}.{name}.json") if name else self._file
        if file in self._open:
            raise ConfigError(f"The test has a session {name!r} already; name another one: recorded(agent, 'second').")
        tape, graph = None, self._built(agent)
        if self._records:
            if (builder := builder_of(graph)) is None:
                raise ConfigError(f"Only an agent of create_graph_agent() can be recorded, not {graph!r}.")
            # Middleware around calls runs again in a replay, and asks its own questions.
            saver = _QuestionSaver() if builder.deps.wrap_tool_call is None else InMemorySaver()
            # With a saver of its own, so that a test leaves the agent's database alone.
            opened: Agent = builder.compile(checkpointer=saver, store=graph.store, cache=graph.cache, name=graph.name)
        else:
            recording = self._read(file)
            tape = recording, Playback(_script(recording))
            opened = rebuild(graph, playback=tape[1], real={}, checkpointer=InMemorySaver())
        self._open[file] = opened, tape
        return Session(opened, file.stem)

    def _built(self, given: Any) -> Agent:
        """Return the agent: `given` itself, or what it returns if it is a function that makes the agent.

        In a replay, the function runs with a scripted model in place of every model, so that it needs no provider's
        key.
        """
        if isinstance(given, Pregel):
            return cast("Agent", given)
        # Without a provider's key, only a stand-in for the model can be built.
        with nullcontext() if self._records else patch.dict(os.environ, {MOCK_VARIABLE: '["Not used."]'}):
            return cast("Agent", given())

    def close(self, *, passed: bool) -> None:
        """End the test: store its recorded sessions if it `passed`; compare the replayed ones with their recordings.

        A recording is not changed by a failed test. Replays are compared in either case. After a session that differs,
        the test's further sessions are not compared.

        Raises:
            AssertionError: A replay differs from its recording; the message has the first difference and the command
                that records the test again.
        """
        for file, (graph, tape) in self._open.items():
            found = graph.get_state({"configurable": {"thread_id": file.stem}}).values
            # The recording of a failed test would be what later runs are compared with.
            if tape is None and passed:
                saver = graph.checkpointer
                _write(file, found, saver.of_calls() if isinstance(saver, _QuestionSaver) else {})
            elif tape is not None:
                recording, playback = tape
                faults = [] if playback.fault is None else [playback.fault.text]
                difference = next(map(str, (*faults, *_differences(recording, found))), "")
                if not difference:
                    continue
                raise AssertionError(
                    f"The session differs from {file}:\n{difference}\n"
                    f"If the change is meant, record the session again: {self._command}"
                )

    def _read(self, file: Path) -> Recording:
        """Read a recording; raise `InputError` if it does not exist, is no JSON, or has another version."""
        if not file.exists():
            raise InputError(f"There is no recording {file}; record it: {self._command}")
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:  # e.g. with the marks of a merge conflict
            raise InputError(f"{file} is no JSON: {error}; correct it, or record it again: {self._command}") from None
        if not isinstance(stored, dict) or (stored.get("format"), stored.get("version")) != (FORMAT, VERSION):
            raise InputError(f"{file} is no recording of version {VERSION}; record it again: {self._command}")
        messages = cast("list[AnyMessage]", messages_from_dict(stored["messages"]))
        return recording_of(file.stem, stored["events"], messages, questions=stored.get("questions"))


def _write(file: Path, values: Mapping[str, Any], questions: Mapping[str, list[list[Any]]]) -> None:
    """Write a session to a file as JSON, without secrets; `values` is its state, `questions` are those of its calls."""
    stored = {
        "format": FORMAT,
        "version": VERSION,
        "events": list(values.get("events", ())),
        "messages": [message_to_dict(message) for message in values.get("messages", ())],
        "questions": questions,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    # Without secrets, because the file becomes a part of a repository.
    text = json.dumps(masked(to_json_safe(stored)), ensure_ascii=False, indent=1)
    file.write_text(f"{text}\n", encoding="utf-8")


class _QuestionSaver(InMemorySaver):
    """A saver in memory that also keeps the questions that calls asked a person, which no event holds.

    Each call is a task of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[str, list[Any]] = defaultdict(list)
        """Task id → its questions, in order."""
        self._tasks: dict[str, list[str]] = defaultdict(list)
        """Call id → the tasks of the finished calls of that id, in order."""

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task, and note the questions that it asks and the calls that it finishes.

        Writes of delegates are stored only.
        """
        super().put_writes(config, writes, task_id, task_path)
        if config["configurable"].get("checkpoint_ns"):
            return  # of a delegate
        asked = self._asked[task_id]
        for channel, value in writes:
            if channel == INTERRUPT:
                # A task that waits on, while another is answered, repeats its question.
                asked += [each.value for each in value if each.value not in asked[-1:]]
            elif channel == "messages":
                for each in value:
                    if isinstance(each, ToolMessage):
                        self._tasks[each.tool_call_id].append(task_id)

    def of_calls(self) -> dict[str, list[list[Any]]]:
        """Return call id → the questions of each finished call with this id, in order; several calls may have one
        id.
        """
        return {id_: [self._asked[task] for task in tasks] for id_, tasks in self._tasks.items()}


def _script(recording: Recording) -> Script:
    """Return the script of all inputs of a recording, with its replies and results.

    Steering, stops and failures are left out, and so are decisions, as the test itself makes them.
    """
    scripts = [script_of(each) for each in recording.inputs]
    return Script(
        [item for script in scripts for item in script.items if isinstance(item, Reply)],
        [replace(each, stops=None) for script in scripts for each in script.results],
    )


def _differences(recording: Recording, values: Mapping[str, Any]) -> Iterator[Difference | str]:
    """Yield the differences between a recording and the state of the replayed session, input by input.

    `values` are the state's channels. A difference of the inputs themselves, or of their number, is a sentence; others
    are `Difference` objects. Requests to the model are not compared.
    """
    events = masked(to_json_safe(list(values.get("events", ()))))
    now, comparison = (
        recording_of(recording.session_id, events, values.get("messages", ())),
        InputComparison(requests={}),
    )
    for recorded, other in zip(recording.inputs, now.inputs, strict=False):
        for found in value_differences(list(recorded.contents), list(other.contents)):
            one, new = shown_values(found.recorded, found.now)
            yield f"input {recorded.number} {found.path}: recorded {one}, now {new}"
        yield from comparison.steps(recorded, other, {}, 0, None)
        yield from comparison.end(recorded, other)
    if (count := len(now.inputs)) != len(recording.inputs):
        yield f"The recording has {len(recording.inputs)} inputs, and the session {count}."
