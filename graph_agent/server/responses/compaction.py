"""Compaction of a conversation: its user messages, and one item with a summary in place of the rest."""

from __future__ import annotations

import time
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.messages.utils import count_tokens_approximately

from graph_agent.budgets import usage_of
from graph_agent.compiled import AgentStateGraph
from graph_agent.config import LoopConfig
from graph_agent.models.client import ModelClient
from graph_agent.models.errors import classify_model_error
from graph_agent.models.finish_reasons import refusal_text
from graph_agent.planning.compaction import is_note
from graph_agent.planning.summary import summary_request
from graph_agent.prompts import Prompts
from graph_agent.server.admission.keys import Caller
from graph_agent.server.chat.outcomes import ChatOutcome
from graph_agent.server.errors.problems import ProblemError, problem_of_run
from graph_agent.server.hosting.host import Host
from graph_agent.server.parameters import Services
from graph_agent.server.responses.chain import Chains
from graph_agent.server.responses.ids import item_id, new_token, response_id
from graph_agent.server.responses.input_items import as_items, read_items, replace_references
from graph_agent.server.responses.reasoning import encoded_summary
from graph_agent.server.responses.records import Records
from graph_agent.server.responses.resource import usage_of as response_usage_of
from graph_agent.server.responses.schemas import CompactResponse
from graph_agent.types import HIDDEN_ID_PREFIX

_WINDOW_SHARE = 0.75
"""Share of the model's context window that the conversation may fill in the request for the summary."""


async def compact(server: Services, caller: Caller, body: CompactResponse) -> dict[str, Any]:
    """Return the compaction of a conversation.

    Args:
        server: The server's services.
        caller: The sender of the request.
        body: The request.

    Raises:
        ProblemError: If the conversation is empty or not stored, or the model gives no summary.
    """
    server.check_body(body)
    host = server.chat.runs.host
    with server.chat.limits.slot(caller.name):
        messages = await _conversation(host, Records(host, caller), body)
        reply = await _summary(host, messages, body.instructions)
    usage = usage_of(reply)
    input_tokens = usage["input_tokens"] or count_tokens_approximately(messages)
    output_tokens = usage["output_tokens"] or count_tokens_approximately([reply])
    server.chat.runs.metrics.count_tokens(input_tokens, output_tokens)
    outcome = ChatOutcome(reply.text, [], "stop", None, input_tokens, output_tokens, "COMPLETED")
    token = new_token()
    kept = [message for message in messages if isinstance(message, HumanMessage) and _is_of_user(message)]
    output = [_user_item(message, item_id("msg", token, index)) for index, message in enumerate(kept)]
    summary = encoded_summary(reply.text.strip())
    output.append({"id": item_id("cmp", token, len(kept)), "type": "compaction", "encrypted_content": summary})
    return {
        "id": response_id(token),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": output,
        "usage": response_usage_of(outcome),
    }


async def _conversation(host: Host, records: Records, body: CompactResponse) -> list[AnyMessage]:
    items = as_items(body.input or [])
    if references := [item.id or "" for item in items if item.type == "item_reference"]:
        items = replace_references(items, await records.items(references))
    before: list[AnyMessage] = []
    if body.previous_response_id is not None:
        before = await Chains(host, records).history(await records.previous(body.previous_response_id))
    messages = [*before, *read_items(items).messages]
    if not messages:
        raise ProblemError("invalid", "There is no conversation to compact; send input.", param="input")
    return messages


async def _summary(host: Host, messages: list[AnyMessage], instructions: str | None) -> AIMessage:
    builder = host.kept.builder
    assert isinstance(builder, AgentStateGraph), "the server compiles graphs of this package"
    assert builder.model is not None, "every agent has a model"
    window = (builder.model.profile or {}).get("max_input_tokens")
    tokens = count_tokens_approximately(messages)
    if window is not None:
        tokens = min(tokens, int(window * _WINDOW_SHARE))
    request: list[AnyMessage] = [SystemMessage(instructions)] if instructions else []
    request.append(summary_request(builder.prompts or Prompts(), messages, tokens))
    client, settings = ModelClient(builder.model, []), builder.config or LoopConfig()
    try:
        reply = await client.answer(request, settings, mode="text", quiet=True)
    except Exception as error:  # a provider may raise anything
        raise problem_of_run(classify_model_error(error)) from error
    if refusal_text(reply, visible=True) is not None or not reply.text.strip():
        message = "The model gave no summary of the conversation; send the request again."
        raise ProblemError("upstream", message, category="empty_answer")
    return reply


def _is_of_user(message: HumanMessage) -> bool:
    """Whether a message has the user's words; an earlier summary and notices of this package are in the new summary."""
    return not is_note(message) and not (message.id or "").startswith(HIDDEN_ID_PREFIX)


def _user_item(message: BaseMessage, id_: str) -> dict[str, Any]:
    """Return a user message as an item."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    content = [part for block in blocks if (part := _part(block)) is not None]
    return {"id": id_, "type": "message", "role": "user", "status": "completed", "content": content}


def _part(block: str | dict[Any, Any]) -> dict[str, Any] | None:
    if isinstance(block, str):
        return {"type": "input_text", "text": block}
    url = block.get("url") or f"data:{block.get('mime_type')};base64,{block.get('base64')}"
    match block.get("type"):
        case "text":
            return {"type": "input_text", "text": block["text"]}
        case "image":
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case "file":
            return {"type": "input_file", "file_data": url, "filename": block.get("filename")}
    return None
