"""Implements `graph-agent acp`, which lets editors drive an agent on standard input and output."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from graph_agent._internal.command_log import LogLevelOption, VerboseOption
from graph_agent._internal.extras import missing_extra
from graph_agent.cli.options import (
    AGENT_FILE,
    ConfigOption,
    CredentialOption,
    DbOption,
    RecordOption,
    TodayOption,
)
from graph_agent.cli.run import settings_of

if TYPE_CHECKING:
    from graph_agent.acp.transport import StdioTransport
    from graph_agent.cli.one_shot import Settings


def acp(
    config: ConfigOption = AGENT_FILE,
    today: TodayOption = None,
    db: DbOption = None,
    credential: CredentialOption = None,
    record: RecordOption = False,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent to an editor over ACP, on standard input and output; needs the extra `acp`."""
    try:
        from graph_agent.acp.transport import take_stdio
    except ImportError as error:
        raise missing_extra("graph-agent acp", "acp", error) from None
    settings = settings_of(
        config, None, today, db, credential, as_json=False, record=record, verbose=verbose, log_level=log_level
    )
    # Before the agent is opened: its modules may print.
    asyncio.run(_serve(settings, take_stdio()))


async def _serve(settings: Settings, transport: StdioTransport) -> None:
    from graph_agent.acp.agent import serve_acp
    from graph_agent.agent_file.factory import open_agent
    from graph_agent.cli.questions import user_name

    task = asyncio.current_task()
    with suppress(NotImplementedError):  # on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: task and task.cancel())
    async with open_agent(settings.spec, today=settings.today, db=settings.db) as graph:
        await serve_acp(graph, transport, user=user_name())
