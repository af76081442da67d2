"""Start the team, each agent a process of its own, and ask the coordinator over A2A.

`python examples/research_team/team.py "How many times heavier is Jupiter than Saturn?"`
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from a2a.client import create_client
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState

FOLDER = Path(__file__).parent
QUESTIONS = (
    "How many times heavier is Jupiter than Saturn?",
    "How long is a day on Mars, and what is 24.7 - 24?",
)


@asynccontextmanager
async def agent(name: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """Run one agent of the team in a process of its own, on a free port; yield its address.

    Args:
        name: Its file's name, without `.yaml`.
        environment: Variables in addition to this process's own, e.g. `DEBUG_MOCK_RESPONSES`.

    Raises:
        RuntimeError: When it does not start.
    """
    command = [sys.executable, "-m", "graph_agent.cli", "a2a", "--config", str(FOLDER / f"{name}.yaml"), "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, **(environment or {})}
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode().strip()
        if " listens at " not in line:
            raise RuntimeError(f"The {name} did not start; see its message above.")
        yield line.partition(" listens at ")[2]
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@asynccontextmanager
async def team(**environments: Mapping[str, str]) -> AsyncIterator[str]:
    """Run the whole team; yield the coordinator's address.

    Args:
        environments: Variables for single agents, by their names.
    """
    async with AsyncExitStack() as stack:
        librarian = await stack.enter_async_context(agent("librarian", environments.get("librarian")))
        analyst = await stack.enter_async_context(agent("analyst", environments.get("analyst")))
        where = {"LIBRARIAN_URL": librarian, "ANALYST_URL": analyst}
        yield await stack.enter_async_context(agent("coordinator", {**where, **environments.get("coordinator", {})}))


async def ask(url: str, question: str) -> AsyncGenerator[str]:
    """Ask an agent with the SDK's client; yield its progress line by line, and its answer last."""
    message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=question)])
    answer = ""
    async with await create_client(url) as client:
        async for event in client.send_message(SendMessageRequest(message=message)):
            if event.HasField("artifact_update") and event.artifact_update.last_chunk:
                answer = "".join(part.text for part in event.artifact_update.artifact.parts)
            elif event.HasField("status_update"):
                status = event.status_update.status
                if words := "".join(part.text for part in status.message.parts):
                    yield f"  {words}"
                if status.state == TaskState.TASK_STATE_FAILED:
                    answer = "The coordinator failed."
    yield answer


async def main(questions: list[str]) -> None:
    """Ask the team some questions."""
    async with team() as url:
        for question in questions:
            print(f"\n> {question}")
            async for line in ask(url, question):
                print(line)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(QUESTIONS)))
