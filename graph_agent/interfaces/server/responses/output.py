"""Builds the response object of the Responses API, its output items, and the events of its stream.

A *frame* is the text of one server-sent event. A *token* here is the random part of a response's id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graph_agent.base._internal.text import reasoning_text, visible, visible_json
from graph_agent.base.history.call_events import call_name
from graph_agent.base.history.events import SUCCESSES, StoredEvent
from graph_agent.interfaces.server.chat.handler import AnswerPart, ChatDialect, make_frames, status_fields
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome
from graph_agent.interfaces.server.error_responses import openai_error
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.interfaces.server.responses.encrypted_content import encoded, reasoning_blocks
from graph_agent.interfaces.server.responses.ids import ItemKind, approval_id, item_id, response_id
from graph_agent.interfaces.server.responses.schemas import CreateResponse, FunctionTool
from graph_agent.interfaces.server.sse import frame, progress_comment

_INCOMPLETE = {"length": "max_output_tokens", "filtered": "content_filter"}
"""How an answer ended → the reason that an incomplete response has."""
_EMPTY: dict[str, Any] = {"status": "in_progress", "content": [], "arguments": ""}
"""Fields that are empty when an item starts → their empty value."""


def new_response(body: CreateResponse, token: str) -> dict[str, Any]:
    """Return the response object for a request, in the status `in_progress` and without output.

    All fields that Open Responses requires are present, with OpenAI's defaults.

    Args:
        body: The body of the request.
        token: Token of the response, which is part of its id.
    """
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
    choice = body.tool_choice
    return {
        "id": response_id(token),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "conversation": {"id": body.conversation_id} if body.conversation_id else None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": summary_wanted(body)},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.is_stored,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": "auto"
        if choice is None
        else choice
        if isinstance(choice, str)
        else choice.model_dump(exclude_none=True),
        "tools": [_tool(tool) for tool in body.tools or []],
        "top_logprobs": 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _tool(tool: FunctionTool) -> dict[str, Any]:
    """Return a tool of the request as the response repeats it: without fields that are None, except those of a function
    that the API requires.
    """
    required = {"description": None, "parameters": None, "strict": None} if tool.type == "function" else {}
    return {**required, **tool.model_dump(exclude_none=True)}


def summary_wanted(body: CreateResponse) -> str | None:
    """Return the kind of reasoning summary that a request asks for, e.g. `auto`; None if it asks for none."""
    return (body.reasoning.summary or body.reasoning.generate_summary) if body.reasoning else None


def response_usage(outcome: ChatOutcome) -> dict[str, Any]:
    """Return the tokens that a run has used, in the format of the API: input, output and total.

    The details of cached and reasoning tokens are at most the tokens of which they are a part.
    """
    return {
        "input_tokens": outcome.input_tokens,
        "input_tokens_details": {
            "cached_tokens": min(outcome.cached_tokens, outcome.input_tokens),
            "cache_write_tokens": min(outcome.cache_write_tokens, outcome.input_tokens),
        },
        "output_tokens": outcome.output_tokens,
        "output_tokens_details": {"reasoning_tokens": min(outcome.reasoning_tokens, outcome.output_tokens)},
        "total_tokens": outcome.input_tokens + outcome.output_tokens,
    }


def error_of(problem: ProblemError) -> dict[str, Any]:
    """Return the `error` object of a failed response: code, message and, after a failed run, the category.

    It has fewer codes than the error of a refused request: `rate_limit_exceeded`, `invalid_prompt` and, for all else,
    `server_error`.
    """
    codes = {"busy": "rate_limit_exceeded", "context": "invalid_prompt", "invalid": "invalid_prompt"}
    codes["filtered"] = "invalid_prompt"
    category = {} if problem.category is None else {"category": problem.category}
    return {"code": codes.get(problem.kind, "server_error"), "message": problem.message, **category}


def error_fields(problem: ProblemError) -> dict[str, Any]:
    """Return the fields of an `error` event: `code`, `message` and `param` of the specification, and an `error` object
    with these and more, which official clients read.
    """
    error = openai_error(problem)["error"]
    return {"code": error["code"], "message": error["message"], "param": error["param"], "error": error}


@dataclass(eq=False)
class ResponseDialect(ChatDialect):
    """Formats one answer as a response object, or as the frames of a stream.

    Each frame also updates the response object.

    The methods `…_frames` are called in the order of the run, by code that all chat APIs share.

    Args:
        response: The response object from `new_response`, which is completed in place.
        token: Token of the response, which is part of the ids of its items.
        label: `server_label` of items about calls of the agent's own tools.
        client_tools: Names of the caller's tools.
        shows_summary: Whether reasoning items contain the text of the reasoning.
        shows_encrypted: Whether reasoning items have an `encrypted_content`.
        queued: Whether the response starts in the background.
    """

    response: dict[str, Any]
    token: str
    label: str
    client_tools: Collection[str] = ()
    shows_summary: bool = False
    shows_encrypted: bool = False
    queued: bool = False
    recorded: list[dict[str, Any]] | None = None
    """List that every event is appended to, for a response in the background; None to record none."""
    _sequence: int = 0
    """Number of the next event."""
    _has_reasoning: bool = False
    """Whether a reasoning item was begun in this response."""
    _reasoning_at: int | None = None
    """Index of the open reasoning item; None if none is open."""
    _summary: str | None = None
    """Text of the open summary; None if none is open."""
    _text: str | None = None
    """Text of the open message; None if none is open."""
    _phase: str = "final_answer"
    """Phase of the open message: `commentary` if calls follow it, else `final_answer`."""
    _calls: dict[str, int] = field(default_factory=dict)
    """Id of a call of the agent's own tools → index of its item, while it has no result."""

    @property
    def _output(self) -> list[dict[str, Any]]:
        """The items of the response."""
        output: list[dict[str, Any]] = self.response["output"]
        return output

    def start_frames(self) -> Iterable[str]:
        """Yield the first frames: the response as created, queued if it starts in the background, and in progress.

        The status of the response changes with them, and is `in_progress` at the end.
        """
        if self.queued:
            self.response["status"] = "queued"
        yield self.snapshot("response.created")
        if self.queued:
            yield self.snapshot("response.queued")
            self.response["status"] = "in_progress"
        yield self.snapshot("response.in_progress")

    def text_frames(self, text: str) -> Iterable[str]:
        """Yield a piece of the answer's text; before it the start of a message and its part, unless a message is open.

        An open summary of reasoning is ended first.
        """
        if self._text is None:
            yield from self._end_summary()
            self._text, self._phase = "", "final_answer"
            yield self._add(_message(self._id("msg"), "in_progress", []))
            yield self._part_event("response.content_part.added", part=_output_text(""))
        self._text += text
        yield self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def break_frames(self) -> Iterable[str]:
        """Yield a blank line and the end of the open message, as a commentary; nothing if no message is open.

        The next text belongs to another message. The blank line is for clients that join all texts.
        """
        if self._text is not None:
            # Clients that join all texts would run two messages together.
            yield from self.text_frames("\n\n")
            self._phase = "commentary"
            yield from self._end_message("completed")

    def progress_frames(self, progress: dict[str, Any]) -> Iterable[str]:
        """Yield progress as a comment, because clients refuse unknown types of events."""
        yield progress_comment(progress)

    def event_frames(self, event: StoredEvent) -> Iterable[str]:
        """Yield calls of the agent's own tools and their results as `mcp_call` items; nothing for other events.

        A plan with calls yields nothing, but makes the open message a commentary. Calls of the caller's tools are sent
        at the end of the run. The names of delegates' calls are `delegate_to_<name>`.
        """
        match event["type"]:
            case "plan" if event["calls"]:
                self._phase = "commentary"
            case "tool_call" if event["name"] not in self.client_tools:
                yield from self._own_call(event["id"], event["name"], event["arguments"])
            case "delegation_request":
                yield from self._own_call(event["id"], str(call_name(event)), {"task": event["task"]})
            case "tool_result" | "delegation_response":
                yield from self._own_result(event)

    def end_frames(self, outcome: ChatOutcome) -> Iterable[str]:
        """Yield the last frames of a run, in this order: the end of the message, the reasoning (as a whole item if none
        was streamed), the calls and approvals that wait, calls without a stored result as `incomplete`, the response.

        The response gets its usage and its status: `cancelled` after an abort, `incomplete` with a reason if it was cut
        off, or else `completed`. The last event is `response.completed` or, also after an abort, `response.incomplete`;
        the frame `[DONE]` follows.
        """
        incomplete = _INCOMPLETE.get(outcome.ending)
        if outcome.calls or outcome.approvals:
            self._phase = "commentary"
        yield from self._end_message("incomplete" if incomplete else "completed", outcome.citations)
        yield from self._reasoning(outcome)
        for call in outcome.calls:
            yield from self._client_call(call)
        for approval in outcome.approvals:
            yield from self._approval(approval)
        for index in self._calls.values():
            # A call whose result this run did not store.
            self._output[index]["status"] = "incomplete"
            yield self._done(index)
        self._calls = {}
        self.response |= {"usage": response_usage(outcome), **status_fields(outcome)}
        if outcome.status == "ABORTED":
            self.response["status"] = "cancelled"
        elif incomplete is not None:
            self.response |= {"status": "incomplete", "incomplete_details": {"reason": incomplete}}
        else:
            self.response |= {"status": "completed", "completed_at": int(time.time())}
        # A cancelled response has no event of its own.
        ending = "completed" if self.response["status"] == "completed" else "incomplete"
        yield self.snapshot(f"response.{ending}")
        yield "data: [DONE]\n\n"

    def error_frames(self, problem: ProblemError) -> Iterable[str]:
        """Yield the last frames of a run that failed: the ends of the open message and reasoning, an error, the failed
        response, and `[DONE]`.

        The message that is open gets the status `incomplete`, the response the status `failed` and the error. Open
        calls get no end, and keep the status `in_progress`.
        """
        yield from self._end_message("incomplete")
        yield from self._end_reasoning()
        # First, because official clients raise it with its text, and of a failed response only that it failed.
        yield self._event("error", **error_fields(problem))
        self.response |= {"status": "failed", "error": error_of(problem)}
        # A client that ignores error events reads the failure here.
        yield self.snapshot("response.failed")
        yield "data: [DONE]\n\n"

    def body(self, outcome: ChatOutcome, parts: Sequence[AnswerPart], progress: list[dict[str, Any]]) -> dict[str, Any]:
        """Complete the response object for a request without a stream, and return it; `progress` is added as a field if
        it is not empty.
        """
        make_frames(self, outcome, parts)
        "".join(self.end_frames(outcome))
        return {**self.response, **({"progress": progress} if progress else {})}

    def rest_frames(self, outcome: ChatOutcome, rest: str) -> Iterable[str]:
        """Yield the part of the answer that was not streamed. If no message is open, line feeds at its start are
        removed, and the reasoning comes first.

        A refusal of the model, of which nothing was streamed, becomes a message with a part of type `refusal`.
        """
        if self._text is None:
            rest = rest.lstrip("\n")
            yield from self._reasoning(outcome)
        if outcome.refusal and self._text is None:
            content = [{"type": "refusal", "refusal": rest}]
            yield from self.whole_item(_message(self._id("msg"), "completed", content))
        elif rest:
            yield from self.text_frames(rest)

    def reasoning_frames(self, text: str) -> Iterable[str]:
        """Yield a piece of the model's reasoning, as the summary of a reasoning item, after the end of the open
        message.

        The item and its summary are begun first unless they are open. If the request asks for no summary, only the item
        is begun, without text.
        """
        yield from self.break_frames()
        if not self.shows_summary:
            yield from self._begin_reasoning() if self._reasoning_at is None else ()
            return
        if self._summary is None:
            yield from self._begin_reasoning()
            self._summary = ""
            yield self._summary_event("part.added", part={"type": "summary_text", "text": ""})
        self._summary += text
        yield self._summary_event("text.delta", delta=text)

    def _reasoning(self, outcome: ChatOutcome) -> Iterable[str]:
        """Yield the rest of the reasoning item of the newest reply, and its end.

        If no reasoning was streamed, this is the whole item, provided that the reply has reasoning and the request asks
        for the summary or the `encrypted_content`. Otherwise nothing.
        """
        blocks = reasoning_blocks(outcome.reply) if outcome.reply is not None else []
        text = reasoning_text(outcome.reply) if outcome.reply is not None else ""
        is_shown = (self.shows_encrypted and blocks) or (self.shows_summary and text)
        if is_shown and not self._has_reasoning:
            yield from self.reasoning_frames(text) if text else self._begin_reasoning()
        if self._reasoning_at is not None and self.shows_encrypted and blocks:
            self._output[self._reasoning_at]["encrypted_content"] = encoded(blocks)
        yield from self._end_reasoning()

    def _begin_reasoning(self) -> Iterable[str]:
        """Yield the end of the open reasoning item, if there is one, and the start of a new one."""
        yield from self._end_reasoning()
        self._has_reasoning, self._reasoning_at = True, len(self._output)
        yield self._add({"id": self._id("rs"), "type": "reasoning", "summary": [], "status": "in_progress"})

    def _end_summary(self) -> Iterable[str]:
        """Yield the end of the open summary; nothing if none is open.

        An item that gets an `encrypted_content` stays open until the whole reply is known.
        """
        if self._summary is not None and self._reasoning_at is not None:
            part = {"type": "summary_text", "text": self._summary}
            yield self._summary_event("text.done", text=self._summary)
            yield self._summary_event("part.done", part=part)
            self._output[self._reasoning_at]["summary"], self._summary = [part], None
            if not self.shows_encrypted:
                yield from self._end_reasoning()

    def _end_reasoning(self) -> Iterable[str]:
        """Yield the end of the open reasoning item, after that of its open summary; nothing if none is open."""
        yield from self._end_summary()
        if (index := self._reasoning_at) is not None:
            self._reasoning_at = None
            self._output[index]["status"] = "completed"
            yield self._done(index)

    def _summary_event(self, kind: str, **fields: Any) -> str:
        """Return the frame of an event about the open summary; `kind` is the end of the event's type, e.g.
        `text.delta`.
        """
        index = self._reasoning_at or 0
        place = {"item_id": self._output[index]["id"], "output_index": index, "summary_index": 0}
        return self._event(f"response.reasoning_summary_{kind}", **place, **fields)

    def _client_call(self, call: Mapping[str, Any]) -> Iterable[str]:
        """Yield the whole item, of type `function_call`, of a call of the caller's tools, which waits for its
        result.
        """
        yield from self.whole_item(
            {
                "id": self._id("fc"),
                "type": "function_call",
                "status": "completed",
                "call_id": call["id"],
                "name": call["name"],
                "arguments": json.dumps(call["arguments"], ensure_ascii=False),
            }
        )

    def whole_item(self, item: dict[str, Any]) -> Iterable[str]:
        """Append a complete item to the output, and yield its frames: the item with empty content, its content, and its
        end.
        """
        index = len(self._output)
        # Clients build the item from its start and the deltas.
        yield self._add({**item, **{name: empty for name, empty in _EMPTY.items() if name in item}})
        yield from self._content(item, index)
        self._output[index] = item
        yield self._done(index)

    def _content(self, item: Mapping[str, Any], index: int) -> Iterable[str]:
        """Yield the frames about the content of an item; `index` is its position in the output."""
        for type_, fields in _content_events(item):
            yield self._event(f"response.{type_}", item_id=item["id"], output_index=index, **fields)

    def _approval(self, approval: Mapping[str, Any]) -> Iterable[str]:
        """Append an item of type `mcp_approval_request` for a call that waits for an approval, and yield its start and
        its end.

        Its id names the call, and control characters in its texts are made visible.
        """
        id_ = approval_id(approval["token"], approval["interrupt"], approval["index"])
        yield self._add(
            {
                "id": id_,
                "type": "mcp_approval_request",
                "name": visible(approval["name"]),
                "arguments": visible_json(approval["arguments"]),
                "server_label": self.label,
            }
        )
        yield self._done(len(self._output) - 1)

    def _own_call(self, id_: str, name: str, arguments: Any) -> Iterable[str]:
        """Yield the ends of the open message (by `break_frames`) and summary, and an item for a call of the agent's own
        tools, in progress.

        The item stays open until `_own_result`; its arguments are sent as JSON text.
        """
        yield from self.break_frames()
        yield from self._end_summary()
        text = json.dumps(arguments, ensure_ascii=False)
        item: dict[str, Any] = {
            "id": self._id("mcp"),
            "type": "mcp_call",
            "status": "in_progress",
            "server_label": self.label,
            "name": name,
            "arguments": "",
            "output": None,
            "error": None,
            "approval_request_id": None,
        }
        self._calls[id_] = index = len(self._output)
        yield self._add(item)
        yield self._event("response.mcp_call.in_progress", item_id=item["id"], output_index=index)
        item["arguments"] = text
        yield from self._content(item, index)

    def _own_result(self, event: Mapping[str, Any]) -> Iterable[str]:
        """Yield the end of the item of a call of the agent's own tools, from the event of its result.

        The item gets the output, or after a failure the error, as text; content blocks become JSON. Nothing if the call
        has no open item.
        """
        if (index := self._calls.pop(event["id"], None)) is None:
            return
        item = self._output[index]
        content = event["content"]
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        fine = event["status"] in SUCCESSES
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
        item |= {"status": "completed", "output": text} if fine else {"status": "failed", "error": error}
        ending = "completed" if fine else "failed"
        yield self._event(f"response.mcp_call.{ending}", item_id=item["id"], output_index=index)
        yield self._done(index)

    def _end_message(self, status: str, citations: Sequence[Mapping[str, Any]] = ()) -> Iterable[str]:
        """Yield the end of the open message: its sources, its text, its part and the item itself; nothing if none is
        open.

        The item gets the status, the text with the sources, and the phase, whether it is the final answer or a
        commentary.
        """
        if self._text is None:
            return
        part = _output_text(self._text, citations)
        for number, annotation in enumerate(part["annotations"]):
            added = {"annotation_index": number, "annotation": annotation}
            yield self._part_event("response.output_text.annotation.added", **added)
        yield self._part_event("response.output_text.done", text=self._text, logprobs=[])
        yield self._part_event("response.content_part.done", part=part)
        index = len(self._output) - 1
        self._output[index] |= {"status": status, "content": [part], "phase": self._phase}
        self._text = None
        yield self._done(index)

    def _id(self, kind: ItemKind) -> str:
        """Return the id of the item that is appended next."""
        return item_id(kind, self.token, len(self._output))

    def _add(self, item: dict[str, Any]) -> str:
        """Append an item to the output, and return the frame of its start."""
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=dict(item))

    def _done(self, index: int) -> str:
        """Return the frame for the end of the item at `index`."""
        return self._event("response.output_item.done", output_index=index, item=dict(self._output[index]))

    def _part_event(self, type_: str, **fields: Any) -> str:
        """Return the frame of an event about the text of the open message."""
        index = len(self._output) - 1
        place = {"item_id": self._output[index]["id"], "output_index": index, "content_index": 0}
        return self._event(type_, **place, **fields)

    def snapshot(self, type_: str) -> str:
        """Return the frame of an event of the type `type_` that contains the response as it is now."""
        return self._event(type_, response={**self.response, "output": [dict(item) for item in self._output]})

    def _event(self, type_: str, **fields: Any) -> str:
        """Return the frame of an event with the next sequence number, and append the event to `recorded` if that is a
        list.
        """
        event = {"type": type_, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        if self.recorded is not None:
            self.recorded.append(event)
        return frame(event, type_)


def _message(id_: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a message item of the assistant."""
    return {"id": id_, "type": "message", "status": status, "role": "assistant", "content": content}


def _output_text(text: str, citations: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the part of a message with its text and the sources that the text cites."""
    annotations = [
        {
            "type": "url_citation",
            "url": each["url"],
            "title": each.get("title", ""),
            "start_index": each.get("start", 0),
            "end_index": each.get("end", 0),
        }
        for each in citations
    ]
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def replayed_events(response: dict[str, Any]) -> Iterator[str]:
    """Yield the frames of a stored response that has ended, as a new stream in which each text is one piece.

    The last event is `response.completed`, `response.failed` or, for any other status, `response.incomplete`; the frame
    `[DONE]` follows.
    """
    # The stored response is at its end; the events begin with an empty one.
    opened = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None, "error": None}
    dialect = ResponseDialect(opened, "", label="")
    yield from dialect.start_frames()
    for item in response["output"]:
        yield from dialect.whole_item(item)
    dialect.response = response
    endings = {"completed": "completed", "failed": "failed"}
    yield dialect.snapshot(f"response.{endings.get(response['status'], 'incomplete')}")
    yield "data: [DONE]\n\n"


def _content_events(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events between the start and the end of a complete item, as pairs of the type, without `response.`, and
    the fields.

    Each part of a message has its start, its text as one piece, and its end; a call has its arguments as one piece.
    Other items have none.
    """
    for at, part in enumerate(item.get("content") or () if item["type"] == "message" else ()):
        place = {"content_index": at}
        name = "refusal" if part["type"] == "refusal" else "text"
        kind = "refusal" if name == "refusal" else "output_text"
        extra: dict[str, Any] = {} if name == "refusal" else {"logprobs": []}
        yield "content_part.added", {**place, "part": {**part, name: ""}}
        yield f"{kind}.delta", {**place, "delta": part[name], **extra}
        yield f"{kind}.done", {**place, name: part[name], **extra}
        yield "content_part.done", {**place, "part": part}
    if item["type"] in ("function_call", "mcp_call"):
        named = {"name": item["name"]} if item["type"] == "function_call" else {}
        kind = f"{item['type']}_arguments"
        yield f"{kind}.delta", {"delta": item["arguments"]}
        yield f"{kind}.done", {"arguments": item["arguments"], **named}
