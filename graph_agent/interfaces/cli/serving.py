"""Implements the commands that serve an agent file: `serve`, `a2a`, `mcp` and `acp`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.base._internal.command_log import LogLevelOption, VerboseOption, chosen_level, log_at
from graph_agent.base._internal.extras import needs_extra
from graph_agent.base._internal.garbage import paused_collection
from graph_agent.interfaces.cli import options, run_async
from graph_agent.interfaces.cli.run import settings_of

if TYPE_CHECKING:
    from graph_agent.interfaces.acp.transport import StdioTransport
    from graph_agent.interfaces.cli.one_shot import Settings


@contextmanager
def without_gc() -> Iterator[None]:
    """Pause Python's garbage collection within the context, and defer loading packages that the start does not need.

    Collections take a tenth of the CPU time of a start. A server resumes them once it has started.
    """
    from graph_agent.base._internal.extras import defer_packages

    defer_packages()
    with paused_collection():
        yield


@without_gc()
def serve(
    config: options.ConfigOption = options.AGENT_FILE,
    host: options.HostOption = "127.0.0.1",
    port: options.PortOption = 8000,
    db: options.DbOption = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers", envvar="GRAPH_AGENT_WORKERS", min=1, help="Number of processes on the same database."
        ),
    ] = 1,
    keys_file: options.KeysFileOption = None,
    settings: options.SettingsOption = None,
    credential: options.CredentialOption = None,
    record: options.RecordOption = False,
    list_settings: options.ListSettingsOption = False,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent to OpenAI's, Anthropic's and A2A clients; needs the extra `server`."""
    with needs_extra("graph-agent serve", "server"):
        from graph_agent.agent_file.credentials import sources_from
        from graph_agent.interfaces.server import settings as server_settings
        from graph_agent.interfaces.server.serve import serve as serve_until_stopped
    if list_settings:
        typer.echo(server_settings.describe_settings())
        return
    serve_until_stopped(
        config,
        host=host,
        port=port,
        db=db,
        workers=workers,
        keys_file=keys_file,
        settings=server_settings.settings_from(settings or []),
        credentials=sources_from(credential or []),
        record=record,
        log_level=chosen_level(verbose, log_level),
    )


@without_gc()
def a2a(
    config: options.ConfigOption = options.AGENT_FILE,
    port: options.PortOption = 9000,
    host: options.HostOption = "127.0.0.1",
    url: Annotated[
        str,
        typer.Option(
            "--url", help="URL of the agent for clients; by default the address of their request.", show_default=False
        ),
    ] = "",
    db: options.DbOption = None,
    keys_file: options.KeysFileOption = None,
    settings: options.SettingsOption = None,
    credential: options.CredentialOption = None,
    show_outputs: Annotated[
        bool,
        typer.Option("--show-outputs", envvar="GRAPH_AGENT_SHOW_OUTPUTS", help="Send the outputs of tools to clients."),
    ] = False,
    push_notifications: Annotated[
        bool, typer.Option("--push-notifications", help="Let clients subscribe to changes of their tasks.")
    ] = False,
    drain_s: Annotated[
        int | None,
        typer.Option(
            "--drain-s", min=0, help="Seconds that tasks get to reach their next step after SIGTERM.", show_default="30"
        ),
    ] = None,
    list_settings: options.ListSettingsOption = False,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent to A2A clients; needs the extra `server`."""
    with needs_extra("graph-agent a2a", "server"):
        # Imported here because they take longer to load than the other commands need to start.
        from graph_agent.agent_file.credentials import sources_from
        from graph_agent.agent_file.spec import load_spec, with_sources
        from graph_agent.interfaces.server.agent_source import of_spec
        from graph_agent.interfaces.server.serve import serve_a2a
        from graph_agent.interfaces.server.settings import describe_settings, settings_from
    if list_settings:
        typer.echo(describe_settings())
        return
    given = {"public_url": url, "drain_s": drain_s}
    chosen = settings_from(
        [*(settings or []), *(f"{name}={value}" for name, value in given.items() if value not in ("", None))]
    )
    spec = with_sources(load_spec(config), sources_from(credential or []))
    if push_notifications:
        # The option only switches it on; the file may have done so already.
        spec = spec.model_copy(update={"push_notifications": True})
    serve_a2a(
        replace(of_spec(spec, db), show_outputs=show_outputs),
        host=host,
        port=port,
        db=db,
        keys_file=keys_file,
        settings=chosen,
        log_level=chosen_level(verbose, log_level),
    )


def mcp(
    config: options.ConfigOption = options.AGENT_FILE,
    db: options.DbOption = None,
    credential: options.CredentialOption = None,
    record: options.RecordOption = False,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent on standard input and output, as a tool of MCP clients; needs the extra `server`."""
    with needs_extra("graph-agent mcp", "server"):
        # Imported here because they take longer to load than the other commands need to start.
        from graph_agent.agent_file.credentials import sources_from
        from graph_agent.interfaces.cli.dialog import user_name
        from graph_agent.interfaces.server.agent_source import of_file
        from graph_agent.interfaces.server.mcp.mount import serve_stdio
    # Standard output belongs to the protocol, so logs go to standard error.
    log_at(chosen_level(verbose, log_level))
    sources = sources_from(credential or [])
    run_async(serve_stdio(of_file(config, sources, record=record, db=db, caller=user_name()), db))


def acp(
    config: options.ConfigOption = options.AGENT_FILE,
    today: options.TodayOption = None,
    db: options.DbOption = None,
    credential: options.CredentialOption = None,
    record: options.RecordOption = False,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent to an editor over ACP, on standard input and output; needs the extra `acp`."""
    with needs_extra("graph-agent acp", "acp"):
        from graph_agent.interfaces.acp.transport import take_stdio
    level = chosen_level(verbose, log_level)
    settings = settings_of(config, None, today, db, credential, record=record, level=level)
    # Before the agent is opened: its modules may print.
    run_async(_serve(settings, take_stdio()))


async def _serve(settings: Settings, transport: StdioTransport) -> None:
    """Open the agent, serve it over ACP until the editor ends the connection, and close the agent.

    SIGTERM cancels this task, which closes the agent, too (not on Windows).
    """
    import asyncio

    from graph_agent.agent_file.factory import open_agent
    from graph_agent.interfaces.acp.agent import serve_acp
    from graph_agent.interfaces.cli.dialog import user_name

    task = asyncio.current_task()
    with suppress(NotImplementedError):  # on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: task and task.cancel())
    async with open_agent(settings.spec, today=settings.today, db=settings.db, caller=user_name()) as graph:
        await serve_acp(graph, transport, user=user_name())
