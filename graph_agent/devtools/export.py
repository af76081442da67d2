"""Writes a recorded session as a test for pytest, or as a case of an evaluation.

An input is one message of a user with everything up to its answer.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graph_agent.base._internal.text import text_of
from graph_agent.base.history.call_events import SETTLED
from graph_agent.base.history.events import SUCCESSES, StoredEvent, is_own
from graph_agent.base.history.plan_parts import ModelCallRecord
from graph_agent.base.types import NO_USAGE, SessionStatus, Usage
from graph_agent.base.usage import add_usage
from graph_agent.core.extensions.output import cut_short
from graph_agent.devtools.export_script import (
    LINE_WIDTH,
    Code,
    Constants,
    ScriptWriter,
    agent_file_options,
    asked_about,
    assignment,
    comparison,
    identifier,
    rendered,
    stub_options,
)
from graph_agent.devtools.recorded_session import RecordedRun, value_of_result
from graph_agent.devtools.recording import (
    RecordedCall,
    RecordedInput,
    RecordedReply,
    RecordedResult,
    Recording,
    as_left,
    decision_in,
    read_recording,
)
from graph_agent.devtools.script import script_of, stop_cause, stopped_requests, was_stopped
from graph_agent.session.built_agent import builder_of
from graph_agent.session.history import shortened_line

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    from graph_agent.session.session import Session

_FRAMEWORK = ("invalid", "skipped", "unknown")
"""Statuses of results whose text the framework writes."""
_INTERRUPTED = (SessionStatus.RUNNING, SessionStatus.ABORTED)
"""Statuses that a run of a case does not reach by itself."""
_UNNAMED = ("user", "on_approval")
"""Values of `decided_by` that name no person."""
_INDENT = 8
"""Columns before the statements of the test."""


def to_test(
    recording: Recording,
    number: int | None = None,
    *,
    graph: CompiledStateGraph[Any, Any, Any, Any] | None = None,
    agent: str | None = None,
) -> str:
    """Return the source of a file for pytest that runs recorded inputs again and compares what they do.

    Args:
        recording: The session as it ran.
        number: The input, from 1, or -1 for the newest; None for all. If the limit of turns ended this input, the
            inputs before it are included, because the limit counts their turns, too.
        graph: The agent, from which stub tools take their schemas and the configuration; None to derive both from the
            inputs.
        agent: Path of the agent file whose agent the test builds, absolute or relative to the test; None for stub
            tools.

    Raises:
        InputError: If there is no such input.
    """
    inputs = recording.inputs if number is None else (recording.input(number),)
    if number is not None and inputs[0].status == SessionStatus.TURN_LIMIT:
        # The limit counts the model calls of the whole session.
        inputs = recording.inputs[: inputs[0].number]
    # The next input has given open calls of an earlier one their results.
    newest = len(recording.inputs)
    inputs = tuple(as_left(each) if each.number < newest else each for each in inputs)
    return _TestFile(recording, inputs, agent is not None).text(graph, agent)


async def export_test(session: Session[Any, Any], number: int | None = None, *, agent: str | None = None) -> str:
    """Return a file for pytest that runs a session again, with its recorded replies and results.

    Args:
        session: The session, recorded in its checkpointer. Without `agent`, the test has stub tools with the names and
            schemas of its agent's.
        number: The input, from 1, or -1 for the newest; None for all.
        agent: Path of the agent file whose agent the test builds, absolute or relative to the test.

    Raises:
        InputError: If there is no such session or input.
    """
    builder = builder_of(session.graph)
    writes = builder.writes if builder is not None else None
    recording = await read_recording(session.saver, session.id, writes=writes)
    return to_test(recording, number, graph=session.graph, agent=agent)


def to_case(recording: Recording, number: int | None = None, *, agent: str | None = None) -> str:
    """Return a file with one case of an evaluation, as YAML, which expects the recorded calls, answer and status.

    Args:
        recording: The session as it ran.
        number: The input, from 1, or -1 for the newest; None for all, as turns of one case.
        agent: Path of the agent file, which the file then names; None for no path.

    Raises:
        InputError: If there is no such input.
    """
    import yaml

    inputs = recording.inputs if number is None else (recording.input(number),)
    case = case_content(recording.session_id, recording.session_id, inputs)
    file = {**({} if agent is None else {"agent": agent}), "cases": [case]}
    return yaml.safe_dump(file, sort_keys=False, allow_unicode=True, width=100)


def case_content(name: str, session: str, inputs: Sequence[RecordedInput]) -> dict[str, Any]:
    """Return the content of a case as a dict in the form of the file.

    The inputs are its turns, and their calls are expected, one list for each parallel batch of several. The last answer
    is expected, if there is one, and the last status. Statuses of calls and inputs that a new run cannot repeat are not
    expected; `metadata.not_expected` names them. The first decision on each tool's calls is its `approvals`. `called`
    has the names of all calls, planned and edited.

    Args:
        name: Name of the case.
        session: Id of the session.
        inputs: The recorded inputs, at least one.
    """
    contents, last = [each.content for each in inputs], inputs[-1]
    waves = [[_expected(call) for call in step.calls] for each in inputs for step in each.steps if step.calls]
    expect: dict[str, Any] = {"calls": [wave[0] if len(wave) == 1 else wave for wave in waves]}
    if last.answer:
        expect["answer"] = {"equals": last.answer}
    decisions = _decisions_by_tool(inputs)
    # A person may have edited the name of a call.
    called = sorted({call.name for each in inputs for _, call in each.calls} | decisions.keys())
    turns = contents[0] if len(contents) == 1 else contents
    case: dict[str, Any] = {"name": name, "session": session, "called": called, "input": turns}
    if decisions:
        case["approvals"] = decisions
    left_out = [
        f"{call.name}: {call.result.status}"
        for each in inputs
        for _, call in each.calls
        if call.result is not None and not _can_repeat(call.result)
    ]
    if last.status in _INTERRUPTED:
        left_out.append(f"status: {last.status.value}")
    else:
        expect["status"] = last.status.value
    if left_out:
        case["metadata"] = {"not_expected": left_out}
    return {**case, "expect": expect}


def _can_repeat(result: RecordedResult) -> bool:
    """Whether a new run can give a call this result.

    False for a result whose outcome is unknown after a crash, and for the text of an abort or of a server that was
    lost.
    """
    texts = [cut_short("abort", started=False, writes=True).content, *SETTLED]
    return result.status != "unknown" and not (result.status not in SUCCESSES and result.content in texts)


def _expected(call: RecordedCall) -> dict[str, Any]:
    """Return a call as a case expects it, with its status if it failed and a new run can fail so, too."""
    result = call.result
    status = None if result is None or result.status in SUCCESSES or not _can_repeat(result) else result.status
    return {"name": call.name, "arguments": dict(call.arguments), **({} if status is None else {"status": status})}


def _decisions_by_tool(inputs: Sequence[RecordedInput]) -> dict[str, Any]:
    """Return tool → the first decision on its calls, as a case has it.

    A decision is `{"approve": True}`, `{"edit": ARGUMENTS}`, `{"reject": REASON}` or `{"respond": TEXT}`, with an empty
    text if there is none.
    """
    found: dict[str, Any] = {}
    for entry in (entry for each in inputs for entry in each.events if entry["type"] == "approval_decision"):
        values = {"approve": True, "edit": entry.get("arguments"), **dict.fromkeys(("reject", "respond"), "")}
        found.setdefault(entry["name"], {entry["decision"]: entry.get("message") or values[entry["decision"]]})
    return found


def _decisions(recorded: RecordedInput) -> dict[str, list[dict[str, Any]]]:
    """Return call id → the decisions on it, in order; decisions on calls of delegates are left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in recorded.events:
        if entry["type"] == "approval_decision" and "delegation" not in entry:
            found.setdefault(entry["id"], []).append(_decision(entry))
    return found


def _decision(entry: StoredEvent) -> dict[str, Any]:
    """Return the decision of an event, with `decided_by` if a person with a name took it."""
    decision = decision_in(entry)
    if entry["decided_by"] not in _UNNAMED and not entry["decided_by"].startswith("always ("):
        decision["decided_by"] = entry["decided_by"]
    return decision


class _TestFile:
    """Writes the test of some inputs of a recording, once; `has_agent` is whether it builds the agent of a file."""

    def __init__(self, recording: Recording, inputs: Sequence[RecordedInput], has_agent: bool) -> None:
        self._recording, self._inputs, self._has_agent = recording, inputs, has_agent
        self._several = len(inputs) > 1
        self._constants = Constants()
        self._names = {"RecordedSession"}
        self._decisions: set[str] = set()
        self._uses_any = False

    def text(self, graph: CompiledStateGraph[Any, Any, Any, Any] | None, agent: str | None) -> str:
        """Return the source of the file, formatted.

        `graph` is the agent of the session, from which stub tools take their schemas; None to derive the schemas from
        the calls. `agent` is the path of the agent file that the test builds, as it is written in the test; None for
        stub tools.
        """
        writer = ScriptWriter(self._constants, self._has_agent, self._several, self._names)
        scripts = [(each, script_of(each)) for each in self._inputs]
        script = [code for each, one in scripts for code in writer.script(each, one.items)]
        results = [code for each, one in scripts for code in writer.results(each, one.results)]
        turns = [line for each in self._inputs for line in ["", *self._turn(each)]][1:]
        options = stub_options(self._inputs, graph)
        if agent is not None:
            options = agent_file_options(self._inputs, agent, lost_replies=self._has_lost_replies())
        given = [Code("REPLIES"), *([Code("RESULTS")] if results else [])]
        opened = rendered(Code.call("RecordedSession", given, options), 4, prefix="with ", suffix=" as session:")
        name = identifier(self._recording.session_id)
        parts = [
            *self._docstring(),
            "",
            *self._imports(),
            "",
            *self._constants.lines(),
            *assignment("REPLIES", script),
            *(["", *assignment("RESULTS", results)] if results else []),
            "",
            "",
            f"def test_{name}{'_' if keyword.iskeyword(name) else ''}() -> None:",
            f"    {opened}",
            *(f"{' ' * _INDENT}{line}" if line else "" for line in turns),
        ]
        return "\n".join(parts) + "\n"

    def _has_lost_replies(self) -> bool:
        """Whether a hook or a repair replaced a reply, so that the session does not have it."""
        replies = [reply for each in self._inputs for step in each.steps for reply in step.replies]
        return any(not reply.is_stored and not reply.error for reply in replies)

    def _docstring(self) -> list[str]:
        """Return the lines of the module's docstring, with what the session does not have stored."""
        first, total = self._inputs[0], len(self._recording.inputs)
        which = f"input {first.number} of " if not self._several and total > 1 else ""
        lines = [
            f"Replays {which}session {self._recording.session_id!r}: {shortened_line(text_of(first.content), 50)}",
            "",
            "The model's replies and the results of calls are those of the session. Nothing is",
            "contacted, and no tool runs. Edit any of it.",
        ]
        numbers = [f"Input {each.number}:" for each in self._inputs]
        if gaps := [gap for gap in self._recording.gaps if gap.startswith((*numbers, "The history"))]:
            lines += ["", "The session does not have everything:", *(f"- {gap}" for gap in gaps)]
        # A text of the user must not end the docstring.
        lines = ["".join(char if char.isprintable() else " " for char in line) for line in lines]
        lines = [line.replace("\\", "/").replace('"', "'") for line in lines]
        return [f'"""{lines[0]}', *lines[1:], '"""']

    def _imports(self) -> list[str]:
        """Return the lines of the imports, of what the other parts use."""
        standard = ["from pathlib import Path"] if self._has_agent else []
        standard += ["from unittest.mock import ANY"] if self._uses_any else []
        own = [_import("graph_agent.approvals", self._decisions)] if self._decisions else []
        return [*standard, *([""] if standard else []), *own, _import("graph_agent.testing", self._names)]

    def _turn(self, recorded: RecordedInput) -> Iterator[str]:
        """Yield the statements that run one input and compare what it did with the recording.

        An input that was aborted while it waited for a person is followed by `session.abort()`. Compared are calls and
        results, if there are any, answer, status, stop reason (after a limit) and usage; a comment precedes the usage
        if the test makes fewer model calls than the session.
        """
        name = f"INPUT_{recorded.number}" if self._several else "INPUT"
        contents = [self._constants.of(each, name) for each in recorded.contents]
        decisions = self._approvals(recorded)
        options = {"approvals": decisions} if decisions else {}
        yield from _statement("run = ", Code.call("session.run", contents, options))
        if recorded.status == SessionStatus.ABORTED and _waited(recorded):
            yield "run = session.abort()"
        if calls := RecordedRun(recorded).calls:
            yield from self._assert("calls", dict(calls))
        if results := self._results(recorded):
            yield from self._assert("results", results)
        yield from self._assert("answer", self._answer(recorded))
        yield from self._assert("status", recorded.status.value)
        if recorded.status in (SessionStatus.ROUND_LIMIT, SessionStatus.TURN_LIMIT):
            yield from self._assert("stop_reason", recorded.stop_reason)
        used = self._usage(recorded)
        if used["model_calls"] != recorded.usage["model_calls"]:
            yield f"# The session made {recorded.usage['model_calls']} model calls; not all of them are repeated."
        yield from self._assert("usage", used)

    def _assert(self, what: str, value: Any) -> Iterator[str]:
        """Yield the lines of `assert run.<what> == <value>`.

        A text, or a long value within `value`, that is a constant of the file is written as the constant.
        """
        shown = self._constants.known(value)
        if isinstance(shown, str):
            yield from comparison(f"assert run.{what} == ", shown, _INDENT)
        else:
            yield from _statement(f"assert run.{what} == ", shown)

    def _any(self) -> Code:
        """Return `ANY`, and note that it must be imported."""
        self._uses_any = True
        return Code("ANY")

    def _answer(self, recorded: RecordedInput) -> Any:
        """Return the answer to compare with; `ANY` for one that a test cannot repeat."""
        # The test has neither the text that was streamed before a stop nor the error's own words.
        if recorded.status == SessionStatus.FAILED or any("first_token_s" in each for each in _stopped(recorded)):
            return self._any()
        return self._constants.of(recorded.answer, f"ANSWER_{recorded.number}" if self._several else "ANSWER")

    def _results(self, recorded: RecordedInput) -> dict[int, dict[str, Any]]:
        """Return step → call id → value of the result; `{"error": ANY}` if the framework writes it."""
        found: dict[int, dict[str, Any]] = {}
        for step, each in recorded.calls:
            if each.result is not None:
                # The texts of the framework may change with its version, so a test does not compare them.
                by_framework = each.result.status in _FRAMEWORK or was_stopped(recorded, each)
                value = {"error": self._any()} if by_framework else value_of_result(each)
                found.setdefault(step, {})[each.id] = value
        return found

    def _usage(self, recorded: RecordedInput) -> dict[str, Any]:
        """Return the usage to compare with: of all stored replies except summaries, and of delegates, without cost.

        All counts are `ANY` if a request was stopped.
        """
        total: Usage = NO_USAGE
        for step in recorded.steps:
            for reply in step.replies:
                if reply.is_stored and reply.purpose != "summary":
                    total = add_usage(total, _usage_of(reply))
        for _, each in recorded.calls:
            if each.result is not None and each.result.usage:
                total = add_usage(total, each.result.usage)
        found: dict[str, Any] = {name: count for name, count in total.items() if name != "cost"}
        # The usage of a request that was stopped is an estimate of the request.
        return dict.fromkeys(found, self._any()) if _stopped(recorded) else found

    def _approvals(self, recorded: RecordedInput) -> dict[str, Any]:
        """Return call id → the code of the decision on it, or a list of several.

        With stub tools, a call that the agent's policy let run after a question is approved.
        """
        decisions, asked = _decisions(recorded), asked_about([recorded])
        found: dict[str, Any] = {}
        for _, each in recorded.calls:
            given = decisions.get(each.id, [])
            if not given and not self._has_agent and each.name in asked and each.started:
                given = [{"type": "approve"}]  # approved by a policy that stub tools do not have
            if given:
                codes = [self._decision(one) for one in given]
                found[each.id] = codes[0] if len(codes) == 1 else codes
        return found

    def _decision(self, given: Mapping[str, Any]) -> Code:
        """Return the code of a decision, such as `reject("too expensive")`, and note the name to import.

        `given` is the decision as in an answer.
        """
        action = given.get("edited_action", {})
        self._decisions.add(given["type"])
        arguments = [action["args"]] if action else [given["message"]] if "message" in given else []
        made = Code.call(given["type"], arguments, {"name": action["name"]} if "name" in action else {})
        return Code.merged(made, {"decided_by": given["decided_by"]}) if "decided_by" in given else made


def _statement(prefix: str, value: Any) -> list[str]:
    """Return the lines of a statement: `prefix`, such as `assert run.usage == `, and then the code of a value."""
    return rendered(value, _INDENT, prefix=prefix).split("\n" + " " * _INDENT)


def _import(module: str, names: Iterable[str]) -> str:
    """Return `from <module> import <names>`, names in capitals first; in parentheses, one a line, if it is too long."""
    listed = sorted(names, key=lambda name: (name.islower(), name))
    line = f"from {module} import {', '.join(listed)}"
    if len(line) <= LINE_WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in listed), ")"])


def _usage_of(reply: RecordedReply) -> Usage:
    """Return the usage of a reply; counts that are unknown are 0."""
    counts = reply.usage or {}
    return {
        "input_tokens": counts.get("input_tokens", 0),
        "output_tokens": counts.get("output_tokens", 0),
        "total_tokens": counts.get("total_tokens", 0),
        "model_calls": 1,
    }


def _stopped(recorded: RecordedInput) -> list[ModelCallRecord]:
    """Return the requests that an abort or the deadline stopped."""
    return [each for step in recorded.steps for each in stopped_requests(step)] if stop_cause(recorded) else []


def _waited(recorded: RecordedInput) -> bool:
    """Whether the input waited for a person when it was aborted."""
    asked = [call["id"] for entry in recorded.events if is_own(entry, "approval_request") for call in entry["calls"]]
    decided = {entry["id"] for entry in recorded.events if is_own(entry, "approval_decision")}
    return any(id_ not in decided for id_ in asked)
