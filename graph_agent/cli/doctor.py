"""Command `graph-agent doctor`: checks an agent's surroundings, and names a fix for each problem."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

import typer

from graph_agent._internal.redaction import mask_named_secrets
from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption
from graph_agent.cli.terminal import Terminal
from graph_agent.cli.verdict import Verdict
from graph_agent.errors import ConfigError

_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor(
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    ask_model: Annotated[
        bool, typer.Option("--ask-model", help="Send one short request to the model, which may cost money.")
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per check.")] = False,
) -> None:
    """Check versions, agent file, keys, model, MCP servers and database; exit status 1 if there is a problem."""
    # Failures are printed by the checks.
    logging.getLogger("graph_agent").setLevel(logging.CRITICAL)
    sys.exit(asyncio.run(_check(str(config), db, Terminal(), ask_model=ask_model, as_json=json_lines)))


async def _check(config: str, db: str | None, out: Terminal, *, ask_model: bool, as_json: bool) -> int:
    problems = 0
    async for verdict in _verdicts(config, db, ask_model=ask_model):
        problems += verdict.status == "problem"
        if as_json:
            typer.echo(json.dumps(asdict(verdict)))
            continue
        out.line(
            f"{verdict.status:<8} {verdict.check}: {mask_named_secrets(verdict.text)}", style=_STYLES[verdict.status]
        )
        if verdict.fix:
            out.line(f"         fix: {verdict.fix}")
    if not as_json:
        out.line(f"{problems} problem{'' if problems == 1 else 's'} found." if problems else "No problem found.")
    return 1 if problems else 0


async def _verdicts(config: str, db: str | None, *, ask_model: bool) -> AsyncIterator[Verdict]:
    from graph_agent.cli import checks
    from graph_agent.spec.agent_file import load_spec

    for verdict in checks.check_versions():
        yield verdict
    try:
        spec = load_spec(config)
    except ConfigError as error:
        fix = "Correct the file, or name another one with --config; `graph-agent new NAME` writes a first one."
        yield Verdict("agent file", "problem", str(error), fix)
        return
    yield Verdict("agent file", "ok", f"{spec.path} is valid")
    for verdict in checks.check_keys(spec):
        yield verdict
    async for verdict in checks.check_model(spec, ask=ask_model):
        yield verdict
    for verdict in await checks.check_servers(spec):
        yield verdict
    yield await checks.check_parts(spec)
    yield await checks.check_database(db or spec.db)
