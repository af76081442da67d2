"""Histories kept between reads: they are those of the database, whichever process changes it, and never shared."""

from __future__ import annotations

import base64
import gc
import json
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver, prune
from graph_agent.session.importing import export_session, import_session
from graph_agent.storage.checkpoints import history_cache
from graph_agent.storage.checkpoints.history_cache import HistoryCache
from tests.support.agents import asks, echo, thread
from tests.support.postgres_server import on_postgres
from tests.support.pruning import RANDOM_STEPS, agent, read_all, take_step


@pytest.fixture(autouse=True, scope="module")
def _keep_short_histories() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_cache, "FEWEST_ENTRIES", 1)
        patch.setattr(HistoryCache, "restore", _as_unpickled)
        yield


_restore = HistoryCache.restore


def _as_unpickled(cache: HistoryCache, known: Any, borrower: Any = None) -> Any:
    """Restore a history, and check that what a run is lent equals what another reader is given."""
    if borrower is None:
        return _restore(cache, known)
    own, history = _restore(HistoryCache(), known), _restore(cache, known, borrower)
    assert _entries(history) == _entries(own)
    return history


def _entries(history: Any) -> dict[str, Any]:
    values = {name: [value for _, _, value in each["writes"]] for name, each in history.items()}
    flat = {name: [e for v in each for e in (v if isinstance(v, list) else [v])] for name, each in values.items()}
    return {name: (getattr(each.get("seed"), "value", None), flat[name]) for name, each in history.items()}


@settings(
    max_examples=6,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@example(steps=[("wave", 0), ("fork", 2), ("go_back", 1), ("wave", 0), ("prune", 2), ("edit", 0), ("answer", 0)])
@example(steps=[("ask", 0), ("resume", 0), ("cancelled", 0), ("wave", 0), ("delegate", 0), ("answer", 0)])
@given(steps=RANDOM_STEPS)
async def test_a_process_that_keeps_histories_reads_what_another_reads(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert await _different_readings(f"sqlite:///{Path(folder) / 'a.db'}", steps) == []


@on_postgres
async def test_a_postgres_saver_that_keeps_histories_reads_what_another_reads(postgres_url: str) -> None:
    steps = [("wave", 0), ("fork", 2), ("go_back", 1), ("ask", 0), ("prune", 2), ("resume", 0), ("edit", 0)]

    assert await _different_readings(postgres_url, steps) == []


async def _different_readings(url: str, steps: list[tuple[str, int]]) -> list[Any]:
    """Let processes take steps in turn; return the checkpoints that they read differently."""
    found: list[Any] = []
    async with open_saver(url) as keeping:
        await take_step(keeping, "answer", 0)
        for number, (step, choice) in enumerate(steps, 1):
            async with open_saver(url) as other:
                before = await read_all(other)
                ids = sorted(id_ for namespace, id_ in before if not namespace)
                if step == "prune":
                    await prune(url, keep_last=1)
                else:
                    await take_step(keeping if choice % 2 else other, step, number, ids[choice % len(ids)])
            newest = await agent(keeping, []).aget_state(thread())
            for message in newest.values["messages"]:
                message.content = "changed by its reader"
            async with open_saver(url) as other:
                expected = await read_all(other)
            read = await read_all(keeping)
            found += [(step, at) for at in expected.keys() | read.keys() if expected.get(at) != read.get(at)]
    return found


async def test_an_imported_session_replaces_a_kept_one_with_the_same_ids(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver:
        session = Session(create_graph_agent(ScriptedChatModel(["One.", "Two.", "Six."]), checkpointer=saver), "s1")
        for text in ("first", "second"):
            await session.run(text)
        lines = [line async for line in export_session(url, "s1", all_checkpoints=True)]

        await import_session(url, map(json.dumps, _replaced(lines, b"first", b"FIRST")), replace=True)
        await session.run("third")

        users = [event["content"] for event in await session.events() if event["type"] == "user_message"]
        assert users == ["FIRST", "second", "third"]


def _replaced(value: Any, old: bytes, new: bytes) -> Any:
    """An export with other bytes in its stored values."""
    if isinstance(value, list) and value and value[0] == "msgpack":
        return [value[0], base64.b64encode(base64.b64decode(value[1]).replace(old, new)).decode()]
    if isinstance(value, list):
        return [_replaced(each, old, new) for each in value]
    if isinstance(value, dict):
        return {key: _replaced(each, old, new) for key, each in value.items()}
    return value


async def test_the_next_input_of_a_kept_session_reads_only_newer_checkpoints(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        wave = asks(("a1", "echo", {"text": "text"}))
        model = ScriptedChatModel([wave, "No more actions.", "Done.", "Two.", "Three."])
        session = Session(create_graph_agent(model, tools=[echo], checkpointer=saver), "s1")
        await session.run("first")
        whole_reads: list[Any] = []
        super_: Any = type(saver).__mro__[1]
        with pytest.MonkeyPatch.context() as patch:
            read = super_.get_delta_channel_history

            def counted(self: Any, **options: Any) -> Any:
                whole_reads.append(options["config"])
                return read(self, **options)

            patch.setattr(super_, "get_delta_channel_history", counted)
            answers = [(await session.run(text)).answer for text in ("second", "third")]

        assert (answers, len(whole_reads)) == (["Two.", "Three."], 1)


def test_histories_above_the_bound_drop_the_least_recently_used() -> None:
    cache = HistoryCache(most_bytes=3000)
    at = [_checkpoint(f"s{number}") for number in range(4)]
    for each in at:
        cache.keep(each, {"messages": {"writes": [("", "messages", [HumanMessage("x" * 800)])]}})

    kept = [each.config["configurable"]["thread_id"] for each in at if _found(cache, each)]

    assert (kept, cache.size <= 3000) == (["s2", "s3"], True)


def _checkpoint(thread_id: str) -> CheckpointTuple:
    return CheckpointTuple({"configurable": {"thread_id": thread_id}}, {**empty_checkpoint(), "id": "1"}, {})


def _found(cache: HistoryCache, at: CheckpointTuple) -> bool:
    try:
        next(cache.find(at, ["messages"]))
    except StopIteration as done:
        return done.value is not None
    return False


def test_each_reading_of_a_kept_history_has_messages_of_its_own() -> None:
    cache, at = HistoryCache(), _checkpoint("s")
    cache.keep(at, {"messages": {"writes": [("", "messages", [AIMessage("kept", id="a")])]}})

    def read() -> Any:
        try:
            next(cache.find(at, ["messages"]))
        except StopIteration as done:
            return cache.restore(done.value)["messages"]["writes"][0][2][0]

    read().content = "changed"

    assert read() == AIMessage("kept", id="a")


def test_a_kept_history_of_large_writes_is_not_pickled_again_for_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, pickled, dumps = HistoryCache(), list[Any](), pickle.dumps
    large = [("", "events", [{"seq": number} for number in range(2_500)])] * 4
    cache.keep(_checkpoint("s"), {"events": {"writes": [*large]}})
    parent = _checkpoint("s")._replace(pending_writes=[("", "events", [{"seq": 0}])])
    child = _checkpoint("s")._replace(parent_config={"configurable": {"checkpoint_id": "1"}})
    child.checkpoint["id"] = "2"

    def record(value: Any, protocol: int) -> bytes:
        pickled.append(value)
        return dumps(value, protocol)

    monkeypatch.setattr(pickle, "dumps", record)

    search = cache.find(child, ["events"])
    next(search)
    with pytest.raises(StopIteration) as found:
        search.send(parent)
    history = cache.restore(found.value.value)["events"]["writes"]

    assert ([value for _, _, value in history], pickled) == (
        [*(value for _, _, value in large), [{"seq": 0}]],
        [[[{"seq": 0}]]],
    )


async def test_the_history_of_a_session_is_freed_when_its_run_has_ended(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        calls = [AIMessage("", tool_calls=[{"id": "a1", "name": "echo", "args": {"text": "text"}}]), AIMessage("Done.")]
        model = GenericFakeChatModel(messages=iter(calls))
        graph = create_graph_agent(model, tools=[echo], checkpointer=saver, config=LoopConfig(finalize="direct"))
        await Session(graph, "s1").run("a question that is in no other test")

        gc.collect()
        found = [each for each in gc.get_objects() if isinstance(each, HumanMessage) and "no other test" in each.text]

        assert found == []
