"""Command `graph-agent serve`: serves an agent over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from graph_agent._internal.command_log import LogLevelOption, VerboseOption, chosen_level
from graph_agent.cli.options import (
    AGENT_FILE,
    ConfigOption,
    CredentialOption,
    DbOption,
    HostOption,
    KeysFileOption,
    ListSettingsOption,
    PortOption,
    SettingsOption,
)
from graph_agent.errors import ConfigError


def serve(
    config: ConfigOption = AGENT_FILE,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    db: DbOption = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers", envvar="GRAPH_AGENT_WORKERS", min=1, help="Number of processes on the same database."
        ),
    ] = 1,
    keys_file: KeysFileOption = None,
    settings: SettingsOption = None,
    credential: CredentialOption = None,
    list_settings: ListSettingsOption = False,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent to OpenAI's, Anthropic's and A2A clients; needs the extra `server`."""
    try:
        from graph_agent.server import settings as server_settings
        from graph_agent.server.process.serve import serve as serve_until_stopped
        from graph_agent.spec.credentials import sources_from
    except ImportError as error:
        raise ConfigError(
            f"graph-agent serve needs an extra ({error.name}): pip install 'graph-agent[server]'"
        ) from None
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
        log_level=chosen_level(verbose, log_level),
    )
