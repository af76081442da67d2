"""A server whose database is locked by another process."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.interfaces.server.process import PARROT, serving
from tests.support.chat_client import answer, chat

MODULE = """
from graph_agent.base import sqlite_connection
from tests.interfaces.server.parrot import make

# The tests do not wait for half a minute.
sqlite_connection.BUSY_S = 1.0
sqlite_connection._NOTICE_S = 0.1
"""


def test_a_locked_database_is_a_503_until_it_is_free(tmp_path: Path) -> None:
    (tmp_path / "impatient.py").write_text(MODULE)
    with (
        serving(tmp_path, agent={**PARROT, "model": "impatient:make"}) as server,
        server.http() as http,
        closing(sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)) as other,
    ):
        chat(http, "s1", "hello")
        other.execute("BEGIN IMMEDIATE")
        refused = chat(http, "s1", "and now?")
        other.execute("COMMIT")
        answered = chat(http, "s1", "and now?")
        log = server.log.read_text()

    assert (refused.status_code, refused.json()["error"]["code"], refused.headers["retry-after"]) == (
        503,
        "database_locked",
        "5",
    )
    assert (answer(answered), "the database is locked" in log, "Traceback" in log) == (
        "You said: hello / and now?",
        True,
        False,
    )
