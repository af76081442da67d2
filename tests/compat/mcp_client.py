"""Responses of a server to the client of the MCP SDK 2.x, in both kinds of versions, as JSON: URL, key.

It also starts `graph-agent mcp` with an agent whose calls wait for approval.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.compat import write

# Not among the project's development dependencies, which have the SDK 1.x.
mcp: Any = import_module("mcp")
types: Any = import_module("mcp_types")
httpx: Any = import_module("httpx2")
transport: Any = import_module("mcp.client.streamable_http")

STEPS = '!call look_up {"key": "k"}\n!then look_up {"key": "l"}'
WAVE = '!call look_up {"key": "k"}\n!call look_up {"key": "l"}'
AGENT = {
    "name": "parrot",
    "model": "tests.interfaces.server.parrot:make",
    "tools": ["tests.interfaces.server.parrot:look_up"],
    "config": {"approve": ["look_up"]},
}


async def asked(connection: Any, mode: str, text: str) -> list[Any]:
    """The version, tools, progress, questions, status and decisions of a call."""
    progress: list[float] = []
    questions: list[str] = []

    async def note(number: float, total: float | None, message: str | None) -> None:
        progress.append(number)

    async def person(context: Any, params: Any) -> Any:
        questions.append(params.message.partition(": ")[2])
        content = {"decision": "approve" if '"k"' in params.message else "reject"}
        return types.ElicitResult(action="accept", content=content)

    async with mcp.Client(connection, mode=mode, elicitation_callback=person) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("parrot", {"input": text}, progress_callback=note)
        uri = f"graph-agent://sessions/{result.structured_content['session']}"
        [content] = (await client.read_resource(uri)).contents
        state: Mapping[str, Any] = json.loads(content.text)
        statuses = sorted(event["status"] for event in state["events"] if event["type"] == "tool_result")
        return [client.protocol_version, tools, progress, sorted(questions), state["status"], statuses]


async def over_http(url: str, key: str, mode: str) -> list[Any]:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        return await asked(transport.streamable_http_client(f"{url}/mcp", http_client=http), mode, STEPS)


async def over_stdio(mode: str) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.yaml"
        file.write_text(json.dumps(AGENT))
        args = ["-m", "graph_agent.cli", "mcp", "--config", str(file), "--db", "memory:"]
        env = {"PYTHONPATH": os.environ["PYTHONPATH"]}
        server = mcp.StdioServerParameters(command=os.environ["GRAPH_AGENT_PYTHON"], args=args, env=env)
        return await asked(server, mode, WAVE)


async def main(url: str, key: str) -> None:
    report = {f"{mode} over HTTP": await over_http(url, key, mode) for mode in ("auto", "legacy")}
    write(report | {f"{mode} over stdio": await over_stdio(mode) for mode in ("auto", "legacy")})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
