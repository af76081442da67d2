"""Stored messages that the next run of a session is lent: only unchanged ones, and to one run at a time."""

from __future__ import annotations

import copy
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.input_messages import STEERING_MARK
from graph_agent.core.state.run import Run
from graph_agent.persistence import open_saver
from graph_agent.storage.checkpoints import history_cache
from graph_agent.storage.checkpoints.history_cache import HistoryCache
from tests.fixtures.v0_1_0 import make
from tests.support.agents import asks, echo, says, thread

_FIXTURES = Path(make.__file__).parents[1]


@pytest.fixture(autouse=True)
def _keep_short_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_cache, "FEWEST_ENTRIES", 1)


class Changing(AgentMiddleware[Any, Any, Any]):
    """Changes one of the first messages of the state in place."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change

    def before_model(self, state: Any, runtime: Any) -> None:
        user, calling, result = state["messages"][:3]
        match self.change:
            case "content":
                user.content = "changed"
            case "metadata":
                calling.response_metadata["nested"] = {"changed": True}
            case "arguments":
                calling.tool_calls[0]["args"]["text"] = "changed"
            case "extra":
                result.extra = "changed"
            case _:
                result.artifact = object()


def _agent(saver: Any, replies: list[Any], **options: Any) -> tuple[Any, ScriptedChatModel]:
    model = ScriptedChatModel(replies)
    return create_graph_agent(model, tools=[echo], checkpointer=saver, **options), model


_WAVE = [asks(("a1", "echo", {"text": "text"})), "No more actions.", "One."]


@pytest.mark.parametrize("change", ["content", "metadata", "arguments", "extra", "artifact"])
async def test_a_message_that_a_hook_changes_in_place_is_read_unchanged_by_the_next_run(
    tmp_path: Path, change: str
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver:
        await Session(_agent(saver, _WAVE)[0], "s1").run("first")
        for text in ("second", "third"):
            await Session(_agent(saver, [text], middleware=[Changing(change)])[0], "s1").run(text)
        async with open_saver(url) as other:
            stored = (await _agent(other, [])[0].aget_state(thread())).values["messages"]
        graph, model = _agent(saver, ["Last."])
        state = await graph.ainvoke(says("last"), thread())

    assert (_texts(model)[0][1:-1], state["messages"][:-2]) == ([*map(_fields, stored)], stored)


def _texts(model: ScriptedChatModel) -> list[list[tuple[Any, ...]]]:
    """Return the messages of the requests, without the ids of those that only the request has."""
    return [[_fields(message) for message in request.messages] for request in model.requests]


def _fields(message: BaseMessage) -> tuple[Any, ...]:
    return message.type, message.content, message.response_metadata, getattr(message, "tool_calls", None)


async def test_a_result_that_the_caller_changes_is_read_unchanged_by_the_next_run(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        for text in ("first", "second"):
            state = await _agent(saver, [text.title()])[0].ainvoke(says(text), thread())
            for message in state["messages"]:
                message.content = "changed"
        graph, model = _agent(saver, ["Last."])
        await graph.ainvoke(says("last"), thread())

    assert [message.content for message in model.requests[0].messages[-5:]] == [
        "first",
        "First",
        "second",
        "Second",
        "last",
    ]


async def test_messages_are_converted_for_the_requests_of_each_run_and_agent(tmp_path: Path) -> None:
    steered = HumanMessage("faster\x00", additional_kwargs={STEERING_MARK: True})
    stored = {"messages": [steered, AIMessage("Yes.\x00")]}
    read = []
    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        await _agent(saver, [])[0].aupdate_state(thread(), stored, as_node="plan")
        for text in ("One", "One", "Two", "Two", "One"):
            graph, model = _agent(saver, ["Done."], prompts={"steering": text + ": {{ content }}"})
            await graph.ainvoke(says("next"), thread())
            read.append([each.content for each in model.requests[0].messages if each.type != "system"][:2])

    assert read == [[f"{text}: faster\ufffd", "Yes.\ufffd"] for text in ("One", "One", "Two", "Two", "One")]


async def test_an_unsettled_call_is_settled_in_a_session_whose_messages_are_lent(tmp_path: Path) -> None:
    call = AIMessage("", tool_calls=[{"id": "z", "name": "echo", "args": {"text": "late"}}])
    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        for text in ("first", "second"):
            await _agent(saver, [text])[0].ainvoke(says(text), thread())
        await _agent(saver, [])[0].aupdate_state(thread(), {"messages": [call]}, as_node="finalize")
        for text in ("third", "fourth"):
            state = await _agent(saver, [text])[0].ainvoke(says(text), thread())

    assert [message.type for message in state["messages"]][4:] == ["ai", "tool", "human", "ai", "human", "ai"]


@pytest.mark.parametrize("version", ["v0_1_0", "v0_2_0"])
async def test_sessions_of_older_formats_send_the_same_requests_with_lent_messages(
    version: str, tmp_path: Path
) -> None:
    sent = []
    for name, reopened in (("a.db", False), ("b.db", True)):
        shutil.copy(_FIXTURES / version / "sessions.sqlite", tmp_path / name)
        async with AsyncExitStack() as stack:
            saver = await stack.enter_async_context(open_saver(f"sqlite:///{tmp_path / name}"))
            for text in ("One.", "Two.", "Three."):
                if reopened:
                    saver = await stack.enter_async_context(open_saver(f"sqlite:///{tmp_path / name}"))
                graph, model = _agent(saver, [text])
                await graph.ainvoke(says(f"after {text}"), thread("talk"))
                sent.append((reopened, _texts(model)))

    assert [texts for reopened, texts in sent if reopened] == [texts for reopened, texts in sent if not reopened]


def _read(cache: HistoryCache, at: CheckpointTuple, run: Run | None, channel: str = "messages") -> list[Any]:
    """Return the entries that a read of a kept history returns."""
    search = cache.find(at, [channel])
    try:
        next(search)
    except StopIteration as done:
        history = cache.restore(done.value, run)[channel]
        return [entry for _, _, value in history["writes"] for entry in value]
    raise AssertionError


def _checkpoint(thread_id: str = "s") -> CheckpointTuple:
    return CheckpointTuple({"configurable": {"thread_id": thread_id}}, {**empty_checkpoint(), "id": "1"}, {})


def _kept(message: BaseMessage, **limit: int) -> HistoryCache:
    cache, run = HistoryCache(**limit), Run()
    cache.keep(_checkpoint(), {"messages": {"writes": [("", "messages", [message])]}}, run)
    run.release()
    return cache


def test_only_runs_that_follow_each_other_have_the_same_messages() -> None:
    message, first, second, third = HumanMessage("text", id="a"), Run(), Run(), Run()
    cache = _kept(message)

    (of_first,), (of_reader,), (of_second,) = (_read(cache, _checkpoint(), each) for each in (first, None, second))
    first.release()
    second.release()
    (of_third,) = _read(cache, _checkpoint(), third)

    assert of_first is message
    assert of_second is of_third
    assert len({*map(id, (of_first, of_reader, of_second))}) == 3


@pytest.mark.parametrize("artifact", [object, [[[{}]] * 3], {"a": (1, 2)}, {1, 2}])
def test_a_message_that_holds_other_than_plain_values_is_not_lent(artifact: Any) -> None:
    message = ToolMessage("text", tool_call_id="a", artifact=artifact)
    is_plain = not isinstance(artifact, type | set)

    (read,) = _read(_kept(message), _checkpoint(), Run())

    assert (read is message, read) == (is_plain, message)


def test_the_loans_of_the_least_recently_used_histories_are_dropped_first() -> None:
    cache = HistoryCache(most_bytes=40_000)
    messages = [HumanMessage("x" * 5_000) for _ in range(3)]
    runs = [Run() for _ in messages]
    for at, (message, run) in enumerate(zip(messages, runs, strict=True)):
        cache.keep(_checkpoint(f"s{at}"), {"messages": {"writes": [("", "messages", [message])]}}, run)
        run.release()

    lent = [_read(cache, _checkpoint(f"s{at}"), None) for at in range(3)]
    again = [_read(cache, _checkpoint(f"s{at}"), Run())[0] is messages[at] for at in (2, 1, 0)]

    assert ([len(each) for each in lent], again, cache.size <= 40_000) == ([1, 1, 1], [True, False, False], True)


def test_a_history_that_is_too_large_to_be_lent_is_kept() -> None:
    message = HumanMessage("x" * 5_000)
    cache = _kept(message, most_bytes=10_000)

    (read,) = _read(cache, _checkpoint(), Run())

    assert (read is message, read == message) == (False, True)


@pytest.mark.parametrize("channel", ["messages", "events"])
def test_entries_that_a_run_has_changed_in_place_are_not_lent_again(channel: str) -> None:
    cache, run = HistoryCache(), Run()
    entry: Any = HumanMessage("text", id="a") if channel == "messages" else {"seq": 0, "calls": [{"args": {}}]}
    cache.keep(_checkpoint(), {channel: {"writes": [("", channel, [entry])]}}, run)
    run.release()
    stored = copy.deepcopy(entry)
    if channel == "messages":
        entry.additional_kwargs["changed"] = True
    else:
        entry["calls"][0]["args"]["changed"] = True

    (read,) = _read(cache, _checkpoint(), Run(), channel)

    assert (read is entry, read) == (False, stored)
