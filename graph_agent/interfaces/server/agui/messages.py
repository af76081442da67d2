"""Converts messages and interrupts between AG-UI and the session.

In AG-UI the ids of calls and results must not repeat within a conversation, and each call that waits for an answer is
one interrupt; an interrupt of the graph may ask about several. A call's *name* is its id for the client.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, assert_never

from ag_ui import core
from ag_ui.core import Interrupt, ResumeEntry
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.messages import ToolCall as LangChainCall
from langchain_core.messages import ToolMessage as LangChainResult
from langgraph.types import Interrupt as GraphInterrupt

from graph_agent.base._internal.text import as_text, text_of, to_json_safe, visible, visible_json
from graph_agent.base.approvals.decisions import Decision, approve, edit, reject, respond
from graph_agent.base.approvals.requests import HeldCall, calls_of_request, request_of
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.input_messages import CONTEXT_MARK
from graph_agent.base.model_error_text import public_text
from graph_agent.base.types import HIDDEN_ID_PREFIX
from graph_agent.interfaces.server.chat.content_blocks import document_block, image
from graph_agent.interfaces.server.chat.run_spec import answers_to_approvals, is_client_call
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError

_PARTS: dict[str, Any] = {
    "image": core.ImagePart,
    "file": core.DocumentPart,
    "audio": core.AudioPart,
    "video": core.VideoPart,
}
ABANDONED = "The person left this question without an answer."
"""Answer to a question that the client has cancelled, for the model."""
Decisions: TypeAlias = dict[tuple[str, int], dict[str, Any]]
"""(First 8 characters of an interrupt's id, index of a call in the interrupt) → decision on the call."""


class CallNames:
    """Names the calls of a session for the client.

    A model may use the id of a call again in a later step, and a client would take both for one call. The first call
    with an id keeps it; the next ones are named `<id>#2`, `<id>#3`.

    Args:
        messages: The session's messages before the run.
    """

    def __init__(self, messages: Iterable[AnyMessage]) -> None:
        self._seen = Counter(
            call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls
        )

    def plan(self, id_: str) -> str:
        """Record a new call with an id of the model, and return its name."""
        self._seen[id_] += 1
        return self.of(id_)

    def of(self, id_: str) -> str:
        """Return the name of the newest call with an id of the model."""
        return id_ if self._seen[id_] < 2 else f"{id_}#{self._seen[id_]}"


def result_id(call_name: str, given: Mapping[str, str]) -> str:
    """Return the id of the message with a call's result, by default `<name>-result`.

    Args:
        call_name: Name of the call.
        given: Name of a call → id of the result that the client itself sent, which keeps its id.
    """
    return given.get(call_name, f"{call_name}-result")


def given_results(messages: Sequence[core.Message]) -> dict[str, core.ToolMessage]:
    """Return the results in a request, name of the call → result.

    If a call has several results, the last one is returned.
    """
    return {message.tool_call_id: message for message in messages if isinstance(message, core.ToolMessage)}


def new_inputs(messages: Sequence[core.Message], known: Iterable[str]) -> list[core.UserMessage]:
    """Return the user messages at the end of a request that the session does not have, oldest first.

    Clients send their whole history with every run, so the messages are searched from the end back to a message of the
    agent or a known message. Messages of the interface itself, such as activities, and results of calls are skipped.

    Args:
        messages: The messages of the request.
        known: Ids of the session's messages.
    """
    ids, found = set(known), list[core.UserMessage]()
    # From the end, because the history before may be long.
    for message in reversed(messages):
        if isinstance(message, core.AssistantMessage) or message.id in ids:
            break
        if isinstance(message, core.UserMessage):
            found.append(message)
    return found[::-1]


def instructions_of(messages: Sequence[core.Message], context: Iterable[tuple[str, str]]) -> str:
    """Return the instructions of a run: the system messages of the request that are not blank, then its context, joined
    by empty lines; may be empty.

    Args:
        messages: The messages of the request.
        context: Pairs of a description and a value, which are written as `description: value`.
    """
    texts = [message.content for message in messages if isinstance(message, core.SystemMessage | core.DeveloperMessage)]
    pieces = [f"{description}: {value}" for description, value in context]
    return "\n\n".join([text for text in texts if text.strip()] + pieces)


def conversation_of(messages: Sequence[core.Message]) -> list[AnyMessage]:
    """Return the conversation of a request as messages for a new session: those of the user and the assistant, and
    results, each result right behind the message with its call.

    Calls without a result, and messages of delegates or of any other role, are left out. Raises `InvalidRequestError`
    for content that no model can receive, and for a user message whose id has a reserved prefix.
    """
    results, found = given_results(messages), list[AnyMessage]()
    for message in messages:
        if isinstance(message, core.UserMessage):
            found.append(user_message(message))
        elif isinstance(message, core.AssistantMessage) and message.subagent_run_id is None:
            # Providers refuse a conversation with a call that has no result.
            calls = [call for call in message.tool_calls or () if call.id in results]
            if message.content or calls:
                found.append(AIMessage(message.content or "", id=message.id, tool_calls=[*map(_call, calls)]))
                found += [_result(results[call.id], call.function.name) for call in calls]
    return found


def user_message(message: core.UserMessage) -> HumanMessage:
    """Convert a user's message to a message for the session with the same id: its text, or its parts as content blocks.

    Raises `InvalidRequestError` if the id has a reserved prefix, or the content cannot be sent to a model.
    """
    if message.id.startswith(HIDDEN_ID_PREFIX):
        raise InvalidRequestError(
            f"messages: an id may not begin with {HIDDEN_ID_PREFIX!r}: {message.id!r}.", "messages"
        )
    content = message.content
    if isinstance(content, str):
        return HumanMessage(content, id=message.id)
    blocks: list[Any] = [_block(part) for part in content]
    return HumanMessage(blocks, id=message.id)


def result_content(message: core.ToolMessage) -> str | list[Any]:
    """Return the content of a result that the client sent: its text or, if that is empty, its error; or LangChain
    content blocks.

    Raises `InvalidRequestError` for content that no model can receive.
    """
    if isinstance(message.content, str):
        return message.content or message.error or ""
    return [_block(part) for part in message.content]


def _block(part: core.ContentPart) -> dict[str, Any]:
    """Convert a part of a message to a LangChain content block: text, or the bytes of a document, sound, video or
    image. Only an image may be given by a URL.

    Raises `InvalidRequestError` for a file that is stored at a provider, for a URL of anything but an image, and for
    invalid base64.
    """
    if isinstance(part, core.TextPart):
        return {"type": "text", "text": part.text}
    source = part.source
    if isinstance(source, core.FileSource):
        raise InvalidRequestError("A file at a provider cannot be read here; send its bytes in base64.", "messages")
    if isinstance(source, core.UrlSource):
        if isinstance(part, core.ImagePart):
            return image(url=source.value)
        raise InvalidRequestError("Only an image may be given by an address; send the bytes.", "messages")
    match part:
        case core.ImagePart():
            return image(mime_type=source.mime_type, base64=source.value)
        case core.DocumentPart():
            return document_block(mime_type=source.mime_type, base64=source.value)
        case core.AudioPart():
            return {**document_block(mime_type=source.mime_type, base64=source.value), "type": "audio"}
        case core.VideoPart():
            return {**document_block(mime_type=source.mime_type, base64=source.value), "type": "video"}
        case _:
            assert_never(part)


def _call(call: core.ToolCall) -> LangChainCall:
    """Convert a call of the client's history to a tool call. Arguments that are not a JSON object become an empty
    one.
    """
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        # The call is history: a client may have cut its arguments.
        arguments = {}
    return LangChainCall(
        name=call.function.name, args=arguments if isinstance(arguments, dict) else {}, id=call.id, type="tool_call"
    )


def _result(message: core.ToolMessage, name: str) -> LangChainResult:
    """Convert a result of the client's history to a tool message; `name` is the name of the tool.

    The status is `error` if the message has an error. Raises `InvalidRequestError` for content of an unusable kind.
    """
    return LangChainResult(
        result_content(message),
        tool_call_id=message.tool_call_id,
        id=message.id,
        name=name,
        status="error" if message.error else "success",
    )


def snapshot_of(
    messages: Sequence[AnyMessage], events: Sequence[StoredEvent], request: Sequence[core.Message]
) -> list[core.Message]:
    """Return a session's messages as the client displays them, after the system messages of the request.

    Messages that only the model receives are left out, and replies without text and calls. Calls have their names for
    the client. Results are whole, from the events, although the model's may be cut; a result that the client sent keeps
    its id.

    Args:
        messages: The session's messages.
        events: The session's events.
        request: The messages of the request.
    """
    names = CallNames(())
    contents = _contents(events)
    given = {name: message.id for name, message in given_results(request).items()}
    found: list[core.Message] = [
        each for each in request if isinstance(each, core.SystemMessage | core.DeveloperMessage)
    ]
    for message in messages:
        id_ = message.id or ""
        if id_.startswith(HIDDEN_ID_PREFIX) or CONTEXT_MARK in message.additional_kwargs:
            continue
        if isinstance(message, HumanMessage):
            found.append(core.UserMessage(id=id_, content=_shown_content(message.content)))
        elif isinstance(message, AIMessage):
            calls = [
                core.ToolCall(
                    id=names.plan(call["id"] or ""),
                    function=core.FunctionCall(name=call["name"], arguments=json_of(call["args"])),
                )
                for call in message.tool_calls
            ]
            text = public_text(message.text)
            if calls or text:
                found.append(core.AssistantMessage(id=id_, content=text or None, tool_calls=calls or None))
        elif isinstance(message, LangChainResult):
            name = names.of(message.tool_call_id)
            text = contents[name] if name in contents else public_text(text_of(message.content))
            error = text if message.status == "error" else None
            found.append(core.ToolMessage(id=result_id(name, given), tool_call_id=name, content=text, error=error))
    return found


def _contents(events: Sequence[StoredEvent]) -> dict[str, str]:
    """Return the whole results of calls from a session's events: the call's name for clients → text.

    A call whose id earlier calls have used has a name of its own, such as `<id>#2`.
    """
    names, contents = CallNames(()), dict[str, str]()
    for event in events:
        if event["type"] == "plan":
            for call in event["calls"]:
                names.plan(call["id"])
        elif event["type"] in ("tool_result", "delegation_response"):
            contents[names.of(event["id"])] = content_text(event)
    return contents


def content_text(event: StoredEvent) -> str:
    """Return the content of a result's event as text for the client, without providers' words; JSON if it is no
    text.
    """
    content = event["content"]
    return public_text(content if isinstance(content, str) else as_text(content))


def _shown_content(content: str | list[Any]) -> str | list[core.ContentPart]:
    """Return the content of a user's message for the client: a text, or a part for each text, image and block with
    base64.

    Blocks of other types are left out.
    """
    if isinstance(content, str):
        return content
    parts: list[core.ContentPart] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else "text"
        if kind == "text":
            parts.append(core.TextPart(text=block if isinstance(block, str) else str(block.get("text", ""))))
        elif kind == "image" and "url" in block:
            parts.append(core.ImagePart(source={"type": "url", "value": block["url"]}))  # type: ignore[arg-type]  # parsed
        elif kind in _PARTS and "base64" in block:
            source = {"type": "data", "value": block["base64"], "mimeType": block.get("mime_type", "")}
            parts.append(_PARTS[kind](source=source))
    return parts


def json_of(value: Any) -> str:
    """Return the arguments of a call as JSON text. Values that JSON does not have become strings."""
    return json.dumps(value, ensure_ascii=False, default=str)


class ClientView:
    """Tracks which messages the client has, and in which order, while it builds them from the events of a run.

    A client that receives a snapshot keeps the messages that it has, in its own order, and appends the others. So the
    order must be known to correct it.

    Args:
        messages: The messages of the request, which the client has.
    """

    def __init__(self, messages: Sequence[core.Message]) -> None:
        self._order = [message.id for message in messages]
        self._results = {message.id for message in messages if isinstance(message, core.ToolMessage)}
        self._callers = {
            call.id: message.id
            for message in messages
            if isinstance(message, core.AssistantMessage)
            for call in message.tool_calls or ()
        }

    def add(self, id_: str) -> None:
        """Record that a message of the agent was sent, by its id. A known message keeps its place."""
        if id_ not in self._order:
            self._order.append(id_)

    def add_call(self, name: str, parent: str) -> None:
        """Record that the client has the message `parent`, and that the call `name` belongs to it; the first parent
        counts.
        """
        self.add(parent)
        self._callers.setdefault(name, parent)

    def add_result(self, name: str, id_: str) -> bool:
        """Record the result `id_` of the call `name`, which the client puts behind the call's message and its other
        results, or behind all messages if it does not know the call.

        Returns False if the client has the result already, so that it must not be sent.
        """
        if id_ in self._results:
            return False
        self._results.add(id_)
        caller = self._callers.get(name)
        at = len(self._order) if caller is None else self._order.index(caller) + 1
        while at < len(self._order) and self._order[at] in self._results:
            at += 1
        self._order.insert(at, id_)
        return True

    def snapshots(self, messages: list[core.Message]) -> list[list[core.Message]]:
        """Return the snapshots to send, one or two, after which the client has `messages` in this order.

        Two are needed if the client lacks an older message: the first one ends before that message, so that the client
        drops the messages after it.
        """
        ids = [message.id for message in messages]
        known = set(ids)
        # A snapshot removes messages that it does not have.
        own = [id_ for id_ in self._order if id_ in known]
        if own == ids[: len(own)]:
            return [messages]
        same = next(at for at, (one, other) in enumerate(zip(own, ids, strict=False)) if one != other)
        return [messages[:same], messages]


def own_held_calls(interrupts: Sequence[GraphInterrupt]) -> list[HeldCall]:
    """Return the agent's own calls that wait for an approval, without those of delegates."""
    return [
        call
        for each in interrupts
        if (request := request_of(each)) is not None and "delegate" not in request
        for call in calls_of_request(request)
    ]


def delegations(interrupts: Sequence[GraphInterrupt]) -> dict[str, list[str]]:
    """Return the delegations whose delegates wait for an answer: id of the delegation's call → ids of the AG-UI
    interrupts.
    """
    found: dict[str, list[str]] = {}
    for each in interrupts:
        value = each.value
        if isinstance(value, Mapping) and isinstance(value.get("delegation"), str):
            found.setdefault(value["delegation"], []).extend(agui_ids(each))
    return found


def agui_ids(interrupt: GraphInterrupt) -> list[str]:
    """Return the ids of the AG-UI interrupts that one interrupt of the graph becomes.

    `INTERRUPT:CALL` for each call of an approval request, and the interrupt's own id for another question. A call of
    the client's own tools has none.
    """
    if is_client_call(interrupt):
        return []
    request = request_of(interrupt)
    if request is None:
        return [interrupt.id]
    return [f"{interrupt.id}:{call['id']}" for call in calls_of_request(request)]


def agui_interrupts(interrupts: Sequence[GraphInterrupt], names: CallNames) -> list[Interrupt]:
    """Return open interrupts of the graph as AG-UI interrupts, in order. Calls of the client's own tools are left out.

    An approval question becomes one interrupt for each call (`tool_call`), with the form of the answer and the call in
    the metadata. Any other question is one interrupt (`input_required`), with the value in the metadata. A question of
    a delegate names the delegation.

    Args:
        interrupts: The open interrupts of the graph.
        names: Names of the session's calls for the client.
    """
    found: list[Interrupt] = []
    for each in interrupts:
        if is_client_call(each):
            continue
        value = each.value if isinstance(each.value, Mapping) else {}
        delegation = value.get("delegation")
        owner = {"subagent_run_id": names.of(delegation)} if isinstance(delegation, str) else {}
        if (request := request_of(each)) is None:
            schema = each.response_schema if isinstance(each.response_schema, dict) else None
            text = value.get("message") or value.get("question")
            message = visible(text if isinstance(text, str) else as_text(each.value))
            metadata = {"value": to_json_safe(each.value)}
            found.append(
                Interrupt(
                    id=each.id,
                    reason="input_required",
                    message=message,
                    response_schema=schema,
                    metadata=metadata,
                    **owner,
                )
            )
            continue
        for id_, call in zip(agui_ids(each), calls_of_request(request), strict=True):
            found.append(
                Interrupt(
                    id=id_,
                    reason="tool_call",
                    message=_question(call, request.get("error")),
                    tool_call_id=call["id"] if owner else names.of(call["id"]),
                    response_schema=answer_form(call),
                    metadata={
                        "toolCall": {"name": call["name"], "arguments": to_json_safe(call["arguments"])},
                        "allowedDecisions": list(call["allowed_decisions"]),
                    },
                    **owner,
                )
            )
    return found


def _question(call: HeldCall, error: str | None) -> str:
    """Return the text that asks about a call: its name and arguments, its description if it has one, and why the last
    answer was refused (`error`), unless that is None.
    """
    lines = [f"{visible(call['name'])} {visible_json(call['arguments'])}", visible(call.get("description", ""))]
    if error is not None:
        lines.append(f"The last answer was not accepted: {error}")
    return "\n".join(filter(None, lines))


def answer_form(call: HeldCall) -> dict[str, Any]:
    """Return the JSON schema of the answer to an approval question about a call, by the decisions that the call allows.

    `approved` is a required boolean, with a single permitted value if the call can only be run or only be stopped.
    `editedArgs` is present if the call may be edited, and required if it cannot run as planned; `reason` if it may be
    rejected; `response` if a text may replace its result, and required if that is the only possible answer.
    """
    allowed = call["allowed_decisions"]
    runs, stops = bool({"approve", "edit"} & {*allowed}), bool({"reject", "respond"} & {*allowed})
    approved: dict[str, Any] = {"type": "boolean", "description": "Whether the call runs."}
    # A schema with one possible value lets a client show one button.
    if runs != stops:
        approved["enum"] = [runs]
    properties: dict[str, Any] = {"approved": approved}
    required = ["approved"]
    if "edit" in allowed:
        properties["editedArgs"] = {
            "type": "object",
            "description": "All arguments of the call, in place of the planned ones.",
        }
        required += [] if "approve" in allowed else ["editedArgs"]
    if "reject" in allowed:
        properties["reason"] = {"type": "string", "description": "Why the call does not run, for the model."}
    if "respond" in allowed:
        properties["response"] = {"type": "string", "description": "The result of a call that does not run."}
        required += [] if "reject" in allowed or runs else ["response"]
    return {"type": "object", "properties": properties, "required": required}


def resume_answers(
    resume: Sequence[ResumeEntry], interrupts: Sequence[GraphInterrupt], events: Sequence[StoredEvent]
) -> tuple[dict[str, Any], list[str]]:
    """Convert the `resume` of a request to answers: interrupt id of the graph → answer, and the ids of entries that
    were answered before.

    A client repeats its answers until a run ends without an error. So an answer that the session has received already
    is not an error, and has no effect. A cancelled entry rejects its call; for another question its answer is
    `ABANDONED`.

    Args:
        resume: The entries of the request.
        interrupts: The open interrupts of the graph.
        events: The session's events, which show answers that were received before.

    Raises:
        InvalidRequestError: An interrupt has two answers, or an answer does not fit.
        ProblemError: An entry's interrupt is not open, or an open one has no answer (`conflict`).
    """
    entries = {entry.interrupt_id: entry for entry in resume}
    # The dict keeps one answer of each, so an interrupt was answered twice.
    if len(entries) < len(resume):
        raise InvalidRequestError("resume: an interrupt has two answers; send one.", "resume")
    open_ids = [id_ for each in interrupts for id_ in agui_ids(each)]
    decided = {each["id"] for each in events if each["type"] == "approval_decision"}
    ignored = [id_ for id_ in entries if id_ not in open_ids and _is_received(id_, decided, bool(events), open_ids)]
    if unknown := [id_ for id_ in entries if id_ not in open_ids and id_ not in ignored]:
        raise ProblemError(
            "conflict",
            f"resume: these interrupts are not open: {', '.join(unknown)}. Open: {', '.join(open_ids) or 'none'}.",
            param="resume",
        )
    if missing := [id_ for id_ in open_ids if id_ not in entries]:
        raise ProblemError(
            "conflict",
            f"resume: answer all open interrupts at once; without an answer: {', '.join(missing)}.",
            param="resume",
        )
    answers: dict[str, Any] = {}
    decisions: Decisions = {}
    for each in interrupts:
        request = request_of(each)
        if request is None:
            for id_ in agui_ids(each):
                entry = entries[id_]
                answers[each.id] = ABANDONED if entry.status == "cancelled" else entry.payload
            continue
        for index, (id_, call) in enumerate(zip(agui_ids(each), calls_of_request(request), strict=True)):
            decisions[each.id[:8], index] = dict(_decision(entries[id_], call["name"]))
    return {**answers, **answers_to_approvals(interrupts, decisions)}, ignored


def _is_received(id_: str, decided: Collection[str], has_events: bool, open_ids: Sequence[str]) -> bool:
    """Return whether the history shows that an answer to an interrupt, which is not open now, was received before.

    Args:
        id_: Id of the AG-UI interrupt.
        decided: Ids of calls on which the history has a decision.
        has_events: Whether the session has any events.
        open_ids: Ids of the open AG-UI interrupts.
    """
    call = id_.partition(":")[2]
    # The history has decisions on calls, but no answers to other questions.
    return call in decided if call else has_events and not open_ids


def _decision(entry: ResumeEntry, name: str) -> Decision:
    """Convert an answer to the decision on the call `name`; whether the call allows it is checked later.

    A cancelled entry rejects the call, and a boolean stands for `approved`. True approves the call, or edits it to
    `editedArgs`. False makes `response` its result, or else rejects it with `reason`. Fields for the other case are not
    used. Raises `InvalidRequestError` if `approved` is missing, or a field has a wrong type, even if it is not used.
    """
    if entry.status == "cancelled":
        return reject(ABANDONED)
    payload = entry.payload
    if isinstance(payload, bool):
        # Some clients send a plain boolean.
        payload = {"approved": payload}
    given = payload if isinstance(payload, Mapping) else {}
    approved, arguments = given.get("approved"), given.get("editedArgs")
    reason, response = given.get("reason"), given.get("response")
    texts_fit = all(text is None or isinstance(text, str) for text in (reason, response))
    if not isinstance(approved, bool) or not texts_fit or not (arguments is None or isinstance(arguments, Mapping)):
        raise InvalidRequestError(
            f"resume: the payload for {entry.interrupt_id} ({name}) does not fit the interrupt's "
            'responseSchema; send for example {"approved": true}.',
            "resume",
        )
    if approved:
        return approve() if arguments is None else edit(arguments)
    return respond(response) if isinstance(response, str) else reject(reason if isinstance(reason, str) else None)
