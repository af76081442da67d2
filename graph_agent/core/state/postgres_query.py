"""Reads the first row of a query over a raw connection to PostgreSQL."""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import Connection

ANSWER_S = 10.0
"""Timeout of a query in seconds, after which the connection is closed."""


def first_row(connection: Connection[Any], query: str, *values: str) -> list[str] | None:
    """Return the first row of a query as texts, empty for NULL; None without a row. Blocks up to `ANSWER_S` seconds.

    `query` contains its `values` as `$1`, `$2`, … No other query may be in progress on the connection. Raises
    `psycopg.OperationalError` if the query fails, and at the timeout, which also closes the connection.
    """
    from psycopg import OperationalError
    from psycopg.pq import ExecStatus

    # A stalled proxy accepts data, so the system would report no error for a long time.
    pg, until = connection.pgconn, time.monotonic() + ANSWER_S
    pg.send_query_params(query.encode(), [value.encode("utf-8", "replace") for value in values])
    pg.flush()
    row: list[str] | None = None
    failed = ""
    while True:
        while pg.is_busy():
            if not is_readable(pg.socket, until - time.monotonic()):
                connection.close()
                raise OperationalError(f"the database did not answer within {ANSWER_S:g} seconds")
            pg.consume_input()
        result = pg.get_result()
        if result is None:
            break
        if result.status != ExecStatus.TUPLES_OK:
            failed = result.get_error_message()
        elif result.ntuples:
            row = [(result.get_value(0, at) or b"").decode() for at in range(result.nfields)]
    if failed:
        raise OperationalError(failed)
    return row


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until a socket has data or is closed by the peer, and return True; False after `timeout_s` seconds."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(max(timeout_s, 0.0)))
