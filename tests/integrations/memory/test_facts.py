"""The facts of users: kept, found, edited and forgotten, in every database."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from graph_agent.errors import ConfigError, InputError
from graph_agent.memory import UnknownFactError, open_memory
from tests.integrations.memory.conftest import Topics
from tests.support.postgres_server import on_postgres

DATABASES = [
    "memory",
    "sqlite",
    pytest.param("postgres", marks=on_postgres),
    pytest.param("pgvector", marks=on_postgres),
]
every_database = pytest.mark.parametrize("url", DATABASES, indirect=True)
every_search = pytest.mark.parametrize("embedding", [None, Topics()], ids=["words", "vectors"])
FACTS = ("Eats no meat.", "Travels by train, never flies.", "Has a cat named Ada.")


def texts(facts: Any) -> list[str]:
    return [fact.content for fact in facts]


@every_database
@every_search
async def test_a_fact_is_found_by_its_topic_and_in_no_other_namespace(url: str, embedding: Any) -> None:
    # The one name begins with the other, and both hold what namespaces and patterns give a meaning.
    async with open_memory(url, embedding=embedding) as memory:
        for fact in FACTS:
            await memory.keep("a.l_i%ce", fact)
        await memory.keep("a.l_i%ce2", "Eats meat every day.")
        found = await memory.facts("a.l_i%ce", "Does the user travel by train?", limit=1)
        others = [await memory.facts(name, "meat") for name in ("a", "a.l_i%", "memories", "alice", "")]
        second = await memory.facts("a.l_i%ce2", "meat or a train or a cat")

    assert (texts(found), others, texts(second)) == ([FACTS[1]], [[]] * 5, ["Eats meat every day."])


@every_database
@every_search
async def test_facts_that_fit_are_recalled_first_and_then_the_newest(url: str, embedding: Any) -> None:
    async with open_memory(url, embedding=embedding, recall=2) as memory:
        for fact in FACTS:
            await memory.keep("alice", fact)
        recalled = await memory.recall("alice", "Is there meat in it?")
        nothing_fits = await memory.recall("alice", "")

    assert (texts(recalled)[0], len(recalled), len(nothing_fits)) == (FACTS[0], 2, 2)


@every_database
async def test_facts_of_the_same_moment_are_listed_newest_first(url: str) -> None:
    written = [f"Fact {number}." for number in range(12)]
    async with open_memory(url) as memory:
        for fact in written:
            await memory.keep("alice", fact)
        listed = await memory.facts("alice")

    assert texts(listed) == written[::-1]


@every_database
@pytest.mark.parametrize("word", ["docs", "example", "install", "guide", "ada", "v2"])
async def test_a_fact_with_an_address_is_found_by_a_word_of_it(url: str, word: str) -> None:
    fact = "Reads https://docs.example.com/guide-v2/install?for=ada#start daily."
    async with open_memory(url) as memory:
        await memory.keep("alice", fact)
        found = await memory.facts("alice", word)

    assert texts(found) == [fact]


@every_database
@every_search
async def test_an_edited_fact_is_found_by_its_new_words_only(url: str, embedding: Any) -> None:
    async with open_memory(url, embedding=embedding) as memory:
        id_ = await memory.keep("alice", "Has a cat.")
        await memory.keep("alice", "Travels by train.")
        edited = await memory.edit("alice", id_, "Eats no meat.")
        by_new = await memory.facts("alice", "food: meat", limit=1)
        with pytest.raises(UnknownFactError):
            await memory.edit("bob", id_, "Has nothing.")
        with pytest.raises(InputError, match="1 to 2,000 characters"):
            await memory.edit("alice", id_, "x" * 2_001)
        by_old = [] if embedding else await memory.facts("alice", "cat")

    assert (edited.content, texts(by_new), by_old) == ("Eats no meat.", ["Eats no meat."], [])


@every_database
async def test_a_forgotten_fact_leaves_only_a_tombstone(url: str) -> None:
    async with open_memory(url) as memory:
        id_ = await memory.keep("alice", "Has a cat.")
        with pytest.raises(UnknownFactError):
            await memory.forget("bob", id_)
        await memory.forget("alice", id_)
        await memory.forget("alice", id_)
        left = await memory.get("alice", [id_])
        others = await memory.get("bob", [id_])
        listed = await memory.facts("alice"), await memory.facts("alice", "cat")

    assert [(fact.content, fact.forgotten) for fact in left.values()] == [("", True)]
    assert (others, listed) == ({}, ([], []))


@every_database
@every_search
async def test_a_forgotten_fact_does_not_come_back(url: str, embedding: Any) -> None:
    async with open_memory(url, embedding=embedding) as memory:
        ids = [await memory.keep("alice", f"Secret {number}.") for number in range(10)]
        works = [work for id_ in ids for work in (memory.edit("alice", id_, "Edited."), memory.forget("alice", id_))]
        await asyncio.gather(*works, return_exceptions=True)
        with pytest.raises(UnknownFactError):
            await memory.keep("alice", "Kept again.", ids[0])
        left, listed = await memory.get("alice", ids), await memory.facts("alice")

    assert ([fact.forgotten for fact in left.values()], listed) == ([True] * 10, [])


@every_database
@pytest.mark.parametrize("id_", ["a\x00", "\ud800", "a.b", "x" * 5_000])
async def test_an_id_of_any_text_is_unknown(url: str, id_: str) -> None:
    async with open_memory(url) as memory:
        found = await memory.get("alice", [id_])
        for work in (memory.edit("alice", id_, "Has a cat."), memory.forget("alice", id_)):
            with pytest.raises(UnknownFactError):
                await work

    assert found == {}


async def test_forgetting_deletes_vectors_and_words_from_a_file(tmp_path: Path) -> None:
    async with open_memory(f"sqlite:///{tmp_path}/m.db", embedding=Topics()) as memory:
        kept, gone = await memory.keep("alice", FACTS[0]), await memory.keep("alice", "Has a dog named Turing.")
        await memory.forget("alice", gone)
    with closing(sqlite3.connect(tmp_path / "m.db")) as file:
        vectors = file.execute("SELECT key FROM store_vectors").fetchall()
        indexed = file.execute("SELECT count(*) FROM memory_text WHERE memory_text MATCH 'turing'").fetchone()
        stored = file.execute("SELECT count(*) FROM store WHERE value LIKE '%Turing%'").fetchone()

    assert (vectors, indexed, stored) == ([(kept,)], (0,), (0,))


@on_postgres
@pytest.mark.parametrize("url", ["pgvector"], indirect=True)
async def test_forgetting_deletes_vectors_from_postgresql(url: str) -> None:
    async with open_memory(url, embedding=Topics()) as memory:
        kept, gone = await memory.keep("alice", FACTS[0]), await memory.keep("alice", FACTS[2])
        await memory.forget("alice", gone)
    with psycopg.connect(url) as connection:
        vectors = connection.execute("SELECT key FROM store_vectors").fetchall()

    assert vectors == [(kept,)]


@on_postgres
async def test_a_postgresql_without_pgvector_is_searched_by_words(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(postgres_url) as connection:
        if connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone():
            pytest.skip("this PostgreSQL has pgvector")
    async with open_memory(postgres_url, embedding=Topics()) as memory:
        await memory.keep("alice", FACTS[1])
        found = await memory.facts("alice", "trains")

    assert texts(found) == [FACTS[1]]
    assert "has no extension 'vector'" in caplog.text


async def test_an_unknown_embedding_model_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"memory\.embedding='nobody:nothing.: Provider .nobody. is not supported"):
        async with open_memory("memory:", embedding="nobody:nothing"):
            pass
