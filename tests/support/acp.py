"""An agent in a process of its own, driven over ACP by the client of the protocol's Python package."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, connect_to_agent, text_block
from acp.schema import AllowedOutcome, DeniedOutcome, PermissionOption, RequestPermissionResponse, ToolCallUpdate

from tests.support.warm_process import start_python

WITHIN_S = 120
ROOT = Path(__file__).parents[2]
AGENT = """
name: desk
model: openai:gpt-4o-mini
tools: ["desk:echo", "desk:send", "desk:hold", "desk:shout", "desk:ask"]
config: {approve: [send], max_steps: 3}
db: sqlite:///desk.db
"""
TOOLS = '''
import asyncio
import subprocess
import sys
from pathlib import Path

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.types import interrupt

from graph_agent import ScriptedChatModel


@tool
def echo(text: str) -> str:
    """Repeat a text."""
    return f"echo {text}"


echo.metadata = {"effect": "read"}


def send(to: str) -> str:
    """Send a mail."""
    with Path("sent").open("a") as file:
        file.write(to + "\\n")
    return f"Sent to {to}."


async def wire(to: str) -> str:
    """Send money; the first time, the bank does not answer."""
    with Path("sent").open("a") as file:
        file.write(to + "\\n")
    if len(Path("sent").read_text().split()) == 1:
        await asyncio.sleep(3600)
    return f"Sent to {to}."


wire.metadata = {"timeout_s": 0.1}


async def hold(file: str) -> str:
    """Wait for a file."""
    Path(f"{file}.begun").touch()
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    return "held"


def shout() -> str:
    """Print."""
    print("from Python", flush=True)
    subprocess.run([sys.executable, "-c", "import sys; print('from a child', sys.stdin.read())"], check=True)
    return "shouted"


def ask() -> str:
    """Ask the person."""
    return f"The person said {interrupt('Which colour?')}."


def sign(text: str) -> str:
    """Sign a text, once a person has approved it."""
    request = {"name": "sign", "args": {"text": text}, "description": "Sign it."}
    review = {"action_name": "sign", "allowed_decisions": ["approve", "reject"]}
    return str(interrupt({"action_requests": [request], "review_configs": [review]}))


class Refused(ScriptedChatModel):
    async def _astream(self, *args, **kwargs):
        raise ValueError("the provider refused")
        yield


def refused():
    """Return a model that fails."""
    return Refused([])


def filtered():
    """Return a model whose answer its provider cut off."""
    return ScriptedChatModel([AIMessage("I would", response_metadata={"finish_reason": "content_filter"})], cycle=True)


def unwilling():
    """Return a model that refuses to answer."""
    return ScriptedChatModel([AIMessage("", additional_kwargs={"refusal": "I will not."})], cycle=True)


class Blocked(ScriptedChatModel):
    async def _astream(self, *args, **kwargs):
        raise ValueError("content_filter: the prompt was blocked")
        yield


def blocked():
    """Return a model whose provider refuses the request."""
    return Blocked([])


def by_hand(call):
    """Let a person give the result of a call."""
    return {"allowed_decisions": ["respond"]} if call["name"] == "send" else False


def thinking():
    """Return a model that reasons."""
    blocks = [{"type": "reasoning", "reasoning": "Let me see."}, {"type": "text", "text": "I see."}]
    return ScriptedChatModel([AIMessage(blocks)], cycle=True)
'''

Decide = Callable[[ToolCallUpdate, Sequence[PermissionOption]], Awaitable[RequestPermissionResponse]]


def call(id_: str, name: str, **arguments: Any) -> dict[str, Any]:
    """A call in a script."""
    return {"id": id_, "name": name, "arguments": arguments}


def calls(*made: dict[str, Any], text: str = "") -> str:
    """A reply of a script that makes calls."""
    return json.dumps({"tool_calls": made, "content": text})


def select(option: str, **extra: Any) -> Decide:
    """Answer each permission request by an option."""

    async def decide(*_: Any) -> RequestPermissionResponse:
        outcome = AllowedOutcome(outcome="selected", option_id=option, field_meta=extra or None)
        return RequestPermissionResponse(outcome=outcome)

    return decide


@dataclass
class Editor:
    """A client that records what it receives."""

    decide: Decide = field(default_factory=lambda: select("allow"))
    updates: list[dict[str, Any]] = field(default_factory=list)
    """The updates, as JSON."""
    asked: list[tuple[str | None, list[str]]] = field(default_factory=list)
    """Title of each call that a permission was requested for, and the kinds of the options."""
    raw: list[dict[str, Any]] = field(default_factory=list)
    """Every message that it received."""
    connection: Any = None
    process: Any = None
    stdin: Any = None
    session_id: str = ""

    def observe(self, event: Any) -> None:
        """Record a message."""
        if event.direction == "incoming":
            self.raw.append(event.message)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        self.asked.append((tool_call.title, [option.kind for option in options]))
        return await self.decide(tool_call, options)

    async def begin(self) -> str:
        """Initialize the connection and begin a session; return its id."""
        await self.within(self.connection.initialize(protocol_version=PROTOCOL_VERSION))
        self.session_id = (await self.within(self.connection.new_session(cwd="/", mcp_servers=[]))).session_id
        return self.session_id

    async def load(self, session_id: str) -> None:
        """Initialize the connection and load a session."""
        await self.within(self.connection.initialize(protocol_version=PROTOCOL_VERSION))
        self.session_id = session_id
        await self.within(self.connection.load_session(cwd="/", session_id=session_id, mcp_servers=[]))

    async def prompt(self, text: str) -> str:
        """Send a prompt; return the reason of its end."""
        response = await self.within(self.connection.prompt(session_id=self.session_id, prompt=[text_block(text)]))
        return str(response.stop_reason)

    async def within(self, work: Awaitable[Any]) -> Any:
        """Await within a bounded time."""
        async with asyncio.timeout(WITHIN_S):
            return await work

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a state."""
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def end(self) -> int:
        """Wait for the end of the process; return its exit status."""
        return int(await asyncio.to_thread(self.process.wait, WITHIN_S))

    def outline(self) -> list[str]:
        """What was received, a line each, pieces of a text joined; without plans and ends that lack their output."""
        lines: list[list[str]] = []
        for update in self.updates:
            kind = update["sessionUpdate"]
            if kind in ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk"):
                key, text = f"{kind.split('_')[1 if 'thought' in kind else 0]}", update["content"].get("text", "?")
                if lines and lines[-1][:2] == [key, update.get("messageId", "")]:
                    lines[-1][2] += text
                else:
                    lines.append([key, update.get("messageId", ""), text])
            elif kind in ("tool_call", "tool_call_update"):
                content = "".join(each["content"]["text"] for each in update.get("content", ()))
                if content or update["status"] in ("pending", "in_progress"):
                    lines.append([update["toolCallId"], "", f"{update['status']} {content}".strip()])
        return [f"{key}: {text}" for key, _, text in lines]

    def messages(self) -> list[str]:
        """The agent's messages."""
        return [line.removeprefix("agent: ") for line in self.outline() if line.startswith("agent: ")]

    def plans(self) -> list[list[str]]:
        """The statuses of each plan."""
        plans = [each["entries"] for each in self.updates if each["sessionUpdate"] == "plan"]
        return [[entry["status"] for entry in plan] for plan in plans]

    def answer(self) -> str:
        """The text of the newest message."""
        return self.messages()[-1]


def cancelled() -> RequestPermissionResponse:
    """The answer of a client whose prompt is cancelled."""
    return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))


def prepare(folder: Path, agent: str = AGENT) -> None:
    """Write the agent file and its tools."""
    (folder / "agent.yaml").write_text(agent)
    (folder / "desk.py").write_text(TOOLS)


def variables(script: Sequence[str] | None) -> dict[str, str]:
    """The variables of the process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**inherited, **({} if script is None else {"DEBUG_MOCK_RESPONSES": json.dumps(script)})}


@asynccontextmanager
async def editor(folder: Path, script: Sequence[str] | None, decide: Decide | None = None) -> AsyncIterator[Editor]:
    """A client with an agent, in a process of its own until the context ends."""
    given, writes = os.pipe()
    reads, printed = os.pipe()
    with (folder / "log").open("ab") as log:
        streams = {"stdin": given, "stdout": printed, "stderr": log.fileno()}
        process = start_python(["graph_agent.cli", "acp"], cwd=folder, env=variables(script), **streams)
    os.close(given)
    os.close(printed)
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    stdout, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reads, "rb"))
    stdin, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(writes, "wb")
    )
    client = Editor(decide or select("allow"), process=process, stdin=stdin)
    writer = asyncio.StreamWriter(stdin, protocol, None, loop)
    client.connection = connect_to_agent(client, writer, reader, observers=[client.observe])  # type: ignore[arg-type]  # it has what this agent calls
    try:
        yield client
        stdin.close()
        await client.end()
    finally:
        process.kill()
        await client.connection.close()
        stdin.close()
        stdout.close()  # the end of the output may come after that of the process
