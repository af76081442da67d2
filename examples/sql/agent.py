"""Answers questions about a database in SQL that can only read."""

import sqlite3
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphAgent, LoopConfig, create_graph_agent
from graph_agent.marks import marked

PROMPT = """\
You answer questions about a shop's database (SQLite) for people who do not read SQL.

{schema}

- Amounts are in cents; answer in EUR. Dates are ISO texts. Countries are ISO codes.
- Let the database count, sum and sort. Do not calculate from rows yourself.
- If a query fails, read the error and correct the query.
- Answer in one or two sentences, with the period and the filter that you used.
"""
READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
MOST_ROWS = 50
MOST_STEPS = 10_000_000


def open_shop() -> sqlite3.Connection:
    """Return the database; a connection to yours takes the same two limits."""
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.executescript(Path(__file__).with_name("shop.sql").read_text(encoding="utf-8"))
    db.set_authorizer(authorize)
    db.set_progress_handler(lambda: 1, MOST_STEPS)  # ends a query that runs away
    return db


def authorize(action: int, *_: object) -> int:
    """Allow an action of SQLite if it only reads."""
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY


def make_agent(db: sqlite3.Connection, model: BaseChatModel | str) -> GraphAgent:
    """Return an agent that reads a database."""
    tables = db.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchall()

    def query(sql: str) -> dict[str, Any]:
        """Run one SELECT. Returns the columns, and at most 50 rows."""
        try:
            cursor = db.execute(sql)
        except sqlite3.Error as error:
            raise ToolException(str(error)) from error  # the model reads it, and corrects the query
        columns = [column[0] for column in cursor.description]
        return {"columns": columns, "rows": cursor.fetchmany(MOST_ROWS)}

    return create_graph_agent(
        model,
        tools=[marked(query, effect="read")],
        system_prompt=PROMPT.format(schema="\n".join(sql for (sql,) in tables)),
        config=LoopConfig(max_steps=8),
        checkpointer=InMemorySaver(),
    )


def main(model: BaseChatModel | str = "openai:gpt-4o-mini") -> None:
    """Ask one question."""
    session = make_agent(open_shop(), model).session("ada")
    result = session.run_sync("Which country brought in the most this autumn?")
    for call in result.calls:
        print(call.arguments["sql"])
        print("->", call.result)
    print(result.answer)


if __name__ == "__main__":
    main()
