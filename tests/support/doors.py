"""Every door to an agent, driven with random scripts of its model: what a client streams, and the whole answer."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from fastapi import FastAPI
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.models.scripted import ModelScript
from graph_agent.server import AgentSource, ServerSettings, create_app
from graph_agent.session.results import Done, PlanText, Token

ANSWER = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
COMPLETED, INPUT_REQUIRED = "TASK_STATE_COMPLETED", "TASK_STATE_INPUT_REQUIRED"
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
SPARE = [AIMessage('{"sum": 3}')] * 6
"""Replies for requests beyond the script, which fit a schema too."""
PAINT = {"name": "paint", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
CLIENT_TOOL = {"type": "function", "function": PAINT}


@tool
def ask() -> str:
    """Ask the user."""
    return str(interrupt("Which one?"))


class Restarting(ScriptedChatModel):
    """A scripted model whose script begins again for each door."""

    answered: int | None = None
    """Requests that it answers before it fails; None for all."""
    hangs_after: str = ""
    """Piece of a streamed reply after which it sends nothing more; empty for no such piece."""

    def restart(self) -> None:
        self._script = ModelScript(self.responses, cycle=False)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        self._check()
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        self._check()
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk
            if self.hangs_after and chunk.text == self.hangs_after:
                await asyncio.Event().wait()

    def _check(self) -> None:
        if len(self.requests) == self.answered:
            raise ValueError("The model has failed.")


@dataclass(frozen=True)
class Case:
    """An agent and the replies of its model."""

    mode: str
    finalize: str
    approves: bool
    structured: bool
    replies: Sequence[AIMessage | str]
    streaming: bool | None
    shows_calls: bool = False
    """Whether the Responses API shows the agent's own calls."""
    paints: bool = False
    """Whether the requests offer a tool of the client, which some replies call."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration that may end a run."""
    answered: int | None = None
    """Requests that the model answers before it fails; None for all."""
    aborts: bool = False
    """Whether the first call aborts its run."""
    approval: str = "approve"
    """The answer to each question; `1: approve` leaves the other calls undecided."""
    hangs_after: str = ""
    """Piece of a streamed reply after which the model sends nothing more; empty for no such piece."""
    hooks: Sequence[Any] = ()
    """Hooks and middleware of the agent."""


PLAIN = Case("native", "auto", False, False, [], None)
"""No script: for agents of other models."""


@dataclass
class Client:
    """A client of one session."""

    http: httpx.AsyncClient
    session: str
    stream: bool
    paints: bool
    calls: list[str] = field(default_factory=list)
    """Ids of the calls of its own tool that wait for their results, which the next request sends."""


def reply(mode: str, text: str, calls: int, number: int, after: str, ending: str, tool: str = "echo") -> AIMessage:
    """A reply of the model in one mode of tool calling."""
    made = [{"name": tool, "args": {"text": f"{number}.{at}"}, "id": f"c{number}{at}"} for at in range(calls)]
    if mode == "wave":
        plan = {
            "status": "continue" if calls else "done",
            "action": "look",
            "reasoning": text,
            "tools": [{"id": call["id"], "tool": tool, "args": call["args"], "needs": []} for call in made],
            "answer": "" if calls else text,
        }
        return AIMessage(json.dumps(plan))
    if mode == "text":
        written = [json.dumps({"name": tool, "arguments": call["args"]}) for call in made]
        pieces = [text, *(f"<tool_call>{call}</tool_call>" for call in written), after if calls else ""]
        return AIMessage("\n".join(filter(None, pieces)))
    extra: dict[str, Any] = {"refusal": "I will not."} if ending == "refusal" else {}
    metadata = {"finish_reason": ending} if ending in ("length", "content_filter") else {}
    return AIMessage(text, tool_calls=made, additional_kwargs=extra, response_metadata=metadata)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Random agents and scripts."""
    mode = draw(st.sampled_from(["native", "native", "text", "wave"]))
    texts = st.sampled_from(["", "Checking #.", "1 #.\n\nTwo. ", "No more actions.", '{"sum": 1}', "It is `#`.\n"])
    steps = draw(st.lists(st.tuples(texts, st.integers(1, 2), texts), max_size=3))
    ending = draw(st.sampled_from(["stop", "stop", "refusal", "length", "content_filter"]))
    paints = draw(st.booleans())
    tools = ["paint" if paints and draw(st.booleans()) else "echo" for _ in steps]
    replies = [
        reply(mode, text.replace("#", f"#{at}a"), calls, at, after.replace("#", f"#{at}b"), "stop", tools[at])
        for at, (text, calls, after) in enumerate(steps)
    ]
    replies.append(reply(mode, draw(texts).replace("#", "#9"), 0, len(steps), "", ending))
    limits = {"max_steps": draw(st.sampled_from([4, 4, 2, 1]))}
    limits |= draw(st.sampled_from([{}, {}, {"on_limit": "message"}, {"max_turns": 1}, {"max_tokens_total": 200}]))
    return Case(
        mode,
        draw(st.sampled_from(["auto", "compose", "direct"])),
        draw(st.booleans()),
        draw(st.booleans()),
        [*replies, *SPARE],
        draw(st.sampled_from([None, None, False])),
        draw(st.booleans()),
        paints,
        limits,
        draw(st.one_of(st.none(), st.none(), st.integers(0, len(replies)))),
        draw(st.sampled_from([False, False, False, True])),
        draw(st.sampled_from(["approve", "1: approve"])),
    )


def agent_of(case: Case) -> tuple[CompiledAgentGraph, Restarting]:
    """The agent of a case, with sessions in memory, and its model."""
    options: dict[str, Any] = {} if case.streaming is None else {"streaming": case.streaming}
    options["hangs_after"] = case.hangs_after
    model = Restarting(responses=list(case.replies), answered=case.answered, **options)
    config: dict[str, Any] = {"tool_calling": case.mode, "finalize": case.finalize, "model_retries": 0, **case.limits}

    @tool
    async def echo(text: str, config: RunnableConfig) -> str:
        """Repeat the text."""
        if case.aborts and text == "0.0":
            await Session(graph, config["configurable"]["thread_id"]).abort()
        return text

    graph = create_graph_agent(
        model,
        tools=[echo, ask],
        hooks=case.hooks,
        config=LoopConfig(**config, approve=["echo"] if case.approves else None, on_failure="answer"),
        response_format=ANSWER if case.structured else None,
        checkpointer=InMemorySaver(),
    )
    assert isinstance(graph, CompiledAgentGraph)
    return graph, model


@asynccontextmanager
async def doors_of(graph: CompiledAgentGraph, case: Case) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """The application of an agent, and a client of it."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield graph

    app = create_app(
        AgentSource("agent", "", "memory:", opened),
        settings=ServerSettings(show_calls=case.shows_calls),
    )
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http,
    ):
        yield app, http


def frames_in(text: str) -> list[dict[str, Any]]:
    """The JSON of a stream's events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def client_tools(client: Client, schema: dict[str, Any]) -> dict[str, Any]:
    """The field of a request that offers the client's tool."""
    return {"tools": [schema]} if client.paints else {}


async def openai_chat(client: Client, text: str) -> Any:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    if client.calls:
        function = {"name": "paint", "arguments": "{}"}
        calls = [{"id": id_, "type": "function", "function": function} for id_ in client.calls]
        results = [{"role": "tool", "tool_call_id": id_, "content": "painted"} for id_ in client.calls]
        messages += [{"role": "assistant", "tool_calls": calls}, *results]
    body = {"model": "agent", "messages": messages, "stream": client.stream, **client_tools(client, CLIENT_TOOL)}
    given = await client.http.post("/v1/chat/completions", json=body, headers={"x-session-id": client.session})
    client.calls = []
    if given.status_code != 200:
        return "failed"
    whole = frames_in(given.text) if client.stream else [given.json()]
    if any("error" in each for each in whole):
        return "failed"
    parts = [each["choices"][0]["delta" if client.stream else "message"] for each in whole]
    client.calls = [call["id"] for part in parts for call in part.get("tool_calls") or ()]
    return "".join(part.get("content") or "" for part in parts)


async def anthropic_messages(client: Client, text: str) -> Any:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    if client.calls:
        calls = [{"type": "tool_use", "id": id_, "name": "paint", "input": {}} for id_ in client.calls]
        results = [{"type": "tool_result", "tool_use_id": id_, "content": "painted"} for id_ in client.calls]
        messages += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    tool = {"name": "paint", "input_schema": PAINT["parameters"]}
    body = {"model": "agent", "messages": messages, "stream": client.stream, "max_tokens": 100}
    body |= client_tools(client, tool)
    given = await client.http.post("/v1/messages", json=body, headers={"x-session-id": client.session})
    client.calls = []
    if given.status_code != 200:
        return "failed"
    frames = frames_in(given.text) if client.stream else []
    if frames and frames[-1]["type"] == "error":
        return "failed"
    blocks = [frame["content_block"] for frame in frames if frame["type"] == "content_block_start"]
    blocks = blocks if client.stream else given.json()["content"]
    client.calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    texts = {at: block["text"] for at, block in enumerate(blocks) if block["type"] == "text"}
    for frame in frames:
        if frame["type"] == "content_block_delta" and frame["index"] in texts:
            texts[frame["index"]] += frame["delta"]["text"]
    return list(texts.values())


def output_of(client: Client, response: dict[str, Any]) -> Any:
    """The texts and the phases of a response's output, and its `output_text`."""
    client.calls = [item["call_id"] for item in response["output"] if item["type"] == "function_call"]
    if response["status"] == "failed":
        return "failed"
    items = [
        (item["type"], item.get("phase"), [part.get("text", part.get("refusal")) for part in item.get("content") or ()])
        for item in response["output"]
    ]
    parts = [part for item in response["output"] for part in item.get("content") or ()]
    return items, "".join(part.get("text", "") for part in parts)


def streamed_output(client: Client, frames: Sequence[dict[str, Any]]) -> Any:
    """Behaves like `output_of`, from the events of a stream; its deltas must join to the texts of its last event."""
    last = frames[-1]
    if last["type"] in ("error", "response.failed"):
        return "failed"
    deltas: dict[int, str] = {}
    for frame in frames:
        if frame["type"] in ("response.output_text.delta", "response.refusal.delta"):
            deltas[frame["output_index"]] = deltas.get(frame["output_index"], "") + frame["delta"]
    items, text = output_of(client, last["response"])
    joined = [(kind, phase, [deltas[at]] if kind == "message" else []) for at, (kind, phase, _) in enumerate(items)]
    assert joined == items
    return items, text


def response_body(client: Client, text: str) -> dict[str, Any]:
    """The fields of a request for a response, which ends the client's own calls."""
    results = [{"type": "function_call_output", "call_id": id_, "output": "painted"} for id_ in client.calls]
    client.calls = []
    return {"model": "agent", "input": results or text, **client_tools(client, {"type": "function", **PAINT})}


async def responses(client: Client, text: str, **options: Any) -> Any:
    body = {**response_body(client, text), "stream": client.stream, **options}
    given = await client.http.post("/v1/responses", json=body, headers={"x-session-id": client.session})
    if given.status_code != 200:
        return "failed"
    if client.stream:
        return streamed_output(client, frames_in(given.text))
    response = given.json()
    while response["status"] in ("queued", "in_progress"):
        await asyncio.sleep(0)
        response = (await client.http.get(f"/v1/responses/{response['id']}")).json()
    return output_of(client, response)


async def background(client: Client, text: str) -> Any:
    return await responses(client, text, background=True)


async def websocket(app: FastAPI, client: Client, text: str) -> Any:
    """A response over a WebSocket, without a network."""
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    given: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    await received.put({"type": "websocket.connect"})
    message = {"type": "response.create", **response_body(client, text), "metadata": {"session_id": client.session}}
    await received.put({"type": "websocket.receive", "text": json.dumps(message)})
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "ws",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
        "path": "/v1/responses",
        "raw_path": b"/v1/responses",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "subprotocols": [],
        "state": {},
    }
    serving = asyncio.create_task(app(scope, received.get, given.put))  # type: ignore[arg-type] # dicts are messages
    frames: list[dict[str, Any]] = []
    while not frames or frames[-1]["type"] not in ENDS:
        sent = await given.get()
        if sent["type"] == "websocket.send":
            frames.append(json.loads(sent["text"]))
    await received.put({"type": "websocket.disconnect", "code": 1000})
    await serving
    return streamed_output(client, frames)


async def a2a(http: httpx.AsyncClient, binding: str, context: dict[str, str], stream: bool, text: str) -> Any:
    """The state and the artifact of a task; updates `context` with its ids."""
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}], **context}
    headers = {"a2a-version": "1.0"}
    if binding == "rest":
        path = "/a2a/rest/message:stream" if stream else "/a2a/rest/message:send"
        given = await http.post(path, json={"message": message}, headers=headers)
        events = frames_in(given.text) if stream else [given.json()]
    else:
        method = "SendStreamingMessage" if stream else "SendMessage"
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
        given = await http.post("/a2a", json=body, headers=headers)
        events = [event["result"] for event in (frames_in(given.text) if stream else [given.json()])]
    parts: list[dict[str, Any]] = []
    state = ""
    for event in events:
        if (task := event.get("task")) is not None:
            context.update(taskId=task["id"], contextId=task["contextId"])
            state = task["status"]["state"]
            parts = [part for artifact in task.get("artifacts", ()) for part in artifact["parts"]]
        elif (update := event.get("artifactUpdate")) is not None:
            parts = [*(parts if update.get("append") else []), *update["artifact"].get("parts", [])]
        elif (status := event.get("statusUpdate")) is not None:
            state = status["status"]["state"]
    if state != INPUT_REQUIRED:
        context.pop("taskId", None)
    return state, "".join(part.get("text", "") for part in parts)


async def from_session(graph: CompiledAgentGraph, client: Client, text: str) -> Any:
    """The answer of a session's run, or the tokens of its stream without commentary."""
    of = Session(graph, client.session)
    asked = await of.interrupts()
    answer = {each.id: {"content": "painted"} for each in asked} if client.calls else text
    context = {"client_tools": [CLIENT_TOOL]} if client.paints else {}
    client.calls = []
    if not client.stream:
        whole = await (of.resume(answer, context=context) if asked else of.run(text, context=context))
        client.calls = [each.id for each in whole.interrupts] if whole.waiting == "client_tool" else []
        return whole.answer, whole.waiting
    tokens: list[Token] = []
    commentary: set[str] = set()
    stream = of.stream_resume(answer, context=context) if asked else of.stream(text, context=context)
    async with aclosing(stream) as parts:
        async for part in parts:
            match part:
                case Token():
                    tokens.append(part)
                case PlanText():
                    commentary.add(part.message_id)
                case Done(result):
                    client.calls = [each.id for each in result.interrupts] if result.waiting == "client_tool" else []
                    answered = "".join(token.text for token in tokens if token.message_id not in commentary)
                    return answered, result.waiting
    raise AssertionError("a stream ends with its result")


def asks_for_approval(answer: Any) -> bool:
    """Whether an answer of a chat API asks for approval."""
    return "for approval:" in str(answer)


async def conversation(
    model: Restarting,
    approval: str,
    send: Callable[[str], Awaitable[Any]],
    client: Client | None = None,
    waits: Callable[[Any], bool] = asks_for_approval,
) -> list[Any]:
    """The answers to a question, to the approvals that it leads to, and to the results of the client's own calls."""
    model.restart()
    answers = [await send("What is it?")]
    while (calls := client is not None and client.calls) or waits(answers[-1]):
        answers.append(await send("What is it?" if calls else approval))
    return answers


def delivered_again(found: dict[str, list[Any]]) -> dict[str, list[str]]:
    """The marks of the texts that a door delivered more than once in a conversation."""
    again: dict[str, list[str]] = {}
    for door, answers in found.items():
        texts = [answer[1] if door in ("responses", "background", "websocket") else answer for answer in answers]
        marks = re.findall(r"#\d[ab]?", str(texts))
        if repeated := sorted({mark for mark in marks if marks.count(mark) > 1}):
            again[door] = repeated
    return again


async def answers_of(case: Case, stream: bool) -> dict[str, list[Any]]:
    """The answers of each door, whole or streamed."""
    graph, model = agent_of(case)
    converse = partial(conversation, model, case.approval)
    found: dict[str, list[Any]] = {}
    async with doors_of(graph, case) as (app, http):
        for door in (openai_chat, anthropic_messages, responses, background):
            client = Client(http, door.__name__, stream, case.paints)
            found[door.__name__] = await converse(partial(door, client), client)
        client = Client(http, "socket", stream, case.paints)
        # This transport always streams.
        socket = partial(websocket, app, client) if stream else partial(responses, client)
        found["websocket"] = await converse(socket, client)
        for binding in ("jsonrpc", "rest"):
            context: dict[str, str] = {}
            found[f"a2a {binding}"] = await converse(
                partial(a2a, http, binding, context, stream), waits=lambda answer: answer[0] == INPUT_REQUIRED
            )
        client = Client(http, "session", stream, case.paints)
    found["session"] = await converse(
        partial(from_session, graph, client), client, lambda answer: answer[1] == "approval"
    )
    return found


async def both(case: Case) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The streamed and the whole answers."""
    return await answers_of(case, True), await answers_of(case, False)
