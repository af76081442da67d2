"""Resolves an AG-UI request to the run that it starts, resumes or follows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from ag_ui.core import RunAgentInput
from langgraph.types import Command, StateSnapshot
from pydantic import ConfigDict, SecretStr, TypeAdapter, ValidationError, model_validator

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.errors import InputError
from graph_agent.base.inbox import ControlMessage
from graph_agent.base.input_ids import InputId, check_input_id, digest_of
from graph_agent.base.types import NO_USAGE
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.agui.messages import (
    CallNames,
    conversation_of,
    given_results,
    instructions_of,
    new_inputs,
    result_content,
    resume_answers,
    user_message,
)
from graph_agent.interfaces.server.chat import schemas
from graph_agent.interfaces.server.chat.function_tools import function_tool
from graph_agent.interfaces.server.chat.run_spec import (
    RunSpec,
    is_client_call,
    merge_content,
    steering_notes,
    with_open_calls,
)
from graph_agent.interfaces.server.chat.schemas import check_conversation
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError
from graph_agent.session.built_agent import custom_state_of
from graph_agent.session.control import SessionControl
from graph_agent.session.deduplicator import InputDeduplicator
from graph_agent.session.driver import RunHandle
from graph_agent.session.interrupts import checked_answers
from graph_agent.session.results import open_interrupts

_OVERWRITE = "__overwrite__"
"""Key of a state value that replaces a field, instead of being merged by the field's reducer."""
_MEDIA = {"image": "image", "audio": "audio", "video": "video"}


def _modern(data: Any) -> Any:
    """Return a body that is validated and cleaned, in which parts of type `binary`, which clients before AG-UI 1.0
    send, are media parts.

    Raises `ValueError` for a body that `clean_body` refuses.
    """
    body = schemas.clean_body(data)
    messages = body.get("messages") if isinstance(body, dict) else None
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            message["content"] = [_modern_part(part) for part in content]
    return body


def _modern_part(part: Any) -> Any:
    """Convert a part of type `binary` to an image, audio, video or, for any other media type, document part, by its URL
    or else its data. Other parts are returned unchanged.
    """
    if not isinstance(part, dict) or part.get("type") != "binary":
        return part
    mime_type = str(part.get("mimeType", ""))
    kind = _MEDIA.get(mime_type.partition("/")[0], "document")
    by_url = {"type": "url", "value": part["url"], "mimeType": mime_type} if part.get("url") else None
    return {"type": kind, "source": by_url or {"type": "data", "value": part.get("data"), "mimeType": mime_type}}


class AguiInput(RunAgentInput):
    """The body of a run's request: AG-UI's `RunAgentInput`. Fields that are not declared are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    _clean = model_validator(mode="before")(_modern)


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """What a request leads to: a run to execute, a run of another request to follow, or only the stored session."""

    spec: RunSpec
    """The input or the answers, and how the run is executed."""
    before: StateSnapshot
    """The state of the session before the run."""
    runs: bool = True
    """Whether there is something to run. If not, the request only reads the session."""
    follows: bool = False
    """Whether the session has a run of another request, which this request follows to its end."""
    ignored: tuple[str, ...] = ()
    """Ids of AG-UI interrupts that the request answers although they were answered before.

    Such answers have no effect.
    """


async def resolve_agui(
    host: Host, caller: Caller, body: AguiInput, credentials: Mapping[str, SecretStr]
) -> ResolvedRun:
    """Return the run that a request starts, resumes or follows. Nothing is started or stored yet.

    A new thread receives the whole conversation of the request, a known one the new messages or the answers. A request
    with neither new messages nor answers follows a run that is under way, continues a run that a crash interrupted, or
    reads the session. A repeated request gets the stored result, because the run id is the id of the input.

    Args:
        host: The open agent.
        caller: The owner of the API key.
        body: The body of the request.
        credentials: Secrets from the headers for the agent's tools, by name.

    Raises:
        ProblemError: The request is invalid, its run id belongs to another input, or the thread waits for another
            answer.
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
        shows_delegates=body.protocol_version is not None,
        shows_state=bool(custom_state_of(host.kept).outputs),
        session_label="This thread",
    )
    state = await host.kept.aget_state(spec.config)
    messages, events = state.values.get("messages", []), state.values.get("events", [])
    new = new_inputs(body.messages, [message.id or "" for message in messages])
    if len({message.id for message in new}) < len(new):
        raise InvalidRequestError("messages: two new messages have one id; give each an id of its own.", "messages")
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
        check_conversation(graph_input["messages"])
        host.check_images(graph_input["messages"])
        return _resolved(spec, state, mark, graph_input)
    resumed, ignored = resume_answers(body.resume, interrupts, events) if body.resume else ({}, [])
    answers = {**resumed, **_client_answers(body, state)}
    users = [user_message(message) for message in new]
    host.check_images(users)
    if (users or answers) and not body.resume and any(not is_client_call(each) for each in interrupts):
        raise ProblemError(
            "conflict", "This thread waits for a person's answer. Send it in resume, for all open interrupts."
        )
    if answers:
        run = await _answered(spec, state, mark, answers, caller, users)
    elif users:
        run = _resolved(spec, state, mark, {"messages": users, **_shared_state(spec, body, state.values)})
    elif await SessionControl(host.kept, spec.thread).is_running():
        run = ResolvedRun(spec, state, runs=False, follows=True)
    else:
        # A run may have ended since the first reading.
        state = await host.kept.aget_state(spec.config)
        if state.tasks and not open_interrupts(state):
            run = _resolved(spec, state, mark, None)  # the input of a process that was stopped
        else:
            run = ResolvedRun(spec, state, runs=False)
    return replace(run, ignored=tuple(ignored))


def _shared_state(spec: RunSpec, body: AguiInput, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the agent's own state that the client has changed, field → value for the input of a run.

    A field counts as changed if the request's value differs from the session's. The new value replaces the session's,
    also for a field with a reducer. Values of fields that are not both input and output of the agent are ignored.
    Raises `InvalidRequestError` for a value that does not fit its field.

    Args:
        spec: The run.
        body: The body of the request.
        values: The state of the session; empty for a new one.
    """
    own, given = custom_state_of(spec.graph), body.state if isinstance(body.state, Mapping) else {}
    shared = [name for name in own.outputs if name in own.inputs and name in given]
    changed = {name: given[name] for name in shared if given[name] != to_json_safe(values.get(name))}
    types = get_type_hints(own.input_schema) if changed else {}
    try:
        read = {name: TypeAdapter(types[name]).validate_python(value) for name, value in changed.items()}
        own.check(read)
    except (ValidationError, InputError) as error:
        raise InvalidRequestError(f"state: {error}", "state") from None
    # The client's value replaces that of the session, also for a field with a reducer.
    return {name: {_OVERWRITE: value} if name in own.reduced else value for name, value in read.items()}


def _mark(body: AguiInput) -> InputId:
    """Return the id by which the input of a request runs only once: the run id or, for answers to interrupts, a digest
    of the run id and the answers.

    Raises `InvalidRequestError` if the run id is invalid.
    """
    try:
        run_id = check_input_id(body.run_id)
    except InputError:
        raise InvalidRequestError(
            f"runId: {body.run_id!r} is no id; send 1 to 255 printable characters, such as a UUID."
        ) from None
    if body.resume:
        # CopilotKit resumes under the run id of the interrupted run, which the input of that run has already.
        answers = digest_of(["ag-ui resume", run_id, [entry.model_dump(mode="json") for entry in body.resume]])
        return InputId(f"resume-{answers}", answers)
    return InputId(run_id, digest_of(["ag-ui run", run_id]))


def _context(host: Host, body: AguiInput, credentials: Mapping[str, SecretStr]) -> dict[str, Any]:
    """Return the context of the run, with instructions, the client's tools and credentials, each only if there are any.

    The instructions are the system messages of the request, then its context. Raises `InvalidRequestError` if a tool
    has an invalid name or schema, or the name of a tool of the agent.
    """
    tools = body.tools or ()
    for tool in tools:
        if re.fullmatch(schemas.FUNCTION_NAME, tool.name) is None:
            raise InvalidRequestError(f"tools: the name {tool.name!r} does not match {schemas.FUNCTION_NAME}.", "tools")
        if not isinstance(tool.parameters, dict | None):
            raise InvalidRequestError(f"tools: the parameters of {tool.name!r} are no JSON schema.", "tools")
    host.check_client_tools([tool.name for tool in tools])
    functions = [function_tool(tool.name, tool.description, tool.parameters) for tool in tools]
    instructions = instructions_of(body.messages, [(each.description, each.value) for each in body.context or ()])
    return {
        **({"instructions": instructions} if instructions else {}),
        **({"client_tools": functions} if functions else {}),
        **({"credentials": dict(credentials)} if credentials else {}),
    }


def _client_answers(body: AguiInput, state: StateSnapshot) -> dict[str, Any]:
    """Return the client's results of its own waiting calls: interrupt id of the graph → result; empty if it sends none.

    Results of other calls are ignored, because the agent's own tools get no results from a client. Raises
    `InvalidRequestError` if only some of the waiting calls have a result.
    """
    names = CallNames(state.values.get("messages", []))
    waiting = {names.of(each.value["id"]): each for each in open_interrupts(state) if is_client_call(each)}
    results = {name: result for name, result in given_results(body.messages).items() if name in waiting}
    if results and results.keys() != waiting.keys():
        missing = ", ".join(sorted(waiting.keys() - results.keys()))
        raise InvalidRequestError(f"Each open call needs a result; without one: {missing}.", "messages")
    return {
        waiting[name].id: {"content": result_content(result), "status": "error" if result.error else "success"}
        for name, result in results.items()
    }


async def _answered(
    spec: RunSpec, state: StateSnapshot, mark: InputId, answers: dict[str, Any], caller: Caller, users: list[Any]
) -> ResolvedRun:
    """Return the run that resumes a session with answers, which the caller is recorded to have given.

    New messages of the user are given to the model before its next plan. Waiting calls of the client's tools remain
    possible, even if the request does not offer these tools. Raises `InvalidRequestError` if the answers do not fit the
    open interrupts.
    """
    try:
        checked = await checked_answers(answers, spec.graph, state, caller.person)
    except InputError as error:
        raise InvalidRequestError(str(error), "resume") from None
    spec = replace(spec, context=with_open_calls(spec.context, open_interrupts(state)))
    notes = steering_notes(merge_content(users), answers)
    return _resolved(spec, state, mark, Command(resume=checked), notes)


def _resolved(
    spec: RunSpec, state: StateSnapshot, mark: InputId, graph_input: Any, notes: tuple[ControlMessage, ...] = ()
) -> ResolvedRun:
    """Return a run whose input is executed once for `mark`.

    For a resumed run, the usage that earlier runs of the same input have reported is subtracted later.

    Args:
        spec: The run without its input.
        state: The state of the session.
        mark: The id of the input.
        graph_input: The input, a command that resumes the graph, or None to continue an interrupted run.
        notes: Messages that the model reads before its next plan.
    """
    scope = RunHandle(brought=notes)
    scope.mark = mark
    used = NO_USAGE if isinstance(graph_input, dict) else state.values.get("usage") or NO_USAGE
    return ResolvedRun(replace(spec, graph_input=graph_input, used_before=used, scope=scope), state)
