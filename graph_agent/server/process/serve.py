"""Start of the server in one process, or in several on one database."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp

from graph_agent._internal.command_log import log_at
from graph_agent._internal.credential_headers import check_headers
from graph_agent.runs.registry import use_daemon_threads_of_own_loop
from graph_agent.server.admission.connections import BoundedProtocol, DrainedWebSocketProtocol
from graph_agent.server.admission.keys import read_keys
from graph_agent.server.app import create_app
from graph_agent.server.hosting.sources import AgentSource, of_file
from graph_agent.server.process.addresses import bind_socket, url_of
from graph_agent.server.process.startup_errors import STARTUP_FAILURE, StartupErrors, has_failed
from graph_agent.server.process.supervisor import Supervisor
from graph_agent.server.process.workers import check_workers, sharing, stop_without_parent
from graph_agent.server.settings import ServerSettings
from graph_agent.server.shared_folder import shared_folder
from graph_agent.spec.credentials import CredentialSource

_CONFIG, _DB, _KEYS, _SETTINGS = (
    "GRAPH_AGENT_SERVE_CONFIG",
    "GRAPH_AGENT_SERVE_DB",
    "GRAPH_AGENT_SERVE_KEYS_FILE",
    "GRAPH_AGENT_SERVE_SETTINGS",
)
_LOG_LEVEL, _CREDENTIALS = "GRAPH_AGENT_SERVE_LOG_LEVEL", "GRAPH_AGENT_SERVE_CREDENTIALS"
"""Environment variables that configure worker processes; they hold no key and no credential."""


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
    """Serve an agent file until the process receives a signal to stop.

    Args:
        config: The agent file.
        host: The address to bind to; any but a loopback address needs keys.
        port: The port.
        db: A database URL that replaces the file's; None for the file's.
        workers: Number of processes.
        keys_file: A file with API keys, in addition to those of `GRAPH_AGENT_API_KEYS`.
        settings: Limits and times; `settings.keys` is ignored.
        credentials: Credential name → source; replaces the file's credentials of the same names.
        log_level: Name of the level of this package's and uvicorn's logs on standard error, in every process; None for
            WARNING (INFO for uvicorn), unless the program has configured logging itself.

    Raises:
        ConfigError: If the file, the keys, a credential, the address or the database cannot be used. No port is bound
            then.
        SystemExit: With `STARTUP_FAILURE` if the agent or its database cannot be opened; the cause is logged.
    """
    settings = settings or ServerSettings()
    source = of_file(config, credentials)
    _with_keys(source, settings, keys_file, host)
    check_workers(workers, db or source.db)
    # Checked here because uvicorn binds after the agent's MCP servers have been started.
    bind_socket(host, port).close()
    # Through the environment: uvicorn starts its workers as new processes.
    os.environ[_CONFIG] = str(config.resolve())
    os.environ[_DB] = db or ""
    os.environ[_KEYS] = str(keys_file.resolve()) if keys_file else ""
    os.environ[_SETTINGS] = settings.model_dump_json(exclude={"keys"})
    os.environ[_CREDENTIALS] = json.dumps({name: source.env for name, source in (credentials or {}).items()})
    os.environ[_LOG_LEVEL] = log_level or ""
    log_at(log_level)
    _exit_cleanly_on_sigterm()
    app = "graph_agent.server.process.serve:app_from_environment"
    options = {"host": host, "port": port, **_options(settings, log_level or "info")}
    with sharing(workers) as shared:
        if workers == 1:
            uvicorn.run(app, workers=1, **options)
            return
        # The default would kill workers that are still importing on a busy machine.
        uvicorn_config = uvicorn.Config(app, workers=workers, timeout_worker_healthcheck=60, **options)
        Supervisor(uvicorn_config, [uvicorn_config.bind_socket()], shared).run()
        # uvicorn sets this exit status only for a single process.
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
    """Serve an agent to A2A clients only, until the process receives a signal to stop; prints the URL.

    Args:
        source: The agent.
        host: The address to bind to; any but a loopback address needs keys.
        port: The port; 0 for any free one.
        db: A database URL that replaces the agent's own; None for the agent's own.
        keys_file: A file with API keys, in addition to those of `GRAPH_AGENT_API_KEYS`.
        settings: Limits and times; `settings.keys` is ignored.
        log_level: As for `serve`; None leaves uvicorn at WARNING.

    Raises:
        ConfigError: If the keys, a credential or the address cannot be used.
        SystemExit: With `STARTUP_FAILURE` if the agent or its database cannot be opened; the cause is logged.
    """
    settings = _with_keys(source, settings or ServerSettings(), keys_file, host)
    log_at(log_level)
    _exit_cleanly_on_sigterm()
    with bind_socket(host, port) as listener:
        # Clients that connect before the agent is open wait instead of being refused.
        listener.listen()

        def app() -> ASGIApp:
            return _application(source, settings, db, a2a_only=True)

        config = uvicorn.Config(app, **_options(settings, log_level or "warning"))
        _ServerWithStartupLine(config, f"{source.name} listens at {settings.public_url or url_of(listener)}").run(
            [listener]
        )


def _exit_cleanly_on_sigterm() -> None:
    """Make exit status 0 the result of a stop by SIGTERM, as containers and service managers expect.

    uvicorn handles the signal itself, and sends it to this handler once the server has stopped.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)


class _ServerWithStartupLine(uvicorn.Server):
    """A server that prints a line once it has started."""

    def __init__(self, config: uvicorn.Config, line: str) -> None:
        super().__init__(config)
        self._line = line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            typer.echo(self._line)


def app_from_environment() -> ASGIApp:
    """Create the application of a worker process."""
    stop_without_parent()
    # A worker process inherits no logging configuration.
    log_at(os.environ[_LOG_LEVEL] or None)
    keys_file = os.environ[_KEYS]
    given = ServerSettings.model_validate_json(os.environ[_SETTINGS])
    settings = given.model_copy(update={"keys": read_keys(Path(keys_file) if keys_file else None)})
    credentials = {name: CredentialSource(env=env) for name, env in json.loads(os.environ[_CREDENTIALS]).items()}
    source = of_file(os.environ[_CONFIG], credentials)
    return _application(source, settings, os.environ[_DB] or None, shared=shared_folder())


def _with_keys(source: AgentSource, settings: ServerSettings, keys_file: Path | None, host: str) -> ServerSettings:
    """Return the settings with the keys that were read.

    Raises:
        ConfigError: If the keys cannot be read, the address needs keys, or a credential's header is not permitted.
    """
    settings = settings.model_copy(update={"keys": read_keys(keys_file)}).checked_for(host)
    check_headers({**source.credential_headers, **settings.credential_headers}, has_keys=bool(settings.keys))
    return settings


def _options(settings: ServerSettings, log_level: str) -> dict[str, Any]:
    """Return uvicorn's options, for an application factory."""
    return {
        "factory": True,
        "http": BoundedProtocol,
        "ws": DrainedWebSocketProtocol,
        "timeout_graceful_shutdown": settings.drain_s + 5,
        "timeout_keep_alive": 5,
        "ws_max_size": settings.max_body_bytes,
        "access_log": False,
        "server_header": False,
        # uvicorn's records go to the handler of `log_at`.
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
    """Create the application and set up the process; called on the serving event loop."""
    use_daemon_threads_of_own_loop()
    # Otherwise the A2A SDK's streams and their tasks end at the first signal, before runs had time to finish.
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # sse-starlette is untyped
    BoundedProtocol.request_within_s = settings.body_timeout_s
    BoundedProtocol.max_header_bytes = settings.max_header_bytes
    app = create_app(source, settings=settings, shared=shared, db=db, handle_signals=True, a2a_only=a2a_only)
    freeze_gc()
    return StartupErrors(app, shared)


_YOUNG, _MIDDLE, _OLD = 20_000, 20, 20
"""Thresholds of the garbage collector: allocations per collection of the youngest generation, and collections of each
generation per collection of the next older one."""


def freeze_gc() -> None:
    """Exclude loaded modules from garbage collection, and collect less often.

    Traversing them otherwise takes half of a busy server's time; requests leave few cycles. Call it once, after all
    imports, in programs that own their process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
