"""Converts input items to messages, and reads them back for clients."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage

from graph_agent._internal.text import text_of, to_json_safe
from graph_agent.planning.compaction import summary_note
from graph_agent.server.chat import schemas
from graph_agent.server.problems import ProblemError
from graph_agent.server.responses.schemas import InputItem, Part

_TYPES = ("reasoning", "thinking", "redacted_thinking")
"""Types of content blocks that hold reasoning, in the formats of the providers."""


def reasoning_blocks(message: AIMessage) -> list[dict[str, Any]]:
    """Return the content blocks of a message that hold reasoning, in the provider's own format."""
    blocks = message.content if isinstance(message.content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") in _TYPES]


def encoded(value: Any) -> str:
    """Return JSON as the opaque text of an item's `encrypted_content`."""
    return base64.urlsafe_b64encode(json.dumps(to_json_safe(value)).encode()).decode()


def _decoded(content: str) -> Any:
    """Return the JSON in a text of `encoded`; None for another text."""
    try:
        return to_json_safe(json.loads(base64.urlsafe_b64decode(content.encode())))
    except (binascii.Error, ValueError, RecursionError):
        return None


def blocks_of(content: str | None) -> list[dict[str, Any]]:
    """Return the blocks in the `encrypted_content` of a reasoning item; none without one.

    Raises:
        ProblemError: If it is no text of `encoded`.
    """
    if not content:
        return []
    blocks = _decoded(content)
    if not isinstance(blocks, list) or not all(
        isinstance(each, dict) and each.get("type") in _TYPES for each in blocks
    ):
        raise _foreign("reasoning")
    return blocks


def encoded_summary(text: str) -> str:
    """Return the `encrypted_content` of a compaction item with a summary."""
    return encoded({"summary": text})


def compaction_note(content: str | None) -> HumanMessage:
    """Return the note for the model in the `encrypted_content` of a compaction item.

    Raises:
        ProblemError: If it is no text of `encoded_summary`.
    """
    found = _decoded(content or "")
    if not isinstance(found, dict) or not isinstance(found.get("summary"), str):
        raise _foreign("compaction")
    return summary_note(found["summary"])


def _foreign(kind: str) -> ProblemError:
    return ProblemError(
        "invalid",
        f"The encrypted_content of a {kind} item is not from this server; send it as it was given.",
        param="input",
    )


_OUTPUT = ("reasoning", "function_call", "mcp_call", "mcp_approval_request", "mcp_list_tools")
"""Types of the assistant's items, except messages."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


@dataclass(slots=True)
class Conversation:
    """The content of a request's items."""

    messages: list[AnyMessage] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list)
    decisions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Approval request id → decision; without those that items of the assistant follow, which were received before."""

    def decide(self, id_: str, decision: dict[str, Any]) -> None:
        """Add the decision on an approval request; raise `ProblemError` if the request has a different decision."""
        if self.decisions.setdefault(id_, decision) != decision:
            message = f"The approval request {id_!r} has two different responses; send one."
            raise ProblemError("invalid", message, param="input")


def read_items(items: Sequence[InputItem]) -> Conversation:
    """Convert items; consecutive items of the assistant become one message.

    Raises:
        ProblemError: If an item is invalid or not supported.
    """
    schemas.check_arguments(((item.call_id, item.arguments) for item in items if item.arguments), "input")
    found = Conversation()
    assistant = _Assistant()
    for item in items:
        if _is_output(item):
            found.decisions.clear()
        match item.type:
            case "message" if item.role == "assistant":
                assistant.add_text(_text(item.content))
            case "reasoning":
                assistant.add_reasoning(blocks_of(item.encrypted_content))
            case "function_call":
                assistant.calls.append(_call(item, item.call_id))
            case "mcp_call":
                assistant.calls.append(_call(item, item.id))
                assistant.move_to(found.messages)
                found.messages.append(_result(item, item.id, error=item.error))
            case "compaction":
                assistant.move_to(found.messages)
                found.messages.append(compaction_note(item.encrypted_content))
            case "mcp_approval_request" | "mcp_list_tools":
                pass
            case "mcp_approval_response":
                found.decide(*_decision(item))
            case "function_call_output":
                assistant.move_to(found.messages)
                found.messages.append(_result(item, item.call_id))
            case "message":
                assistant.move_to(found.messages)
                _add_message(item, found)
            case _:
                raise ProblemError("invalid", f"Items of type {item.type!r} are not supported.", param="input")
    assistant.move_to(found.messages)
    return found


class _Assistant:
    """Collects consecutive items of the assistant."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._reasoning: list[dict[str, Any]] = []
        self._texts: list[str] = []

    def add_text(self, text: str) -> None:
        if text.strip():
            self._texts.append(text.strip("\n"))

    def add_reasoning(self, blocks: Sequence[dict[str, Any]]) -> None:
        self._reasoning += blocks

    def move_to(self, messages: list[AnyMessage]) -> None:
        """Append the message of the collected items, if any; start the next one."""
        text = "\n\n".join(self._texts)
        if self.calls or text:
            texts = [{"type": "text", "text": text}] if text else []
            # Reasoning first, as providers require it.
            content: Any = [*self._reasoning, *texts] if self._reasoning else text
            messages.append(AIMessage(content, tool_calls=self.calls))
        self.calls, self._reasoning, self._texts = [], [], []


def _add_message(item: InputItem, found: Conversation) -> None:
    match item.role:
        case "system" | "developer":
            if text := _text(item.content):
                found.instructions.append(text)
        case "user":
            content = _content(item.content)
            if not content:
                raise ProblemError("invalid", "A message of the user's has no content.", param="input")
            found.messages.append(HumanMessage(content))
        case _:
            raise ProblemError("invalid", "An item of type message has no role.", param="input")


def _call(item: InputItem, id_: str | None) -> ToolCall:
    if not id_ or not item.name:
        raise ProblemError("invalid", f"An item of type {item.type} has no id or no name.", param="input")
    arguments = schemas.parse_arguments(id_, item.arguments, "input")
    return ToolCall(id=id_, name=item.name, args=arguments, type="tool_call")


def _result(item: InputItem, id_: str | None, *, error: str | dict[str, Any] | None = None) -> ToolMessage:
    if not id_:
        raise ProblemError("invalid", f"An item of type {item.type} has no call_id.", param="input")
    if error is not None:
        # Earlier versions of the API have the text alone.
        text = error if isinstance(error, str) else text_of(error.get("content") or error.get("message", ""))
        return ToolMessage(text, tool_call_id=id_, status="error")
    return ToolMessage(_content(item.output), tool_call_id=id_)


def _is_output(item: InputItem) -> bool:
    """Whether an item is one of the assistant's."""
    return item.role == "assistant" if item.type == "message" else item.type in _OUTPUT


def _decision(item: InputItem) -> tuple[str, dict[str, Any]]:
    if not item.approval_request_id or item.approve is None:
        raise ProblemError(
            "invalid", "An item of type mcp_approval_response needs approval_request_id and approve.", param="input"
        )
    if item.approve:
        return item.approval_request_id, {"type": "approve"}
    reason = {"message": item.reason} if item.reason else {}
    return item.approval_request_id, {"type": "reject", **reason}


def _content(content: str | list[Part] | None) -> str | list[Any]:
    if content is None or isinstance(content, str):
        return content or ""
    return schemas.simplify_blocks([_block(part) for part in content])


def _block(part: Part) -> dict[str, Any]:
    match part.type:
        case "input_image":
            if part.image_url is None:
                raise ProblemError(
                    "invalid",
                    "An image is given by image_url; files are not stored, so there is no file_id.",
                    param="input",
                )
            return schemas.image_at(part.image_url)
        case "input_file":
            return _file(part)
        case _:
            return {"type": "text", "text": _text([part])}


def _file(part: Part) -> dict[str, Any]:
    if part.file_data is None:
        raise ProblemError(
            "invalid",
            "A file is given by file_data: a data: URL with base64. No address is fetched, and no file is stored.",
            param="input",
        )
    found = schemas.DATA_URL.fullmatch(part.file_data)
    mime_type = found[1] if found else schemas.media_type_of(part.filename)
    if mime_type is None:
        raise ProblemError(
            "invalid", "file_data is no data: URL with base64, and filename does not show its type.", param="input"
        )
    return schemas.document(mime_type=mime_type, base64=found[2] if found else part.file_data, name=part.filename)


def _text(content: str | list[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content:
        if part.type == "refusal":
            texts.append(part.refusal or "")
        elif part.type in _TEXTS:
            texts.append(part.text or "")
        else:
            raise ProblemError("invalid", f"A part of type {part.type!r} is not supported here.", param="input")
    return "".join(texts)


def as_items(value: str | Sequence[InputItem]) -> list[InputItem]:
    """Return a request's input as items; text is one user message."""
    return [InputItem.model_validate({"role": "user", "content": value})] if isinstance(value, str) else list(value)


def replace_references(items: Sequence[InputItem], known: Mapping[str, dict[str, Any]]) -> list[InputItem]:
    """Replace references by the items that they name; raise `ProblemError` if a reference names an unknown item."""
    found: list[InputItem] = []
    for item in items:
        if item.type != "item_reference":
            found.append(item)
        elif (named := known.get(item.id or "")) is not None:
            found.append(InputItem.model_validate(named))
        else:
            raise ProblemError(
                "not_found", f"There is no item {item.id!r}: its response is not kept, or was deleted.", param="input"
            )
    return found
