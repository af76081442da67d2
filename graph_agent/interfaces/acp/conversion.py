"""Converts events, parts and questions of a session to ACP, and prompts and decisions from it."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from acp import RequestError, schema, start_tool_call, text_block, tool_content, update_plan, update_tool_call
from langchain_core.messages import HumanMessage
from langgraph.types import Interrupt

from graph_agent.base._internal.text import as_text, clean, printable_lines, text_of, visible, visible_json
from graph_agent.base.approvals.decisions import Decision, approve, edit, reject
from graph_agent.base.approvals.elicitation import elicitation_text, is_elicitation
from graph_agent.base.approvals.requests import HeldCall, calls_of_request, is_approval_request, request_of
from graph_agent.base.approvals.text import parse_answer, question_text
from graph_agent.base.history.call_events import call_name, call_of
from graph_agent.base.history.events import SUCCESSES, Event, StoredEvent
from graph_agent.session.history import shortened_line
from graph_agent.session.interrupts import joint_question
from graph_agent.session.results import CallState, DelegateProgress, EventAdded, Reasoning, RunPart, Token

AcpUpdate: TypeAlias = (
    schema.UserMessageChunk
    | schema.AgentMessageChunk
    | schema.AgentThoughtChunk
    | schema.ToolCallStart
    | schema.ToolCallProgress
    | schema.AgentPlanUpdate
)
_TITLE_LENGTH = 100
"""Maximum characters of a call's title."""

PromptBlock: TypeAlias = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)
_OPTIONS: Sequence[schema.PermissionOption] = (
    schema.PermissionOption(option_id="allow", name="Allow", kind="allow_once"),
    schema.PermissionOption(option_id="always", name="Always allow", kind="allow_always"),
    schema.PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
)
_NEEDS = {"allow": "approve", "always": "approve", "reject": "reject"}
"""Id of an option → the decision that a call must allow."""


class AcpProjection:
    """Converts the events and parts of one session to ACP updates, in the order of the session.

    A model may use a call id again, but for a client an id is one call. So each call has a *name*, which is the id that
    the client receives and which never repeats.

    Args:
        writes: Returns whether a tool may have side effects, by the tool's name.
    """

    def __init__(self, writes: Callable[[str], bool]) -> None:
        self._writes = writes
        self._planned: Counter[str] = Counter()
        """Call id → number of calls that were planned with this id."""
        self._wave: dict[str, schema.PlanEntry] = {}
        """Name of a call → its entry in the newest plan."""
        self._shown: set[str] = set()
        """Names of the calls that were sent to the client."""
        self._open: set[str] = set()
        """Names of the calls that were sent and whose end was not sent yet."""
        self._message_id = ""
        """Id of the model's newest streamed message."""
        self._sent = ""
        """The text of that message that was streamed to the client so far."""

    def part(self, part: RunPart) -> Iterator[AcpUpdate]:
        """Yield the updates of one streamed part: of text, reasoning, an ended call, a delegate's text or an event.

        Other kinds of parts, also the start of a call, have none. Text is noted, so that the stored message is not sent
        again.
        """
        match part:
            case Token(text, message_id=id_):
                if id_ != self._message_id:
                    self._message_id, self._sent = id_, ""
                self._sent += text
                yield agent_message(text, id_)
            case Reasoning(text):
                yield thought(text)
            case CallState(id_, status=status) if status != "started":
                yield from self._end(self.name(id_), status)
            case DelegateProgress(id_, text=text):
                yield update_tool_call(self.name(id_), content=[tool_content(text_block(text))])
            case EventAdded(event):
                yield from self.event(event)
            case _:
                pass

    def event(self, event: Event) -> Iterator[AcpUpdate]:
        """Yield the updates of a stored event.

        - A message of the user, also a steering message, is sent block by block.
        - A plan with calls sends its text, unless the text was streamed, and the plan. The text of a structured plan is
          sent as a thought.
        - A call, its result and the answer are sent; the plan is sent again with the call's new status.

        Other events, also plans without calls, have no updates. Text that was streamed before is not repeated.
        """
        stored: StoredEvent = {**event}
        match event["type"]:
            case "user_message" | "steering":
                for block in acp_blocks(event["content"]):
                    yield schema.UserMessageChunk(
                        session_update="user_message_chunk", content=block, message_id=f"event-{event['seq']}"
                    )
            case "plan" if event["calls"]:
                # The text of a structured plan is reasoning, and no message.
                if "planner" not in event:
                    yield from self._rest(event["reasoning"], f"event-{event['seq']}")
                elif event["reasoning"]:
                    yield thought(event["reasoning"])
                self._planned.update(call["id"] for call in event["calls"])
                self._wave = {
                    self.name(call["id"]): schema.PlanEntry(content=call["name"], priority="medium", status="pending")
                    for call in event["calls"]
                }
                yield from self._plan()
            case "tool_call" | "delegation_request" if (call := call_of(stored)) is not None:
                # The call may be known already from a question about it.
                yield from self.call(self.name(call["id"]), call["name"], call["arguments"], "in_progress")
            case "tool_result" | "delegation_response":
                yield from self._end(self.name(event["id"]), event["status"], stored)
            case "agent_response":
                yield from self._rest(text_of(event["content"]), f"event-{event['seq']}")
            case _:
                pass

    def name(self, id_: str) -> str:
        """Return the client's id of the newest call with the given id: the id itself, or `<id>#2`, `<id>#3` and so on
        if earlier calls used the id.
        """
        return id_ if self._planned[id_] < 2 else f"{id_}#{self._planned[id_]}"

    def call(
        self, name: str, tool: str, arguments: Mapping[str, Any], status: schema.ToolCallStatus
    ) -> Iterator[AcpUpdate]:
        """Yield the updates of a call that waits for an approval or starts: the call itself, and the plan with its new
        status.

        The call is sent as an update if the client has received it before. Otherwise it is sent as a new call, of the
        kind `read` if its tool has no side effects, and else `other`. The plan is sent only if it has several calls.

        Args:
            name: The client's id of the call (see the class).
            tool: Name of the tool.
            arguments: Arguments of the call.
            status: `pending` or `in_progress`.
        """
        self._open.add(name)
        fields: dict[str, Any] = {"title": call_title(tool, arguments), "raw_input": {**arguments}, "status": status}
        if name in self._shown:
            yield update_tool_call(name, **fields)
        else:
            self._shown.add(name)
            yield start_tool_call(name, kind="other" if self._writes(tool) else "read", **fields)
        if name in self._wave:
            yield from self._mark(name, fields["title"], "in_progress" if status == "in_progress" else "pending")

    def _end(self, name: str, status: str, result: StoredEvent | None = None) -> Iterator[AcpUpdate]:
        """Yield the updates of a call that has ended: the call as `completed` or `failed`, and the plan with its entry
        completed.

        Yields nothing if `result` is None and the call is not open, because its end was sent before or its start was
        not. With a result, a call that the client has never received, because it did not start, is sent first.

        Args:
            name: The client's id of the call.
            status: Status of the result, e.g. `success`.
            result: The event with the call's output; None if the output follows later.
        """
        if result is None and name not in self._open:
            return
        if result is not None and name not in self._shown:
            yield from self.call(name, str(call_name(result)), {}, "pending")  # it never started
        self._open.discard(name)
        output = None if result is None else [tool_content(block) for block in acp_blocks(result["content"])]
        yield update_tool_call(name, status="completed" if status in SUCCESSES else "failed", content=output)
        if name in self._wave and self._wave[name].status != "completed":
            yield from self._mark(name, self._wave[name].content, "completed")

    def _mark(self, name: str, title: str, status: Any) -> Iterator[AcpUpdate]:
        """Replace the plan's entry of a call with a title and a status, and yield the whole plan, if it has several
        calls.
        """
        self._wave[name] = schema.PlanEntry(content=title, priority="medium", status=status)
        yield from self._plan()

    def _plan(self) -> Iterator[AcpUpdate]:
        """Yield the update with the newest plan. Yields nothing for a plan of one call, or none."""
        # A plan of one call would only repeat the call.
        if len(self._wave) > 1:
            yield update_plan(self._wave.values())

    def _rest(self, text: str, id_: str) -> Iterator[AcpUpdate]:
        """Yield the part of a stored message that was not streamed; nothing if all of it was.

        If the text does not continue the streamed text, all of it is yielded as a new message with the id `id_`.
        Forgets the streamed text.
        """
        if self._sent and text.startswith(self._sent):
            id_, text = self._message_id, text[len(self._sent) :]
        self._message_id = self._sent = ""
        if text:
            yield agent_message(text, id_)


def acp_blocks(content: str | Sequence[Any]) -> list[schema.TextContentBlock | schema.ImageContentBlock]:
    """Return the content of a message or a result as ACP blocks, one for each content block.

    An image with base64 remains one, as `image/png` if it has no media type; any other block becomes text, as JSON if
    it has no text. So an empty text becomes `""`, with the quotes.
    """
    blocks: list[schema.TextContentBlock | schema.ImageContentBlock] = []
    for block in [content] if isinstance(content, str) else content:
        if isinstance(block, Mapping) and block.get("type") == "image" and "base64" in block:
            mime_type = str(block.get("mime_type") or "image/png")
            blocks.append(schema.ImageContentBlock(type="image", data=block["base64"], mime_type=mime_type))
        else:
            blocks.append(text_block(text_of([block]) or visible_json(block)))
    return blocks


def thought(text: str) -> schema.AgentThoughtChunk:
    """Return the ACP update for a piece of the model's reasoning."""
    return schema.AgentThoughtChunk(session_update="agent_thought_chunk", content=text_block(text))


def call_title(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as one line of at most 100 characters, e.g. `search {"q": "hotel"}`."""
    return shortened_line(f"{visible(tool)} {visible_json(arguments)}", _TITLE_LENGTH)


def agent_message(text: str, id_: str = "") -> schema.AgentMessageChunk:
    """Return the ACP update for a piece of the agent's message; an empty `id_` sends no message id."""
    return schema.AgentMessageChunk(
        session_update="agent_message_chunk", content=text_block(text), message_id=id_ or None
    )


def prompt_message(prompt: Sequence[PromptBlock]) -> HumanMessage:
    """Return the blocks of an ACP prompt as one user message.

    If all blocks are text, links or text resources, the content is one string, joined without a separator, in which a
    link is `[@NAME](URI)` and a text resource is enclosed in `<resource>`. Otherwise it is a list of content blocks.

    Raises:
        RequestError: Data of an image, an audio clip or a file are not valid base64.
    """
    content: list[Any] = [_block(block) for block in prompt]
    if all(block["type"] == "text" for block in content):
        return HumanMessage("".join(block["text"] for block in content))
    return HumanMessage(content)


def _block(block: PromptBlock) -> dict[str, Any]:
    """Return one block of a prompt as a LangChain content block, of the type `text`, `image`, `audio` or `file`.

    A link to a resource, and an embedded resource with text, become text that names its URI. An embedded resource with
    data is an image or audio clip by its media type, and otherwise a file with the name at the end of the URI. Raises
    `RequestError` for data that are not valid base64.
    """
    match block:
        case schema.TextContentBlock():
            return _text(block.text)
        case schema.ResourceContentBlock():
            return _text(f"[@{block.name}]({block.uri})")
        case schema.ImageContentBlock() | schema.AudioContentBlock():
            return _data(block.data, block.mime_type, block.type)
        case schema.EmbeddedResourceContentBlock(resource=schema.TextResourceContents(uri=uri, text=text)):
            return _text(f'\n<resource uri="{uri}">\n{text}\n</resource>\n')
        case schema.EmbeddedResourceContentBlock(resource=resource):
            mime_type = resource.mime_type or "application/octet-stream"
            kind = mime_type.partition("/")[0]
            data = _data(resource.blob, mime_type, kind if kind in ("image", "audio") else "file")
            return {**data, "filename": clean(resource.uri.rpartition("/")[2])} if data["type"] == "file" else data


def _text(text: str) -> dict[str, Any]:
    """Return a text block; characters that cannot be stored are replaced."""
    return {"type": "text", "text": clean(text)}


def _data(base64: str, mime_type: str, kind: str) -> dict[str, Any]:
    """Return a LangChain content block of the type `kind` with base64 data; raise `RequestError` if the data are not
    valid base64.
    """
    try:
        # Checked here: a provider would refuse the whole conversation later.
        b64decode(base64, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(-32602, f"The data of a block of type {kind} are no valid base64.") from None
    return {"type": kind, "base64": base64, "mime_type": clean(mime_type)}


def options_for(call: HeldCall) -> list[schema.PermissionOption]:
    """Return the buttons that the client offers for a call that waits for an approval, among allow, always allow and
    reject.

    Empty if the call allows neither `approve` nor `reject`, so that a text is needed.
    """
    return [option for option in _OPTIONS if _NEEDS[option.option_id] in call["allowed_decisions"]]


def is_permission(interrupt: Interrupt) -> bool:
    """Return whether an interrupt is an approval request of which every call can be answered with the options of
    ACP.
    """
    request = request_of(interrupt)
    return request is not None and all(map(options_for, calls_of_request(request)))


def permission_call(name: str, call: HeldCall, request: Mapping[str, Any]) -> schema.ToolCallUpdate:
    """Return the call that the client displays with a permission request.

    Its content is the call's description and the error of the last answer, each if there is one; None if there is
    neither.

    Args:
        name: The client's id of the call.
        call: The call that waits.
        request: The approval request of the call; its `error` explains why the last answer was refused.
    """
    error = request.get("error")
    texts = [call.get("description", ""), f"The last answer was not accepted: {error}" if error else ""]
    return schema.ToolCallUpdate(
        tool_call_id=name,
        title=call_title(call["name"], call["arguments"]),
        status="pending",
        raw_input=call["arguments"],
        content=[tool_content(text_block(visible(text))) for text in texts if text] or None,
    )


def decision_of(response: schema.RequestPermissionResponse) -> Decision | None:
    """Return the decision in a client's response to a permission request; None if the client cancelled the request.

    `allow` and `always` approve the call, the latter for the whole session; any other option rejects it. ACP cannot
    express other arguments or a reason. A client may add them in `_meta` of the outcome: `editedArgs`, an object, with
    either approval, which edits the call once; and `reason`, a text, with reject. Values of other types are ignored.
    """
    outcome = response.outcome
    if not isinstance(outcome, schema.AllowedOutcome):
        return None
    extra = outcome.field_meta or {}
    arguments, reason = extra.get("editedArgs"), extra.get("reason")
    if outcome.option_id not in ("allow", "always"):
        return reject(reason if isinstance(reason, str) else None)
    return edit(arguments) if isinstance(arguments, Mapping) else approve(always=outcome.option_id == "always")


def interrupt_question(interrupts: Sequence[Interrupt]) -> str:
    """Return the text of the open question that the user's next message answers; several that are answered together
    form one.

    It is the text of an approval request or an elicitation, and for any other question its value as text.
    """
    _, asked = joint_question(interrupts)
    if is_approval_request(asked):
        return question_text(asked)
    return elicitation_text(asked) if is_elicitation(asked) else printable_lines(as_text(asked))


def answer_of(interrupts: Sequence[Interrupt], text: str) -> Any:
    """Return the value for `Session.resume` if a message of the user answers the open questions.

    For an approval it is the text itself, which is parsed later; else a dict from the id of the first interrupt to the
    text, parsed as JSON where possible.
    """
    asked, value = joint_question(interrupts)
    return text if is_approval_request(value) else {asked[0].id: parse_answer(text)}
