"""Running the server: one process, or several on one database."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp

from graph_agent.addresses import bound, url_of
from graph_agent.collector import spare_what_is_loaded
from graph_agent.command_log import log_at
from graph_agent.credential_headers import check_headers
from graph_agent.credentials import CredentialSource
from graph_agent.loop_executor import use_daemon_threads_of_own_loop
from graph_agent.server.app import create_app
from graph_agent.server.connections import BoundedProtocol
from graph_agent.server.keys import read_keys
from graph_agent.server.settings import ServerSettings
from graph_agent.server.sources import AgentSource, of_file
from graph_agent.server.starting import STARTUP_FAILURE, PlainStart, has_failed
from graph_agent.server.supervisor import Supervisor
from graph_agent.server.workers import check_workers, shared_folder, sharing, stop_without_parent

_CONFIG, _DB, _KEYS, _SETTINGS = (
    "GRAPH_AGENT_SERVE_CONFIG",
    "GRAPH_AGENT_SERVE_DB",
    "GRAPH_AGENT_SERVE_KEYS_FILE",
    "GRAPH_AGENT_SERVE_SETTINGS",
)
_LOG_LEVEL, _CREDENTIALS = "GRAPH_AGENT_SERVE_LOG_LEVEL", "GRAPH_AGENT_SERVE_CREDENTIALS"
"""Environment variables that tell worker processes what they serve; no key and no credential is in them."""


def serve(
    config: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    db: str | None = None,
    workers: int = 1,
    keys_file: Path | None = None,
    settings: ServerSettings | None = None,
    credentials: Mapping[str, CredentialSource] | None = None,
    log_level: str | None = None,
) -> None:
    """Serve an agent file until the process is asked to stop.

    Args:
        config: The agent file.
        host: The address to bind to; any but this machine's own needs keys.
        port: The port.
        db: Another database than the file's.
        workers: Processes.
        keys_file: A file with API keys, beside those of `GRAPH_AGENT_API_KEYS`.
        settings: Limits and times; its keys are not read.
        credentials: Credential name → where it is, in place of the file's own of the same names.
        log_level: Name of the level from which this package's log and uvicorn's are written to standard error, in
            every process; None for WARNING, and INFO of uvicorn's, unless the program has set logging up itself.

    Raises:
        ConfigError: When the file, the keys, a credential, the address or the database cannot be used; nothing is bound
            yet.
        SystemExit: With `STARTUP_FAILURE` when the agent or its database cannot be opened; the log says why.
    """
    settings = settings or ServerSettings()
    source = of_file(config, credentials)
    _checked(source, settings, keys_file, host)
    check_workers(workers, db or source.db)
    # uvicorn looks last, when the agent's MCP servers have been started for nothing.
    bound(host, port).close()
    # Not in our own environment alone: uvicorn starts its workers as new processes.
    os.environ[_CONFIG] = str(config.resolve())
    os.environ[_DB] = db or ""
    os.environ[_KEYS] = str(keys_file.resolve()) if keys_file else ""
    os.environ[_SETTINGS] = settings.model_dump_json(exclude={"keys"})
    os.environ[_CREDENTIALS] = json.dumps({name: source.env for name, source in (credentials or {}).items()})
    os.environ[_LOG_LEVEL] = log_level or ""
    log_at(log_level)
    app = "graph_agent.server.serve:app_from_environment"
    options = {"host": host, "port": port, **_options(settings, log_level or "info")}
    with sharing(workers) as shared:
        if workers == 1:
            uvicorn.run(app, workers=1, **options)
            return
        # A worker that still imports, on a busy machine, is not to be killed.
        made = uvicorn.Config(app, workers=workers, timeout_worker_healthcheck=60, **options)
        Supervisor(made, [made.bind_socket()], shared).run()
        # uvicorn's own status says so of one process only.
        if has_failed(shared):
            sys.exit(STARTUP_FAILURE)


def serve_a2a(
    source: AgentSource,
    *,
    host: str = "127.0.0.1",
    port: int = 9000,
    db: str | None = None,
    keys_file: Path | None = None,
    settings: ServerSettings | None = None,
    log_level: str | None = None,
) -> None:
    """Serve an agent to A2A clients alone until the process is asked to stop; prints where it listens.

    Args:
        source: The agent.
        host: The address to bind to; any but this machine's own needs keys.
        port: The port; 0 for any free one.
        db: Another database than the agent's own.
        keys_file: A file with API keys, beside those of `GRAPH_AGENT_API_KEYS`.
        settings: Limits and times; its keys are not read.
        log_level: As for `serve`; None leaves uvicorn at WARNING.

    Raises:
        ConfigError: When the keys, a credential or the address cannot be used.
        SystemExit: With `STARTUP_FAILURE` when the agent or its database cannot be opened; the log says why.
    """
    settings = _checked(source, settings or ServerSettings(), keys_file, host)
    log_at(log_level)
    with bound(host, port) as listener:
        # A client that connects before the agent is open waits, instead of being refused.
        listener.listen()

        def app() -> ASGIApp:
            return _application(source, settings, db, a2a_only=True)

        config = uvicorn.Config(app, **_options(settings, log_level or "warning"))
        _Announced(config, f"{source.name} listens at {settings.public_url or url_of(listener)}").run([listener])


class _Announced(uvicorn.Server):
    """A server that prints a line when it has started."""

    def __init__(self, config: uvicorn.Config, line: str) -> None:
        super().__init__(config)
        self._line = line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            typer.echo(self._line)


def app_from_environment() -> ASGIApp:
    """Make the application of a worker process."""
    stop_without_parent()
    # A worker process has the log of no other.
    log_at(os.environ[_LOG_LEVEL] or None)
    keys_file = os.environ[_KEYS]
    given = ServerSettings.model_validate_json(os.environ[_SETTINGS])
    settings = given.model_copy(update={"keys": read_keys(Path(keys_file) if keys_file else None)})
    credentials = {name: CredentialSource(env=env) for name, env in json.loads(os.environ[_CREDENTIALS]).items()}
    source = of_file(os.environ[_CONFIG], credentials)
    return _application(source, settings, os.environ[_DB] or None, shared=shared_folder())


def _checked(source: AgentSource, settings: ServerSettings, keys_file: Path | None, host: str) -> ServerSettings:
    """Settings with their keys.

    Raises:
        ConfigError: When the keys cannot be read, the address needs some, or a credential's header cannot be one.
    """
    settings = settings.model_copy(update={"keys": read_keys(keys_file)}).checked_for(host)
    check_headers({**source.credential_headers, **settings.credential_headers}, has_keys=bool(settings.keys))
    return settings


def _options(settings: ServerSettings, log_level: str) -> dict[str, Any]:
    """uvicorn's options, for an application that is made when the server starts."""
    return {
        "factory": True,
        "http": BoundedProtocol,
        "timeout_graceful_shutdown": settings.drain_s + 5,
        "timeout_keep_alive": 5,
        "access_log": False,
        "server_header": False,
        # Its records go to the handler of `log_at`.
        "log_config": None,
        "log_level": log_level,
    }


def _application(
    source: AgentSource,
    settings: ServerSettings,
    db: str | None,
    *,
    shared: Path | None = None,
    a2a_only: bool = False,
) -> ASGIApp:
    """Make the application of this process, and set the process up; called on the loop that serves."""
    use_daemon_threads_of_own_loop()
    # The A2A SDK's streams would end at the first signal, and their tasks with them; runs are given time to end.
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # it has no types
    BoundedProtocol.request_within_s = settings.body_timeout_s
    BoundedProtocol.max_header_bytes = settings.max_header_bytes
    app = create_app(source, settings=settings, shared=shared, db=db, handle_signals=True, a2a_only=a2a_only)
    spare_what_is_loaded()
    return PlainStart(app, shared)
