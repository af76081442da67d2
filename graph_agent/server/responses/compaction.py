"""Compaction of a conversation: its user messages, and one item with a summary in place of the rest."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately

from graph_agent.compiled import AgentStateGraph
from graph_agent.context import AgentContext
from graph_agent.hooks.pipeline import HookReturnError
from graph_agent.hooks.protocol import HookError
from graph_agent.models.errors import classify_model_error
from graph_agent.planning.compaction import is_note
from graph_agent.planning.conversation_summary import StoppedByHookError, summarize_conversation
from graph_agent.planning.summary import NoSummaryError
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
from graph_agent.types import HIDDEN_ID_PREFIX, Usage


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
        text, usage = await _summary(host, messages, body.instructions)
    input_tokens = usage["input_tokens"] or count_tokens_approximately(messages)
    output_tokens = usage["output_tokens"] or count_tokens_approximately([AIMessage(text)])
    server.chat.runs.metrics.count_tokens(input_tokens, output_tokens)
    outcome = ChatOutcome(text, [], "stop", None, input_tokens, output_tokens, "COMPLETED")
    token = new_token()
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


async def _summary(host: Host, messages: list[AnyMessage], instructions: str | None) -> tuple[str, Usage]:
    builder = host.kept.builder
    assert isinstance(builder, AgentStateGraph), "the server compiles graphs of this package"
    assert builder.deps is not None, "every agent has them"
    identified = [message if message.id else message.model_copy(update={"id": str(uuid4())}) for message in messages]
    context = AgentContext(credentials=dict(builder.credentials))
    try:
        return await summarize_conversation(builder.deps, identified, instructions, context)
    except NoSummaryError:
        message = "The model gave no summary of the conversation; send the request again."
        raise ProblemError("upstream", message, category="empty_answer") from None
    except StoppedByHookError:
        raise ProblemError("filtered", "A hook of the agent has stopped the request.") from None
    except (HookError, HookReturnError) as error:
        raise problem_of_run("hook") from error
    except Exception as error:  # a provider may raise anything
        raise problem_of_run(classify_model_error(error)) from error


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
