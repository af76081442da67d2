"""An MCP server over stdio that writes its lines by hand, so that they can be malformed in any way.

Tools: `raw` writes the given line, with `ID` replaced by the id of its request; `hold` never answers;
`add` makes the list of tools one longer and announces it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

READ = {"readOnlyHint": True}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "raw",
        "inputSchema": {"type": "object", "properties": {"line": {"type": "string"}, "times": {"type": "integer"}}},
    },
    {"name": "hold", "inputSchema": {"type": "object"}},
    {"name": "add", "annotations": READ, "inputSchema": {"type": "object"}},
]


def write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def send(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode())


def call(id_: int, name: str, arguments: dict[str, Any]) -> None:
    done = {"content": [{"type": "text", "text": f"{name} done"}]}
    if name == "raw":
        line = arguments["line"].replace("ID", str(id_)).encode("latin-1")
        write(line * int(arguments.get("times", 1)))
    elif name == "add":
        number = len(TOOLS)
        TOOLS.append({"name": f"extra_{number}", "annotations": READ, "inputSchema": {"type": "object"}})
        send(method="notifications/tools/list_changed")
        send(id=id_, result=done)
    elif name != "hold":
        send(id=id_, result=done)


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                capabilities = {"tools": {"listChanged": True}}
                version = message["params"]["protocolVersion"]
                info = {"name": "raw", "version": "1"}
                result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
                send(id=message["id"], result=result)
            case "tools/list":
                send(id=message["id"], result={"tools": TOOLS})
            case "tools/call":
                params = message["params"]
                call(message["id"], params["name"], params.get("arguments") or {})


if __name__ == "__main__":
    main()
