"""Pure functions: text cleaning, message intake, and the messages channel."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from graph_agent.base._internal.text import as_text, clean, to_json_safe
from graph_agent.base.input_ids import as_input_id, check_input_id
from graph_agent.base.input_messages import new_user_messages
from graph_agent.core.state.channels import MessagesChannel
from graph_agent.core.state.messages import OpenCalls, open_calls, rewrite, with_results
from graph_agent.errors import did_you_mean


@given(st.text(alphabet=st.characters(codec=None)))
def test_cleaned_text_fits_every_store(text: str) -> None:
    cleaned = clean(text)

    assert (len(cleaned), "\x00" in cleaned, cleaned.encode().decode()) == (len(text), False, cleaned)


@given(st.text(alphabet=st.characters(codec=None), min_size=1, max_size=300))
def test_each_id_of_a_client_becomes_a_valid_input_id(text: str) -> None:
    made = as_input_id(text)

    assert (check_input_id(made), as_input_id(made)) == (made, made)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_plain_is_idempotent(value: Any) -> None:
    assert to_json_safe(to_json_safe(value)) == to_json_safe(value)


def test_non_json_values_become_text() -> None:
    assert as_text({1: {2}, "x": (1, b"b")}) == '{"1": "{2}", "x": [1, "b\'b\'"]}'


def test_the_nearest_name_is_suggested() -> None:
    assert [did_you_mean("serch", ["search", "echo"]), did_you_mean("x", [])] == [
        "known: echo, search. Did you mean 'search'?",
        "none are known.",
    ]


def human(text: str, id_: str) -> HumanMessage:
    return HumanMessage(text, id=id_)


def asking(id_: str, *calls: str) -> AIMessage:
    return AIMessage("", id=id_, tool_calls=[{"id": call, "name": "t", "args": {}} for call in calls])


def result(call: str) -> ToolMessage:
    return ToolMessage(call, tool_call_id=call, id=f"r-{call}")


@pytest.mark.parametrize(
    ("messages", "last", "new"),
    [
        ([human("a", "1")], "", ["a"]),
        ([human("a", "1"), human("b", "2")], "", ["a", "b"]),
        ([human("a", "1"), human("b", "2")], "1", ["b"]),
        ([human("a", "1"), AIMessage("x"), human("b", "2")], "", ["b"]),
        ([human("a", "1"), AIMessage("x")], "", []),
        ([], "", []),
    ],
    ids=["first", "two", "one taken in", "later", "none", "empty"],
)
def test_user_messages_since_a_point_are_found(messages: list[Any], last: str, new: list[str]) -> None:
    assert [message.text for message in new_user_messages(messages, last)] == new


def test_open_calls_are_found_by_place_not_by_id_alone() -> None:
    messages: list[Any] = [asking("a", "1", "2"), result("1"), human("h", "h"), asking("b", "1"), human("i", "i")]

    found = [(group.at, [call["id"] for call in group.calls]) for group in open_calls(messages)]

    assert found == [(0, ["2"]), (3, ["1"])]


def test_results_are_placed_behind_their_calls() -> None:
    messages: list[Any] = [asking("a", "1", "2"), result("1"), human("h", "h"), asking("b", "1"), human("i", "i")]

    placed = with_results(messages, {(0, "2"): result("2"), (3, "1"): result("1")})

    assert [message.id for message in placed] == ["a", "r-1", "r-2", "h", "b", "r-1", "i"]


@given(st.data())
def test_a_rewrite_turns_the_one_history_into_the_other(data: st.DataObject) -> None:
    before = [human(str(i), str(i)) for i in range(data.draw(st.integers(0, 8)))]
    at = data.draw(st.integers(0, len(before)))
    after = [*before[:at], *(human(f"new {i}", f"n{i}") for i in range(data.draw(st.integers(0, 3)))), *before[at:]]
    channel = channel_of([before])

    channel.update([rewrite(before, after)])

    assert channel.get() == after


def test_nothing_is_open_in_an_answered_history() -> None:
    groups: list[OpenCalls] = open_calls([human("h", "h"), asking("a", "1"), result("1"), AIMessage("x")])

    assert groups == []


def channel_of(writes: list[Any]) -> MessagesChannel:
    channel = MessagesChannel(typ=list)
    channel.key = "messages"
    channel = channel.from_checkpoint(empty())
    for write in writes:
        channel.update([write])
    return channel


def empty() -> Any:
    from langgraph._internal._typing import MISSING

    return MISSING


IDS = st.sampled_from("abcde")
WRITES = st.lists(
    st.lists(
        st.builds(lambda i, t: HumanMessage(t, id=i), IDS, st.sampled_from("xyz"))
        | st.builds(lambda i, t: AIMessageChunk(content=t, id=i), IDS, st.sampled_from("xyz"))
        | st.builds(lambda i: RemoveMessage(id=i), IDS)
        | st.just(RemoveMessage(id=REMOVE_ALL_MESSAGES)),
        max_size=4,
    ),
    max_size=6,
)


@given(WRITES, st.integers(0, 6))
def test_replaying_the_writes_gives_the_same_history(writes: list[list[Any]], cut: int) -> None:
    live = channel_of([write for write in writes if write])

    replayed = MessagesChannel(typ=list).from_checkpoint(empty())
    replayed.replay_writes([("t", "messages", write) for write in writes[:cut]])
    replayed.replay_writes([("t", "messages", write) for write in writes[cut:]])

    assert replayed.get() == live.get()


def test_a_copy_of_the_channel_is_independent() -> None:
    channel = channel_of([[human("a", "1")]])
    copied = channel.copy()

    copied.update([[human("b", "2")]])

    assert ([m.id for m in channel.get()], [m.id for m in copied.get()]) == (["1"], ["1", "2"])


def test_importing_the_package_loads_no_provider_server_or_mcp() -> None:
    code = "import graph_agent, sys; print(sorted({m.split('.')[0] for m in sys.modules}))"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    unwanted = {
        "openai",
        "langchain_openai",
        "mcp",
        "starlette",
        "fastapi",
        "uvicorn",
        "typer",
        "langchain",
        "langgraph",
    }
    assert [name for name in unwanted if f"'{name}'" in loaded] == []
