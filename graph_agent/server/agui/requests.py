"""Defines the body of a run's request, and maps it to the run of a session: a new input, or answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from ag_ui.core import RunAgentInput
from langgraph.types import Command, StateSnapshot
from pydantic import ConfigDict, SecretStr, TypeAdapter, ValidationError, model_validator

from graph_agent._internal.text import to_json_safe
from graph_agent.errors import InputError
from graph_agent.inputs.deduplicator import InputDeduplicator
from graph_agent.runs.inbox import ControlMessage
from graph_agent.runs.input_ids import InputId, check_input_id, digest_of
from graph_agent.runs.registry import is_idle
from graph_agent.runs.run import RunHandle
from graph_agent.server.admission.gate import Caller
from graph_agent.server.agui.interrupts import ResumeAnswers, answers_of
from graph_agent.server.agui.messages import (
    CallNames,
    conversation_of,
    given_results,
    instructions_of,
    new_inputs,
    result_content,
    user_message,
)
from graph_agent.server.chat import schemas
from graph_agent.server.chat.run_spec import RunSpec, is_client_call, merge_content, steering_notes
from graph_agent.server.host import Host
from graph_agent.server.problems import ProblemError
from graph_agent.session.built_agent import custom_state_of
from graph_agent.session.interrupts import checked_answers
from graph_agent.session.results import open_interrupts
from graph_agent.types import NO_USAGE

_OVERWRITE = "__overwrite__"
"""Key of a value that LangGraph writes past a field's reducer."""
_MEDIA = {"image": "image", "audio": "audio", "video": "video"}


def _modern(data: Any) -> Any:
    """Return a body in which the parts of type `binary`, which clients before 1.0 may send, are media parts."""
    body = schemas.clean_body(data)
    messages = body.get("messages") if isinstance(body, dict) else None
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            message["content"] = [_modern_part(part) for part in content]
    return body


def _modern_part(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "binary":
        return part
    mime_type = str(part.get("mimeType", ""))
    kind = _MEDIA.get(mime_type.partition("/")[0], "document")
    by_url = {"type": "url", "value": part["url"], "mimeType": mime_type} if part.get("url") else None
    return {"type": kind, "source": by_url or {"type": "data", "value": part.get("data"), "mimeType": mime_type}}


class AgentInput(RunAgentInput):
    """The body of a run's request: AG-UI's `RunAgentInput`. Fields that are not declared are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    _clean = model_validator(mode="before")(_modern)


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """The run of a request, and its session before the run."""

    spec: RunSpec
    before: StateSnapshot
    runs: bool = True
    """Whether there is something to run; if not, the request only reads the session."""
    follows: bool = False
    """Whether another request's run is under way, which the request then follows."""
    ignored: tuple[str, ...] = ()


async def resolve(host: Host, caller: Caller, body: AgentInput, credentials: Mapping[str, SecretStr]) -> ResolvedRun:
    """Return the run that a request starts or resumes.

    Its input id is the run id, or that of the answers of a resume, so that a repeated request gets the stored result.

    Raises:
        ProblemError: If the request does not fit the session's state.
    """
    session_id = schemas.checked_session_id(body.thread_id, "threadId")
    mark = _mark(body)
    spec = RunSpec(
        host.kept,
        caller.thread(session_id),
        None,
        _context(host, body, credentials),
        session_id,
        shows_reasoning=True,
        shows_calls=True,
        shows_state=bool(custom_state_of(host.kept).outputs),
        session_label="This thread",
    )
    state = await host.kept.aget_state(spec.config)
    messages, events = state.values.get("messages", []), state.values.get("events", [])
    new = new_inputs(body.messages, [message.id or "" for message in messages])
    interrupts = open_interrupts(state)
    seen = await InputDeduplicator(host.saver, host.kept.aget_state, spec.thread).seen(mark) if state.values else None
    if seen == "stored" or (seen == "recorded" and not interrupts):
        if new:
            raise ProblemError(
                "key_reused", f"The run {body.run_id!r} has another input; give each run an id of its own."
            )
        spec.scope.mark = mark
        return ResolvedRun(spec, state)
    if not state.values and new and not body.resume:
        graph_input: Any = {"messages": conversation_of(body.messages), **_shared_state(spec, body, {})}
        schemas.check_conversation(graph_input["messages"])
        host.check_images(graph_input["messages"])
        return _resolved(spec, state, mark, graph_input)
    resumed = answers_of(body.resume, interrupts, events) if body.resume else ResumeAnswers({}, [])
    answers = {**resumed.answers, **_client_answers(body, state)}
    users = [user_message(message) for message in new]
    host.check_images(users)
    if (users or answers) and not body.resume and any(not is_client_call(each) for each in interrupts):
        raise ProblemError(
            "conflict", "This thread waits for a person's answer. Send it in resume, for all open interrupts."
        )
    if answers:
        run = _answered(spec, state, mark, answers, caller, users)
    elif users:
        run = _resolved(spec, state, mark, {"messages": users, **_shared_state(spec, body, state.values)})
    elif not await is_idle(host.saver, spec.thread):
        run = ResolvedRun(spec, state, runs=False, follows=True)
    else:
        # A run may have ended since the first reading.
        state = await host.kept.aget_state(spec.config)
        if state.tasks and not open_interrupts(state):
            run = _resolved(spec, state, mark, None)  # the input of a process that was stopped
        else:
            run = ResolvedRun(spec, state, runs=False)
    return replace(run, ignored=tuple(resumed.ignored))


def _shared_state(spec: RunSpec, body: AgentInput, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the own state fields that a client has changed, as input of a run.

    Raises:
        ProblemError: If a field cannot have its value.
    """
    own, given = custom_state_of(spec.graph), body.state if isinstance(body.state, Mapping) else {}
    shared = [name for name in own.outputs if name in own.inputs and name in given]
    changed = {name: given[name] for name in shared if given[name] != to_json_safe(values.get(name))}
    types = get_type_hints(own.input_schema) if changed else {}
    try:
        read = {name: TypeAdapter(types[name]).validate_python(value) for name, value in changed.items()}
        own.check(read)
    except (ValidationError, InputError) as error:
        raise ProblemError("invalid", f"state: {error}", param="state") from None
    # The client's value replaces that of the session, also for a field with a reducer.
    return {name: {_OVERWRITE: value} if name in own.reduced else value for name, value in read.items()}


def _mark(body: AgentInput) -> InputId:
    try:
        run_id = check_input_id(body.run_id)
    except InputError:
        raise ProblemError(
            "invalid", f"runId: {body.run_id!r} is no id; send 1 to 255 printable characters, such as a UUID."
        ) from None
    if body.resume:
        # CopilotKit resumes under the run id of the interrupted run, which the input of that run has already.
        answers = digest_of(["ag-ui resume", run_id, [entry.model_dump(mode="json") for entry in body.resume]])
        return InputId(f"resume-{answers}", answers)
    return InputId(run_id, digest_of(["ag-ui run", run_id]))


def _context(host: Host, body: AgentInput, credentials: Mapping[str, SecretStr]) -> dict[str, Any]:
    tools = body.tools or ()
    for tool in tools:
        if re.fullmatch(schemas.TOOL_NAME, tool.name) is None:
            raise ProblemError(
                "invalid", f"tools: the name {tool.name!r} does not match {schemas.TOOL_NAME}.", param="tools"
            )
        if not isinstance(tool.parameters, dict | None):
            raise ProblemError("invalid", f"tools: the parameters of {tool.name!r} are no JSON schema.", param="tools")
    host.check_client_tools([tool.name for tool in tools])
    functions = [schemas.function_tool(tool.name, tool.description, tool.parameters) for tool in tools]
    instructions = instructions_of(body.messages, [(each.description, each.value) for each in body.context or ()])
    return {
        **({"instructions": instructions} if instructions else {}),
        **({"client_tools": functions} if functions else {}),
        **({"credentials": dict(credentials)} if credentials else {}),
    }


def _client_answers(body: AgentInput, state: StateSnapshot) -> dict[str, Any]:
    """Return the client's results of its own calls that wait, by interrupt id of the graph.

    Results of other calls are ignored: those of the agent's own tools never come from a client.

    Raises:
        ProblemError: If only a part of the calls has a result.
    """
    names = CallNames(state.values.get("messages", []))
    waiting = {names.of(each.value["id"]): each for each in open_interrupts(state) if is_client_call(each)}
    results = {name: result for name, result in given_results(body.messages).items() if name in waiting}
    if results and results.keys() != waiting.keys():
        missing = ", ".join(sorted(waiting.keys() - results.keys()))
        raise ProblemError("invalid", f"Each open call needs a result; without one: {missing}.", param="messages")
    return {
        waiting[name].id: {"content": result_content(result), "status": "error" if result.error else "success"}
        for name, result in results.items()
    }


def _answered(
    spec: RunSpec, state: StateSnapshot, mark: InputId, answers: dict[str, Any], caller: Caller, users: list[Any]
) -> ResolvedRun:
    try:
        checked = checked_answers(answers, spec.graph, state, caller.person)
    except InputError as error:
        raise ProblemError("invalid", str(error), param="resume") from None
    # Open calls are resumed even if this request no longer offers their tools.
    offered = {tool["function"]["name"] for tool in spec.context.get("client_tools", ())}
    waiting = [each.value for each in open_interrupts(state) if is_client_call(each)]
    calls = {call["id"]: call["name"] for call in waiting if call["name"] not in offered}
    if calls:
        spec = replace(spec, context={**spec.context, "client_calls": calls})
    notes = steering_notes(merge_content(users), answers)
    return _resolved(spec, state, mark, Command(resume=checked), notes)


def _resolved(
    spec: RunSpec,
    state: StateSnapshot,
    mark: InputId,
    graph_input: Any,
    notes: tuple[ControlMessage, ...] = (),
) -> ResolvedRun:
    scope = RunHandle(brought=notes)
    scope.mark = mark
    used = NO_USAGE if isinstance(graph_input, dict) else state.values.get("usage") or NO_USAGE
    return ResolvedRun(replace(spec, graph_input=graph_input, used_before=used, scope=scope), state)
