"""Connections to the demo server, and the means to run it over HTTP, for the MCP tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from langchain_core.tools import BaseTool

from tests.support.ports import reserved_port
from tests.support.warm_process import start_python, warm_python

ROOT = Path(__file__).parents[3]
SCRIPT = str(Path(__file__).with_name("demo_server.py"))


def stdio(folder: Path, **extra: Any) -> dict[str, Any]:
    """A stdio connection whose server notes its starts and effects in `folder`."""
    return {"transport": "stdio", "command": warm_python(), "args": [SCRIPT], "env": notes(folder), **extra}


def asking(folder: Path | str, **extra: Any) -> dict[str, Any]:
    """A stdio connection to a server that asks people, and notes its effects in `folder`."""
    script = str(Path(__file__).with_name("asking_server.py"))
    env = {"EFFECTS_FILE": f"{folder}/effects"}
    return {"transport": "stdio", "command": warm_python(), "args": [script], "env": env, **extra}


def asking_servers(folder: Path | str) -> dict[str, dict[str, Any]]:
    """Two such servers; calls of the second are repeated, and its tools begin with `re`."""
    return {"hotel": asking(folder), "again": asking(folder, elicitation="repeat", tool_prefix="re")}


def notes(folder: Path) -> dict[str, str]:
    return {
        "STARTS_FILE": str(folder / "starts"),
        "EFFECTS_FILE": str(folder / "effects"),
        "STATUS_FILE": str(folder / "status"),
    }


def lines(folder: Path, name: str) -> list[str]:
    """The lines of a notes file; none while it is missing."""
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


class HttpServer:
    """The demo server over HTTP on a free loopback port, which it keeps when it is started again."""

    def __init__(self, folder: Path, transport: str = "streamable-http", *options: str, **env: str) -> None:
        program = env.pop("PROGRAM", "demo_server")
        self._command = [f"tests.support.mcp_servers.{program}", "--transport", transport, *options]
        self._env = {**os.environ, **notes(folder), **env}
        self._path = "/mcp" if transport == "streamable-http" else "/sse"
        self._adapters_name = transport.replace("-", "_")
        self._reserved = ExitStack()
        self._port = 0

    async def start(self) -> None:
        """Return when it accepts connections."""
        command = [*self._command, "--port", str(self._port)]
        reader, writer = os.pipe()
        try:
            self._process = start_python(
                command, cwd=ROOT, env=self._env, stdin=subprocess.DEVNULL, stdout=writer, stderr=2
            )
        finally:
            os.close(writer)
        self._printed = os.fdopen(reader)
        line = await asyncio.to_thread(self._printed.readline)
        assert line == f"PORT {self._port}\n", f"the server did not start: {line!r}"

    def kill(self) -> None:
        """Kill it and return when it is gone."""
        self._process.kill()
        self._process.wait()
        self._printed.close()

    async def ended(self) -> None:
        """Return when the process has exited by itself, and with it its listening socket."""
        await asyncio.to_thread(self._process.wait)

    def connection(self, **extra: Any) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._port}{self._path}"
        return {"transport": self._adapters_name, "url": url, **extra}

    async def __aenter__(self) -> HttpServer:
        self._port = self._reserved.enter_context(reserved_port())
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._reserved.close()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a state, two minutes at most."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)


def gone(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False


async def text(tools: list[BaseTool], name: str, **arguments: Any) -> str:
    """Call a tool and return the text of its only block."""
    tool = next(tool for tool in tools if tool.name == name)
    (block,) = await tool.ainvoke(arguments)
    return str(block["text"])
