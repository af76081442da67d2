"""MCP servers whose lists of tools, or whose schemas, are too large to be offered."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from graph_agent.mcp import open_mcp_tools

SERVER = """
import json, sys
TOOLS, PAGE = json.loads(open(sys.argv[1]).read()), int(sys.argv[2])
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    if request["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "many", "version": "1"}
    else:
        start = int((request.get("params") or {}).get("cursor", 0))
        result = {"tools": TOOLS[start : start + PAGE]}
        if start + PAGE < len(TOOLS):
            result["nextCursor"] = str(start + PAGE)
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


def server(folder: Path, tools: list[dict[str, Any]], page: int) -> dict[str, Any]:
    (folder / "server.py").write_text(SERVER)
    (folder / "tools.json").write_text(json.dumps(tools))
    arguments = [str(folder / "server.py"), str(folder / "tools.json"), str(page)]
    return {"transport": "stdio", "command": sys.executable, "args": arguments}


@pytest.mark.parametrize("page", [20_000, 700])
async def test_a_server_offers_a_bounded_number_of_tools(
    tmp_path: Path, page: int, caplog: pytest.LogCaptureFixture
) -> None:
    listed = [{"name": f"tool_{number}", "inputSchema": {"type": "object"}} for number in range(20_000)]
    async with open_mcp_tools({"many": server(tmp_path, listed, page)}) as tools:
        names = [tool.name for tool in tools]

    assert (names, tools.failed) == ([f"tool_{number}" for number in range(1_000)], {})
    assert "lists more than 1000 tools" in caplog.text


async def test_a_schema_whose_references_double_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = {
        f"l{level}": {"type": "object", "properties": {key: {"$ref": f"#/$defs/l{level + 1}"} for key in "ab"}}
        for level in range(60)
    }
    doubling = {"type": "object", "properties": {"x": {"$ref": "#/$defs/l0"}}, "$defs": {**parts, "l60": {}}}
    cyclic = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a0"}},
        "$defs": {
            f"a{node}": {"properties": {f"p{to}": {"$ref": f"#/$defs/a{to}"} for to in range(14)}} for node in range(14)
        },
    }
    plain = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}}
    listed = [
        {"name": name, "inputSchema": schema}
        for name, schema in (("doubling", doubling), ("cyclic", cyclic), ("plain", plain))
    ]
    async with open_mcp_tools({"many": server(tmp_path, listed, 3)}) as tools:
        names = [tool.name for tool in tools]

    assert (names, caplog.text.count("has more than 50000 parts")) == (["plain"], 2)
