"""Implements `memory`: lists, edits and forgets the facts that an agent remembers about a user."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.base._internal.text import printable
from graph_agent.interfaces.cli import run_async
from graph_agent.interfaces.cli.dialog import user_name
from graph_agent.interfaces.cli.options import AGENT_FILE, ConfigOption, DbOption, JsonOption, shared_database
from graph_agent.interfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from graph_agent.integrations.memory.facts import Fact, Memory

UserOption = Annotated[
    str | None, typer.Option("--user", help="Whose facts: the name of an API key, or a login name; yours by default.")
]


def memory(
    context: typer.Context,
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    user: UserOption = None,
    search: Annotated[str, typer.Option("--search", help="List only the facts that fit this text.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Maximum number of facts.")] = 100,
    json_lines: JsonOption = False,
) -> None:
    """List the facts that an agent remembers about you, newest first; `edit` changes and `forget` deletes them.

    On a terminal it is a table. Elsewhere the columns are separated by tabs, without a heading.
    """
    if context.invoked_subcommand is not None:
        return
    whose = user or user_name()
    out, facts = Terminal(), run_async(_list(config, db, whose, search, limit))
    if json_lines:
        for fact in facts:
            typer.echo(json.dumps(asdict(fact)))
    elif not facts:
        fitting = " that fit" if search else " yet"
        text = f"There are no facts of the user {whose}{fitting}; --user names another."
        Terminal(stderr=True).print(text, style="dim")
    elif out.is_terminal:
        out.table(
            ("ID", "CHANGED", "FACT"), [(fact.id, fact.updated, fact.content) for fact in facts], [""] * len(facts)
        )
    else:
        for fact in facts:
            typer.echo("\t".join(map(printable, (fact.id, fact.updated, fact.content))))


def edit_fact(
    id: Annotated[str, typer.Argument(help="The fact's id; `graph-agent memory` lists them.")],
    text: Annotated[str, typer.Argument(help="The new text.")],
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    user: UserOption = None,
) -> None:
    """Replace the text of a fact."""
    run_async(_edit(config, db, user or user_name(), id, text))


def forget(
    ids: Annotated[list[str], typer.Argument(help="Ids of facts; `graph-agent memory` lists them.")],
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    user: UserOption = None,
) -> None:
    """Delete facts with their vectors. The events of sessions name only their ids."""
    run_async(_forget(config, db, user or user_name(), ids))


@asynccontextmanager
async def _opened(config: Path, db: str | None, *, asks_embeddings: bool = True) -> AsyncIterator[Memory]:
    """Open the memory of an agent file, without the agent's model, and close it at the end of the context.

    Args:
        config: Path of the agent file.
        db: URL of another database than the file's; None for the file's.
        asks_embeddings: Whether the embedding model is opened, which a search or a new fact needs.

    Raises:
        ConfigError: The agent file is invalid or has no memory; or the database does not exist or is `memory:`.
    """
    from graph_agent.agent_file.memory import open_memory_of
    from graph_agent.agent_file.spec import load_spec

    spec = load_spec(config)
    async with open_memory_of(spec, shared_database(db or spec.db), asks_embeddings=asks_embeddings) as opened:
        yield opened


async def _list(config: Path, db: str | None, user: str, search: str, limit: int) -> list[Fact]:
    """Return up to `limit` facts of a user: the newest ones, or those that fit the text `search` if it is not empty.

    `config` is the path of the agent file, and `db` another database than the file's, or None.
    """
    # Without a search, no vector is needed, so a list needs no key of the embedding model.
    async with _opened(config, db, asks_embeddings=bool(search)) as opened:
        return await opened.facts(user, search, limit=limit)


async def _edit(config: Path, db: str | None, user: str, id_: str, text: str) -> None:
    """Replace the text of a fact of a user; `db` is another database than the agent file's, or None."""
    async with _opened(config, db) as opened:
        await opened.edit(user, id_, text)


async def _forget(config: Path, db: str | None, user: str, ids: list[str]) -> None:
    """Delete facts of a user by their ids, one after the other; `db` is another database than the agent file's, or
    None.
    """
    async with _opened(config, db, asks_embeddings=False) as opened:
        for id_ in ids:
            await opened.forget(user, id_)
