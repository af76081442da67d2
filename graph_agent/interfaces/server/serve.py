"""Starts the server in one process, or in several on one database."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import quote

import typer
import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp

from graph_agent.agent_file.credentials import CredentialSource
from graph_agent.base._internal.command_log import log_at
from graph_agent.base._internal.credential_headers import check_headers
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.errors import GraphAgentError
from graph_agent.integrations.otel import instrument_from_env, is_switched_on
from graph_agent.interfaces.server.admission.connections import BoundedProtocol, DrainedWebSocketProtocol
from graph_agent.interfaces.server.admission.keys import read_keys
from graph_agent.interfaces.server.agent_source import AgentSource, of_file
from graph_agent.interfaces.server.host import check_callers
from graph_agent.interfaces.server.settings import ServerSettings, unknown_variables
from graph_agent.interfaces.server.startup import STARTUP_FAILURE, StartupErrors, bind_socket, has_failed, url_of
from graph_agent.interfaces.server.supervisor import Supervisor, check_workers, sharing
from graph_agent.session.activity import use_daemon_threads_of_own_loop

logger = get_logger("graph_agent.server.serve")
_APP = "graph_agent.interfaces.server.app"

_DISPLAYS = {"DISPLAY", "WAYLAND_DISPLAY"}
"""Environment variables that a desktop sets on Linux."""
SERVE_THRESHOLDS = 20_000, 20, 20
"""Thresholds of the garbage collector: allocations before a collection of the youngest generation, then collections of
a generation before one of the next older generation.
"""


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
    record: bool = False,
    log_level: str | None = None,
) -> None:
    """Serve an agent file until the process receives a signal to stop, then return. With one worker, SIGTERM raises
    `SystemExit` with status 0 instead.

    Args:
        config: Path of the agent file.
        host: The address to bind to; any but a loopback address needs keys.
        port: The port; 0 for any free one.
        db: A database URL that replaces the file's; None for the file's.
        workers: Number of processes. Several need a database that they can share.
        keys_file: A file with API keys, in addition to those of `GRAPH_AGENT_API_KEYS`.
        settings: Limits and times; `settings.keys` is ignored.
        credentials: Credential name → source; replaces the file's credentials of the same names.
        record: Whether to record what models receive, even if the file does not ask for it.
        log_level: Name of the level of this package's and uvicorn's logs on standard error, in every process; None for
            WARNING (INFO for uvicorn), unless the program has configured logging itself.

    Raises:
        ConfigError: The file, the keys, a credential, the address or the database cannot be used. Nothing is served
            then.
        SystemExit: With `STARTUP_FAILURE` (3) if the agent or its database cannot be opened; the cause is logged.
    """
    _begin_log(log_level)
    source, settings = checked_start(
        config,
        host=host,
        db=db,
        workers=workers,
        keys_file=keys_file,
        settings=settings,
        credentials=credentials,
        record=record,
    )
    # Checked here because uvicorn binds after the agent's MCP servers have been started.
    bind_socket(host, port).close()
    _exit_cleanly_on_sigterm()
    options = {"host": host, "port": port, **_options(settings, log_level or "info")}
    with sharing(workers) as shared:
        if workers == 1:
            uvicorn.run(partial(_application, source, settings, db), workers=1, **options)
            return
        # Imported once, before the workers are forked; after `sharing`, whose variable prometheus_client reads.
        for name in import_module(_APP).ON_DEMAND:
            import_module(name)
        gc.freeze()
        # Of the file again, because a source cannot be pickled, as it must be where workers are not forked.
        reread = partial(_with_keys, settings=settings, keys_file=keys_file, host=host)
        application = partial(_worker_application, config, credentials, record, reread, db, shared, log_level)
        uvicorn_config = uvicorn.Config(application, workers=workers, **options)
        Supervisor(uvicorn_config, [uvicorn_config.bind_socket()], shared, settings.worker_timeout_s).run()
        # uvicorn sets this exit status only for a single process.
        if has_failed(shared):
            sys.exit(STARTUP_FAILURE)


def checked_start(
    config: str | Path,
    *,
    host: str = "127.0.0.1",
    db: str | None = None,
    workers: int = 1,
    keys_file: Path | None = None,
    settings: ServerSettings | None = None,
    credentials: Mapping[str, CredentialSource] | None = None,
    record: bool = False,
) -> tuple[AgentSource, ServerSettings]:
    """Check what a server of an agent file needs before it opens the agent; return the agent and the settings with the
    keys.

    `serve` begins with these checks, and `graph-agent doctor` reports them. The arguments are those of `serve`.

    Raises:
        ConfigError: The file, the keys or a credential cannot be used; the agent has a memory, or other machines can
            reach `host`, and there is no key; several processes would share no database; or an environment variable of
            the server has a wrong value.
    """
    source = of_file(config, credentials, record=record, db=db)
    settings = _with_keys(source, settings or ServerSettings(), keys_file, host)
    check_workers(workers, db or source.db)
    is_switched_on()  # raises for a wrong value, which every worker would find
    return source, settings


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
    """Serve an agent to A2A clients only, until the process receives a signal to stop. The URL is printed.

    Then SIGTERM raises `SystemExit` with status 0, and SIGINT `KeyboardInterrupt`.

    Args:
        source: The agent.
        host: The address to bind to; any but a loopback address needs keys.
        port: The port; 0 for any free one.
        db: A database URL that replaces the agent's; None for the agent's.
        keys_file: A file with API keys, in addition to those of `GRAPH_AGENT_API_KEYS`.
        settings: Limits and times; `settings.keys` is ignored.
        log_level: Name of the level of this package's and uvicorn's logs on standard error; None for WARNING.

    Raises:
        ConfigError: The keys, a credential or the address cannot be used.
        SystemExit: With `STARTUP_FAILURE` (3) if the agent or its database cannot be opened; the cause is logged.
    """
    _begin_log(log_level)
    settings = _with_keys(source, settings or ServerSettings(), keys_file, host)

    def show(url: str) -> None:
        """Print the agent's name and the setting `public_url`, or else the URL."""
        typer.echo(f"{source.name} listens at {settings.public_url or url}")

    app = partial(_application, source, settings, db, a2a_only=True)
    _serve_at(host, port, app, settings, log_level, show)


def serve_page(
    source: AgentSource, *, session_id: str | None = None, db: str | None = None, log_level: str | None = None
) -> None:
    """Serve an agent on a free port of this machine, and show its page, until the process receives a signal to stop.

    Then SIGTERM raises `SystemExit` with status 0, and SIGINT `KeyboardInterrupt`. The address is printed. A browser is
    opened if standard output is a terminal of a desktop.

    Args:
        source: The agent.
        session_id: The session to show; None for a new one.
        db: A database URL that replaces the agent's; None for the agent's.
        log_level: Name of the level of the logs on standard error; None for WARNING.

    Raises:
        ConfigError: The keys of `GRAPH_AGENT_API_KEYS` or a credential cannot be used.
        SystemExit: With `STARTUP_FAILURE` (3) if the agent or its database cannot be opened; the cause is logged.
    """
    settings = _with_keys(source, ServerSettings(), None, "127.0.0.1")

    def show(url: str) -> None:
        """Print the page's address, with the session, and open a browser if this is a terminal of a desktop."""
        address = f"{url}/" + ("#" + quote(session_id, safe="") if session_id else "")
        typer.echo(f"{source.name} is at {address} (Ctrl-C stops it)")
        if sys.stdout.isatty() and (sys.platform in ("darwin", "win32") or _DISPLAYS & os.environ.keys()):
            import webbrowser

            webbrowser.open(address)

    _serve_at("127.0.0.1", 0, partial(_application, source, settings, db), settings, log_level, show)


def _serve_at(
    host: str,
    port: int,
    app: Callable[[], ASGIApp],
    settings: ServerSettings,
    log_level: str | None,
    show: Callable[[str], None],
) -> None:
    """Serve an application in this process until a signal stops it, which is raised then: SIGTERM as `SystemExit` with
    status 0, and SIGINT as `KeyboardInterrupt`.

    Raises `ConfigError` if the address cannot be bound, and `SystemExit` with `STARTUP_FAILURE` (3) if the application
    cannot start.

    Args:
        host: The address.
        port: The port; 0 for any free one.
        app: Creates the application.
        settings: Limits and times.
        log_level: Name of the log level; None for WARNING.
        show: Called with the URL once the application has started.
    """
    log_at(log_level)
    _exit_cleanly_on_sigterm()
    with bind_socket(host, port) as listener:
        # Clients that connect before the agent is open wait instead of being refused.
        listener.listen()
        config = uvicorn.Config(app, **_options(settings, log_level or "warning"))
        _ServerWithStartupLine(config, partial(show, url_of(listener))).run([listener])


def _begin_log(log_level: str | None) -> None:
    """Set up the log, and log a warning for each environment variable with this package's prefix that nothing reads."""
    log_at(log_level)
    for text in unknown_variables().values():
        logger.warning("%s", text)


def _exit_cleanly_on_sigterm() -> None:
    """Make the process exit with status 0 after SIGTERM, as containers and service managers expect.

    uvicorn handles the signal itself, and raises it again for this handler once the server has stopped.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        """Exit with status 0."""
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)


class _ServerWithStartupLine(uvicorn.Server):
    """A uvicorn server that calls `show` once it has started, e.g. to print its address."""

    def __init__(self, config: uvicorn.Config, show: Callable[[], None]) -> None:
        super().__init__(config)
        self._show = show

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, and call `show` if that succeeded."""
        await super().startup(sockets)
        if self.started:
            self._show()


def _worker_application(
    config: Path,
    credentials: Mapping[str, CredentialSource] | None,
    record: bool,
    with_keys: Callable[[AgentSource], ServerSettings],
    db: str | None,
    shared: Path | None,
    log_level: str | None,
) -> ASGIApp:
    """Create the application in a worker process, from the agent file as it is now.

    If a `GraphAgentError` prevents that, e.g. because the file was changed, log it and exit with status 1.

    Args:
        config: Path of the agent file.
        credentials: Credential name → source, as in `serve`.
        record: Whether to record what models receive.
        with_keys: Returns the settings, with the keys, for an agent.
        db: A database URL that replaces the file's; None for the file's.
        shared: The folder of all workers; None if none could be created.
        log_level: Name of the log level.
    """
    log_at(log_level)
    try:
        source = of_file(config, credentials, record=record, db=db)
        return _application(source, with_keys(source), db, shared=shared)
    except GraphAgentError as error:  # a file was changed since the start
        logger.error("A worker process cannot open the agent: %s", error)
        sys.exit(1)


def _with_keys(source: AgentSource, settings: ServerSettings, keys_file: Path | None, host: str) -> ServerSettings:
    """Return the settings with the API keys of the environment and of a file, after checking them for an agent and an
    address.

    Args:
        source: The agent.
        settings: The settings without keys.
        keys_file: File with API keys; None if there is none.
        host: The address to bind to.

    Raises:
        ConfigError: A key is invalid; there is no key, although other machines can reach `host` or the agent has a
            memory; or a header of a credential has another use.
    """
    settings = settings.model_copy(update={"keys": read_keys(keys_file)}).checked_for(host)
    check_callers(source.needs_callers, settings)
    headers = {**source.credential_headers, **settings.credential_headers}
    check_headers(headers, has_keys=bool(settings.keys), session_header=settings.session_header)
    return settings


def _options(settings: ServerSettings, log_level: str) -> dict[str, Any]:
    """Return uvicorn's options for an application that is created by a function: this package's protocols, times to
    drain, and no access log.

    `log_level` is that of uvicorn's own records.
    """
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
    source: AgentSource, settings: ServerSettings, db: str | None, *, shared: Path | None = None, a2a_only: bool = False
) -> ASGIApp:
    """Create the application, and set up the process for it; called on the serving event loop.

    The limits of the HTTP protocol are set for the whole process, and telemetry is started if the environment switches
    it on. Once the application has started, the garbage collector is tuned (`freeze_gc`). Raises `ConfigError` if the
    variable of telemetry has a wrong value.

    Args:
        source: The agent.
        settings: Keys, limits and times.
        db: A database URL that replaces the agent's; None for the agent's.
        shared: The folder of all worker processes; None for a single process.
        a2a_only: Whether to serve only A2A.
    """
    use_daemon_threads_of_own_loop()
    # Otherwise the A2A SDK's streams and their tasks end at the first signal, before runs had time to finish.
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # sse-starlette is untyped
    BoundedProtocol.request_within_s = settings.body_timeout_s
    BoundedProtocol.max_header_bytes = settings.max_header_bytes
    if is_switched_on():
        instrument_from_env()  # before the application is made, which continues the traces of requests
    app = import_module(_APP).create_app(
        source, settings=settings, shared=shared, db=db, handle_signals=True, a2a_only=a2a_only
    )
    return StartupErrors(app, shared, on_start=freeze_gc)


def freeze_gc() -> None:
    """Exclude all current objects from garbage collection, enable the collector, and make it collect less often.

    Traversing the loaded modules otherwise takes half of a busy server's time, and requests leave few cycles. Call it
    once, after all imports, in a program that owns its process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SERVE_THRESHOLDS)
    gc.enable()
