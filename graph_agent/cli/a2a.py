"""Command `graph-agent a2a`: serves an agent file to A2A clients."""

from __future__ import annotations

from dataclasses import replace
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


def a2a(
    config: ConfigOption = AGENT_FILE,
    port: PortOption = 9000,
    host: HostOption = "127.0.0.1",
    url: Annotated[
        str,
        typer.Option(
            "--url", help="URL of the agent for clients; by default the address of their request.", show_default=False
        ),
    ] = "",
    db: DbOption = None,
    keys_file: KeysFileOption = None,
    settings: SettingsOption = None,
    credential: CredentialOption = None,
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
    list_settings: ListSettingsOption = False,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent to A2A clients; needs the extra `server`."""
    try:
        # Imported here because they take longer to load than the other commands need to start.
        from graph_agent.server.hosting.sources import of_spec
        from graph_agent.server.process.serve import serve_a2a
        from graph_agent.server.settings import describe_settings, settings_from
        from graph_agent.spec.agent_file import load_spec, with_sources
        from graph_agent.spec.credentials import sources_from
    except ModuleNotFoundError as error:
        raise ConfigError(f"graph-agent a2a needs an extra ({error.name}): pip install 'graph-agent[server]'") from None
    if list_settings:
        typer.echo(describe_settings())
        return
    given = {"public_url": url, "drain_s": drain_s}
    options = settings_from(settings or []).model_copy(
        update={name: value for name, value in given.items() if value not in ("", None)}
    )
    spec = with_sources(load_spec(config), sources_from(credential or []))
    if push_notifications:
        spec = spec.model_copy(update={"push_notifications": True})
    serve_a2a(
        replace(of_spec(spec), show_outputs=show_outputs),
        host=host,
        port=port,
        db=db,
        keys_file=keys_file,
        settings=options,
        log_level=chosen_level(verbose, log_level),
    )
