"""`graph-agent a2a`: an agent file, served to A2A clients from a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graph_agent.command_log import LogLevelOption, VerboseOption, chosen_level
from graph_agent.credentials import sources_from
from graph_agent.errors import ConfigError
from graph_agent.spec import load_spec, with_sources

_DRAIN_S = 30


def a2a(
    config: Annotated[Path, typer.Option("--config", "-c", help="The agent file.")] = Path("agent.yaml"),
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Where to listen; 0 for any free port.")
    ] = 9000,
    host: Annotated[str, typer.Option("--host", help="The address to listen at.")] = "127.0.0.1",
    url: Annotated[
        str, typer.Option("--url", help="Where clients reach it; by default where it listens.", show_default=False)
    ] = "",
    db: Annotated[
        str | None, typer.Option("--db", help="Another database than the file's: sqlite:///FILE or postgresql://….")
    ] = None,
    credential: Annotated[
        list[str] | None,
        typer.Option(
            "--credential", help="A secret for tools: NAME=env:VARIABLE; more than one may be.", metavar="TEXT"
        ),
    ] = None,
    show_outputs: Annotated[bool, typer.Option("--show-outputs", help="Tell clients what tools gave.")] = False,
    push_notifications: Annotated[
        bool, typer.Option("--push-notifications", help="Let clients have changes of their tasks sent to them.")
    ] = False,
    drain_s: Annotated[
        int, typer.Option("--drain-s", min=0, help="Seconds that tasks may take to their next step at SIGTERM.")
    ] = _DRAIN_S,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent to A2A clients; needs the extra `server`."""
    try:
        # Imported here: these take longer to load than all other commands need to begin.
        from graph_agent.a2a_serving import serve_a2a
    except ModuleNotFoundError as error:
        raise ConfigError(f"graph-agent a2a needs an extra ({error.name}): pip install 'graph-agent[server]'") from None
    spec = with_sources(load_spec(config), sources_from(credential or []))
    if push_notifications:
        spec = spec.model_copy(update={"push_notifications": True})
    level = chosen_level(verbose, log_level)
    serve_a2a(spec, host=host, port=port, url=url, db=db, show_outputs=show_outputs, drain_s=drain_s, log_level=level)
