"""Compacts a conversation to its user messages and one item with a summary, and estimates tokens of requests."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage

from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.errors import ConfigError
from graph_agent.base.history_notes import is_note
from graph_agent.base.settings.config import AgentContext
from graph_agent.base.types import HIDDEN_ID_PREFIX, Usage
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome
from graph_agent.interfaces.server.chat.schemas import ChatRequest, new_messages
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.parameters import Services
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError, problem_of_run
from graph_agent.interfaces.server.responses.chain import Chains, items_of, messages_of
from graph_agent.interfaces.server.responses.encrypted_content import encoded_summary
from graph_agent.interfaces.server.responses.ids import item_id, record_token, response_id
from graph_agent.interfaces.server.responses.output import response_usage as response_usage_of
from graph_agent.interfaces.server.responses.records import Records
from graph_agent.interfaces.server.responses.schemas import CompactResponse, read_items
from graph_agent.session.conversation import NoSummaryError, estimate_request, summarize_conversation


async def compact_stored(server: Services, caller: Caller, body: CompactResponse) -> dict[str, Any]:
    """Summarize a conversation with the agent's model; return an object with the user's messages and one item with the
    summary.

    Nothing is stored; the tokens are counted in the metrics. Raises `ProblemError` if the request is invalid, the
    conversation is empty or not stored, the caller has too many active requests, or the model returns no summary.
    """
    server.check_body(body)
    host = server.chat.runs.host
    with server.chat.limits.slot(caller.name):
        messages = await _conversation(host, Records(host, caller), body)
        text, usage = await _summary(host, messages, body.instructions)
    input_tokens = usage["input_tokens"] or estimated_tokens(messages)
    output_tokens = usage["output_tokens"] or estimated_tokens([AIMessage(text)])
    # The model was called outside a run, which would count them.
    server.chat.runs.metrics.count_tokens(input_tokens, output_tokens)
    outcome = ChatOutcome(text, [], "stop", None, input_tokens, output_tokens, "COMPLETED")
    token = record_token()
    # The user's own words stay; the summary stands for the rest.
    kept = [message for message in messages if isinstance(message, HumanMessage) and _is_of_user(message)]
    output = [_user_item(message, item_id("msg", token, index)) for index, message in enumerate(kept)]
    summary = encoded_summary(text)
    output.append({"id": item_id("cmp", token, len(kept)), "type": "compaction", "encrypted_content": summary})
    return {
        "id": response_id(token),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": output,
        "usage": response_usage_of(outcome),
    }


async def _conversation(host: Host, records: Records, body: CompactResponse) -> list[AnyMessage]:
    """Return the messages of the request's previous response, and then of its input, in which references are replaced.

    Raises `ProblemError` if there are none, or the previous response or a reference is unknown.
    """
    items = await items_of(body.input or [], records)
    before: list[AnyMessage] = []
    if body.previous_response_id is not None:
        before = await Chains(host, records).history(await records.previous(body.previous_response_id))
    messages = [*before, *read_items(items).messages]
    if not messages:
        raise InvalidRequestError("There is no conversation to compact; send input.", "input")
    return messages


async def _summary(host: Host, messages: list[AnyMessage], instructions: str | None) -> tuple[str, Usage]:
    """Return the model's summary of messages, and the usage.

    Raises `ProblemError` if the model returns none: `upstream` for an empty one, `filtered` if a hook stopped the
    request, and otherwise the problem of the model's error.

    Args:
        host: The open agent.
        messages: The conversation.
        instructions: System message for the summary; None if there is none.
    """
    builder = host.kept.builder
    identified = [message if message.id else message.model_copy(update={"id": str(uuid4())}) for message in messages]
    context = AgentContext(credentials=dict(builder.credentials))
    try:
        return await summarize_conversation(builder.deps, identified, instructions, context)
    except NoSummaryError as error:
        if error.kind == "empty_answer":
            message = "The model gave no summary of the conversation; send the request again."
            raise ProblemError("upstream", message, category="empty_answer") from None
        if error.kind == "stopped":
            raise ProblemError("filtered", "A hook of the agent has stopped the request.") from None
        raise problem_of_run(error.kind) from error


def _is_of_user(message: HumanMessage) -> bool:
    """Return whether a user message was written by the user, and is not an earlier summary or a notice of this
    package.
    """
    return not is_note(message) and not (message.id or "").startswith(HIDDEN_ID_PREFIX)


def _user_item(message: BaseMessage, id_: str) -> dict[str, Any]:
    """Return a user's message as an input item with the id `id_`.

    Content blocks of types that the API lacks are left out.
    """
    blocks = [message.content] if isinstance(message.content, str) else message.content
    content = [part for block in blocks if (part := _part(block)) is not None]
    return {"id": id_, "type": "message", "role": "user", "status": "completed", "content": content}


def _part(block: str | dict[Any, Any]) -> dict[str, Any] | None:
    """Return a content block as a part of an item: a text, an image by its URL or data URL, or a file by its data URL;
    None for a type that the API lacks.
    """
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


async def count_input_tokens(host: Host, caller: Caller, request: ChatRequest) -> int:
    """Estimate the input tokens of a request's first model call, with the history of its session. No model is called,
    and nothing is stored.

    Raises `InvalidRequestError` if the system prompt depends on the state of a run, or a tool has the name of another
    tool.
    """
    builder = host.kept.builder
    host.check_client_tools([tool["function"]["name"] for tool in request.client_tools])
    thread = caller.thread(request.session_id or "")
    state = await host.kept.aget_state({"configurable": {"thread_id": thread}})
    new = request.messages if request.adds_all or not state.values else new_messages(request.messages)
    messages = [*messages_of(state), *new]
    try:
        return await estimate_request(builder.deps, state.values, messages, request.context(), thread)
    except ConfigError:
        message = "The tokens cannot be counted: the agent's system prompt depends on the state of a run."
        raise InvalidRequestError(message) from None
