"""A real Restate server in a temporary folder, reached through Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.required import unavailable

VERSION = "1.7.12"
BINARY = "TEST_RESTATE_SERVER"
"""Variable with the path of a server's binary, for machines without npm."""
WITHIN_S = 120
_SYSTEMS = {"Linux": "linux", "Darwin": "darwin"}
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_NODE = "n"


def server_binary() -> Path:
    """Return the server's binary, downloaded from npm into a cache folder once; without one, the test does not run."""
    if given := os.environ.get(BINARY):
        return Path(given)
    system, machine = _SYSTEMS.get(platform.system()), _MACHINES.get(platform.machine().lower())
    if system is None or machine is None:
        unavailable(f"npm has no Restate server for {platform.system()} on {platform.machine()}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graph-agent" / f"restate-{VERSION}"
    # The package of one platform has no dependencies and no install scripts.
    package = f"@restatedev/restate-server-{system}-{machine}"
    binary = cache / "node_modules" / package / "bin" / "restate-server"
    if binary.exists():
        return binary
    if (npm := shutil.which("npm")) is None:
        unavailable(f"no npm to download the Restate server with; install npm, or set {BINARY} to a server's binary")
    cache.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(cache)]
    done = subprocess.run(
        [*command, f"{package}@{VERSION}"], check=False, capture_output=True, text=True, timeout=WITHIN_S
    )
    if done.returncode != 0 or not binary.exists():
        unavailable(f"npm could not download {package}@{VERSION}: {done.stderr.strip()[-300:]}")
    return binary


class RestateServer:
    """A server under test.

    Args:
        folder: Its folder; short, because a socket's path has at most 107 bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = server_binary()
        self._process: asyncio.subprocess.Process | None = None
        self.admin = self._client("admin")
        self.ingress = self._client("ingress")

    def _client(self, name: str) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(self._folder / _NODE / f"{name}.sock"))
        return httpx.AsyncClient(transport=transport, base_url=f"http://{name}", timeout=WITHIN_S)

    async def start(self) -> None:
        """Start it, again after `kill`, and wait until it takes invocations."""
        environment = {
            **os.environ,
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE": "256MB",
            "RESTATE_LOG_DISABLE_ANSI_CODES": "true",
        }
        options = ["--base-dir", str(self._folder), "--listen-mode", "unix", "--node-name", _NODE, "--no-logo"]
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(str(self._binary), *options, "--default-num-partitions", "4"), env=environment, stdout=log, stderr=log
            )
        async with asyncio.timeout(WITHIN_S):
            for client, path in ((self.admin, "/health"), (self.ingress, "/restate/health")):
                while not await self._is_up(client, path):
                    assert self._process.returncode is None, self.log()
                    await asyncio.sleep(0.05)

    @staticmethod
    async def _is_up(client: httpx.AsyncClient, path: str) -> bool:
        try:
            return (await client.get(path)).is_success
        except httpx.TransportError:
            return False

    async def kill(self) -> None:
        """End it at once, as a crash does."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def close(self) -> None:
        """End it, and close the clients."""
        await self.kill()
        await self.admin.aclose()
        await self.ingress.aclose()

    async def register(self, uri: str) -> None:
        """Register the one address of all workers."""
        reply = await self.admin.post("/deployments", json={"uri": uri})
        assert reply.is_success, reply.text

    async def call(self, path: str, body: Any = None, *, key: str = "") -> httpx.Response:
        """Invoke a handler and wait for its result; `path` is `OBJECT/SESSION/HANDLER`."""
        headers = {"idempotency-key": key} if key else {}
        return await self.ingress.post(f"/{path}", json=body, headers=headers)

    async def send(self, path: str, body: Any = None) -> str:
        """Invoke a handler, and return the invocation's id."""
        reply = await self.ingress.post(f"/{path}/send", json=body)
        assert reply.is_success, reply.text
        return str(reply.json()["invocationId"])

    async def output(self, invocation: str) -> httpx.Response:
        """Wait for the result of an invocation."""
        return await self.ingress.get(f"/restate/invocation/{invocation}/attach")

    async def cancel(self, invocation: str) -> None:
        """Cancel an invocation."""
        reply = await self.admin.patch(f"/invocations/{invocation}/cancel")
        assert reply.is_success, reply.text

    async def purge(self, invocation: str) -> None:
        """Make the server forget an invocation that has ended, and its idempotency key."""
        reply = await self.admin.patch(f"/invocations/{invocation}/purge")
        assert reply.is_success, reply.text

    def log(self) -> str:
        """The end of its log."""
        return (self._folder / "log").read_text()[-4000:]


@asynccontextmanager
async def restate_server() -> AsyncIterator[RestateServer]:
    """Run a server for the context."""
    folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))
    server = RestateServer(folder)
    try:
        await server.start()
        yield server
    finally:
        await server.close()
        shutil.rmtree(folder, ignore_errors=True)
