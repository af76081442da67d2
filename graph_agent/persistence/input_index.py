"""Finds the newest checkpoint of an input by its id, through an index of the checkpoints that have one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

    Pool = AsyncConnectionPool[AsyncConnection[dict[str, Any]]]

# The expression of LangGraph's `list` with this key as its filter, which then uses the index.
_SQLITE_ID: LiteralString = "json_extract(CAST(metadata AS TEXT), '$.graph_agent_input')"
_POSTGRES_ID: LiteralString = "(metadata ->> 'graph_agent_input')"

SQLITE_INPUT_INDEX: LiteralString = (
    f"CREATE INDEX IF NOT EXISTS graph_agent_inputs ON checkpoints (thread_id, {_SQLITE_ID}, checkpoint_id)"
    f" WHERE {_SQLITE_ID} IS NOT NULL"
)
POSTGRES_INPUT_INDEX: LiteralString = (
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS graph_agent_inputs ON checkpoints"
    f" (thread_id, ({_POSTGRES_ID}), checkpoint_id) WHERE {_POSTGRES_ID} IS NOT NULL"
)
_NEWEST: LiteralString = (
    "SELECT checkpoint_id FROM checkpoints"
    f" WHERE thread_id = %s AND {_POSTGRES_ID} = %s AND checkpoint_ns = '' ORDER BY checkpoint_id DESC LIMIT 1"
)


async def postgres_input_checkpoint(pool: Pool, thread_id: str, input_id: str) -> str | None:
    """Return the id of the newest checkpoint of an input; None for none."""
    async with pool.connection() as connection:
        row = await (await connection.execute(_NEWEST, [thread_id, input_id])).fetchone()
    return row["checkpoint_id"] if row is not None else None
