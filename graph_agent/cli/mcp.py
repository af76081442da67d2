"""Implements `graph-agent mcp`, which serves an agent file to the MCP client that starts it."""

from __future__ import annotations

import asyncio

from graph_agent._internal.command_log import LogLevelOption, VerboseOption, chosen_level, log_at
from graph_agent._internal.extras import missing_extra
from graph_agent.cli.options import AGENT_FILE, ConfigOption, CredentialOption, DbOption, RecordOption


def mcp(
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    credential: CredentialOption = None,
    record: RecordOption = False,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent on standard input and output, as a tool of MCP clients; needs the extra `server`."""
    try:
        # Imported here because they take longer to load than the other commands need to start.
        from graph_agent.agent_file.credentials import sources_from
        from graph_agent.server.hosting.host import of_file
        from graph_agent.server.mcp.stdio import serve_stdio
    except ImportError as error:
        raise missing_extra("graph-agent mcp", "server", error) from None
    log_at(chosen_level(verbose, log_level))
    asyncio.run(serve_stdio(of_file(config, sources_from(credential or []), record=record), db))
