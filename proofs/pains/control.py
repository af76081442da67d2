"""The control: a loop of 150 lines of code that has every row of the table, so each scenario can be passed."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter, validate_call

from proofs.pains.worker import Reply, Task

PACKAGE = ""
LACKS: tuple[str, ...] = ()
OPT_IN = ""
LONGEST = 20_000
"""Characters of a result."""
Message = dict[str, Any]


class Peer:
    """One session, in a file of JSON lines."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.file = Path(task.folder) / "history.jsonl"
        self.history: list[Message] = []
        if self.file.exists():
            self.history = [json.loads(line) for line in self.file.read_text().splitlines()]
        self.tools = {each.__name__: validate_call(each) for each in task.functions}
        self.lock = asyncio.Lock()

    def add(self, message: Message) -> None:
        """Append one message, and store it."""
        self.history.append(message)
        with self.file.open("a") as file:
            file.write(json.dumps(message) + "\n")

    def open_calls(self) -> list[Message]:
        """The calls without a result, in order."""
        done = {each.get("tool_call_id") for each in self.history}
        calls = [call for each in self.history for call in each.get("tool_calls", ())]
        return [call for call in calls if call["id"] not in done]

    def add_result(self, call: Message, text: str) -> None:
        """Append the result of a call."""
        self.add({"role": "tool", "tool_call_id": call["id"], "content": text})

    def settle(self) -> None:
        """Give each call of an unfinished run a result."""
        for call in self.open_calls():
            self.add_result(call, "Interrupted; it may have taken effect.")

    async def ask(self, text: str, *, streamed: bool = False) -> Reply:
        """Run one input; a second one waits."""
        async with self.lock:
            self.settle()
            self.add({"role": "user", "content": text})
            return await self.loop(streamed)

    async def stream(self, text: str) -> Reply:
        """Run one input over a stream."""
        return await self.ask(text, streamed=True)

    async def resume(self) -> Reply:
        """Carry on after a crash."""
        self.settle()
        return await self.loop(False)

    async def decide(self, decisions: list[bool | int]) -> Reply:
        """Run the approved calls that still wait."""
        for call, made in zip(self.open_calls(), decisions, strict=False):
            if made is False:
                self.add_result(call, "A person rejected this call.")
            else:
                edits = {} if made is True else {"amount": made}
                await self.call(call, edits)
        return await self.loop(False)

    async def loop(self, streamed: bool) -> Reply:
        """Request replies and run their calls, until there are none."""
        limits, tokens, step = self.task.limits, 0, 0
        while True:
            last = step >= limits.get("steps", 10) or tokens > 0.7 * limits.get("tokens", 1_000_000)
            message, finish, used = await self.request(streamed, offered=not last)
            tokens, step = tokens + used, step + 1
            calls = message.get("tool_calls") or [] if finish in ("stop", "tool_calls") and not last else []
            text = message.get("content") or ""
            if finish == "stop" and not text and not calls and step < 5:
                continue
            if not calls:
                self.add({"role": "assistant", "content": text})
                return Reply(text, tokens, "" if finish == "stop" else finish)
            for index, call in enumerate(calls):
                call["id"] = f"call_{len(self.history)}_{index}"
            self.add({"role": "assistant", "content": text, "tool_calls": calls})
            waiting = [call for call in calls if call["function"]["name"] in self.task.approve]
            await asyncio.gather(*(self.call(call, {}) for call in calls if call not in waiting))
            if waiting:
                return Reply("", tokens, "", [json.loads(call["function"]["arguments"]) for call in waiting])

    async def call(self, call: Message, edits: Message) -> None:
        """Run one call; whatever happens becomes its result."""
        try:
            function = self.tools[call["function"]["name"]]
            arguments = json.loads(call["function"]["arguments"] or "{}") | edits
            running = inspect.iscoroutinefunction(inspect.unwrap(function))
            work = function(**arguments) if running else asyncio.to_thread(function, **arguments)
            result = await asyncio.wait_for(work, self.task.limits.get("tool_timeout_s", 60))
        except Exception as error:  # noqa: BLE001 - a tool may raise anything; the model must read it
            result = f"Error: {error!r}"
        text = result if isinstance(result, str) else repr(result)
        text = text.encode(errors="replace").decode()
        if len(text) > LONGEST:
            text = f"{text[: LONGEST // 2]}\n[cut]\n{text[-LONGEST // 2 :]}"
        self.add_result(call, text)

    async def request(self, streamed: bool, *, offered: bool) -> tuple[Message, str, int]:
        """One reply: the message, its finish reason, and the tokens used."""
        body: Message = {"model": "stub", "messages": self.history, "stream": streamed}
        if offered and self.tools:
            body["tools"] = [_schema(name, function) for name, function in self.tools.items()]
        if streamed:
            body["stream_options"] = {"include_usage": True}
        url = f"{self.task.url}/chat/completions"
        async with httpx.AsyncClient(timeout=60) as client, client.stream("POST", url, json=body) as response:
            if "event-stream" in response.headers["content-type"]:
                return await _join(response.aiter_lines())
            reply = json.loads(await response.aread())
        if "error" in reply:
            raise RuntimeError(reply["error"]["message"])
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        return choice["message"], choice["finish_reason"], usage.get("total_tokens", 0)


def _schema(name: str, function: Any) -> Message:
    parameters = TypeAdapter(inspect.unwrap(function)).json_schema()
    return {"type": "function", "function": {"name": name, "description": function.__doc__, "parameters": parameters}}


async def _join(lines: AsyncIterator[str]) -> tuple[Message, str, int]:
    """The reply of a stream; one without a finish reason was cut off."""
    text, calls, finish, tokens = "", dict[int, Message](), "lost", 0
    async for line in lines:
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        tokens = (event.get("usage") or {}).get("total_tokens", tokens)
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
            for piece in choice["delta"].get("tool_calls") or ():
                empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                call = calls.setdefault(piece["index"], empty)["function"]
                call["name"] += piece["function"].get("name") or ""
                call["arguments"] += piece["function"].get("arguments") or ""
    return {"content": text, "tool_calls": list(calls.values())}, finish, tokens
