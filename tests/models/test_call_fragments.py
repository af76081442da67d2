"""Fragments of streamed calls in the forms of servers: a call runs with exactly its arguments, or not at all."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import Session, create_graph_agent
from tests.support.agents import says, thread
from tests.support.raw_chunks import Chunk, calls_delta, raw_model, reply_of_calls, reply_of_text

Sent = tuple[str, dict[str, str]]
"""Name and arguments of a call."""


class Ledger:
    """Two tools whose arguments are optional, and a record of their runs."""

    def __init__(self) -> None:
        self.ran: list[Sent] = []
        schema = {"type": "object", "properties": {"table": {"type": "string"}, "condition": {"type": "string"}}}
        self.tools = [
            StructuredTool.from_function(self._recorder(name), name=name, description="Act.", args_schema=schema)
            for name in ("delete", "count")
        ]

    def _recorder(self, name: str) -> Any:
        def act(**arguments: str) -> str:
            self.ran.append((name, arguments))
            return "done"

        return act

    def agent(self, *chunks: Chunk) -> Any:
        model = raw_model(reply_of_calls(*chunks), reply_of_text("Done."))
        return create_graph_agent(model, tools=self.tools, checkpointer=InMemorySaver())


async def outcome(chunks: Sequence[Chunk]) -> tuple[list[Sent], Any]:
    """Stream a reply with these fragments; return the calls that ran, sorted, and the result of the input."""
    ledger = Ledger()
    parts = [part async for part in Session(ledger.agent(*chunks), "s1").stream("go")]
    assert parts[-1].type == "done"
    return sorted(ledger.ran, key=repr), parts[-1].result


A, B = {"table": "old", "condition": "id < 9"}, {"table": "new"}
RAW_A, RAW_B = json.dumps(A), json.dumps(B)
TWO = [("count", B), ("delete", A)]

CERTAIN: dict[str, list[Chunk]] = {
    "an index on the opening only": [
        calls_delta({"index": 0, "id": "a", "name": "delete", "arguments": ""}),
        calls_delta({"arguments": RAW_A[:9]}),
        calls_delta({"arguments": RAW_A[9:]}),
        calls_delta({"index": 1, "id": "b", "name": "count", "arguments": ""}),
        calls_delta({"arguments": RAW_B}),
    ],
    "no index, and names and ids in every chunk": [
        calls_delta({"id": "a", "name": "delete", "arguments": RAW_A[:9]}),
        calls_delta({"id": "a", "name": "delete", "arguments": RAW_A[9:]}),
        calls_delta({"id": "b", "name": "count", "arguments": RAW_B[:9]}),
        calls_delta({"id": "b", "name": "count", "arguments": RAW_B[9:]}),
    ],
    "one index, and empty ids and names": [
        calls_delta({"index": 0, "id": "a", "name": "delete", "arguments": RAW_A[:9]}),
        calls_delta({"index": 0, "id": "", "name": "", "arguments": RAW_A[9:]}),
        calls_delta({"index": 0, "id": "b", "name": "count", "arguments": RAW_B[:9]}),
        calls_delta({"index": 0, "id": "", "name": "", "arguments": RAW_B[9:]}),
    ],
    "a new id in every chunk": [
        calls_delta({"index": 0, "id": "a1", "name": "delete", "arguments": RAW_A[:9]}),
        calls_delta({"index": 0, "id": "a2", "arguments": RAW_A[9:]}),
        calls_delta({"index": 1, "id": "b1", "name": "count", "arguments": ""}),
        calls_delta({"index": 1, "id": "b2", "arguments": RAW_B}),
    ],
    "ids in place of indexes, interleaved": [
        calls_delta({"id": "a", "name": "delete", "arguments": ""}, {"id": "b", "name": "count", "arguments": ""}),
        calls_delta({"id": "a", "arguments": RAW_A[:9]}, {"id": "b", "arguments": RAW_B[:9]}),
        calls_delta({"id": "b", "arguments": RAW_B[9:]}, {"id": "a", "arguments": RAW_A[9:]}),
    ],
    "the same id twice": [
        calls_delta({"index": 0, "id": "functions.x:0", "name": "delete", "arguments": RAW_A}),
        calls_delta({"index": 1, "id": "functions.x:0", "name": "count", "arguments": RAW_B}),
    ],
    "the id behind the name": [
        calls_delta({"index": 0, "name": "delete", "arguments": ""}),
        calls_delta({"index": 0, "id": "a", "arguments": RAW_A}),
        calls_delta({"index": 1, "name": "count", "arguments": RAW_B}),
    ],
    "the empty input of a proxy": [
        calls_delta({"index": 0, "id": "a", "name": "delete", "arguments": "{}"}),
        calls_delta({"index": 0, "arguments": RAW_A}),
        calls_delta({"index": 1, "id": "b", "name": "count", "arguments": "{}"}),
        calls_delta({"index": 1, "arguments": RAW_B}),
    ],
}


@pytest.mark.parametrize("form", CERTAIN)
async def test_calls_run_with_the_arguments_that_were_sent(form: str) -> None:
    ran, result = await outcome(CERTAIN[form])

    assert (ran, result.status, result.answer) == (TWO, "COMPLETED", "Done.")


UNCERTAIN: dict[str, tuple[list[Chunk], str]] = {
    "a fragment at an index without a call": (
        [
            calls_delta({"index": 0, "id": "a", "name": "delete", "arguments": ""}),
            calls_delta({"index": 1, "arguments": RAW_A}),
        ],
        "a fragment of arguments belongs to no call",
    ),
    "no call at all": ([calls_delta({"arguments": RAW_A})], "a fragment of arguments belongs to no call"),
    "fragments without an index, interleaved": (
        [
            calls_delta({"id": "a", "name": "delete", "arguments": ""}),
            calls_delta({"id": "b", "name": "count", "arguments": ""}),
            calls_delta({"arguments": RAW_A[:9]}),
            calls_delta({"arguments": RAW_B[:9]}),
            calls_delta({"arguments": RAW_A[9:]}),
            calls_delta({"arguments": RAW_B[9:]}),
        ],
        "the arguments of 'count' are not one JSON object",
    ),
    "fragments of a second call at the index of the first": (
        [
            calls_delta({"index": 0, "id": "a", "name": "delete", "arguments": ""}),
            calls_delta({"index": 1, "id": "b", "name": "count", "arguments": ""}),
            calls_delta({"index": 0, "arguments": RAW_B}),
        ],
        "a fragment of arguments may belong to another call",
    ),
    "the empty object of the first call, then the arguments of the second": (
        [
            calls_delta({"index": 0, "id": "a", "name": "delete", "arguments": "{}"}),
            calls_delta({"index": 1, "id": "b", "name": "count", "arguments": ""}),
            calls_delta({"index": 0, "arguments": RAW_B}),
        ],
        "a fragment of arguments may belong to another call",
    ),
    "arguments without a name": (
        [
            calls_delta({"index": 0, "id": "a", "name": "delete", "arguments": ""}),
            calls_delta({"index": 1, "id": "b", "arguments": RAW_B}),
        ],
        "a call has arguments and no name",
    ),
    "one of two is damaged": (
        [
            calls_delta({"index": 0, "id": "a", "name": "delete", "arguments": RAW_A}),
            calls_delta({"index": 1, "id": "b", "name": "count", "arguments": "{'table': 'new'}"}),
        ],
        "the arguments of 'count' are not one JSON object",
    ),
}


@pytest.mark.parametrize("form", UNCERTAIN)
async def test_no_call_runs_if_a_fragment_cannot_be_assigned(form: str) -> None:
    chunks, reason = UNCERTAIN[form]

    ran, result = await outcome(chunks)

    fault = f"Not run, and no other call of this reply: {reason}. Make the calls again, each with one JSON object."
    results = list(result.results.values())
    assert (ran, results, result.answer) == ([], [{"error": fault}] * len(results), "Done.")
    assert results


@pytest.mark.parametrize("way", ["run", "callbacks", "astream_events", "messages"])
async def test_fragments_are_assigned_however_the_agent_is_called(way: str) -> None:
    ledger = Ledger()
    agent = ledger.agent(*CERTAIN["an index on the opening only"])

    match way:
        case "run":
            await Session(agent, "s1").run("go")
        case "callbacks":
            await agent.ainvoke(says("go"), {**thread(), "callbacks": [BaseCallbackHandler()]})
        case "astream_events":
            _ = [event async for event in agent.astream_events(says("go"), thread(), version="v2")]
        case _:
            _ = [part async for part in agent.astream(says("go"), thread(), stream_mode="messages")]

    assert sorted(ledger.ran) == TWO


INDEXES = ["own", "none", "first", "zero"]
"""How fragments have indexes: that of their call, none, on the opening only, or 0 for all calls."""
WRONG_INDEXES = ["next", "random", "fragments zero"]
IDS = ["none", "empty", "repeated", "new", "never"]
NAMES = ["none", "empty", "repeated"]

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=6)
arguments = st.dictionaries(st.sampled_from(["table", "condition"]), texts, max_size=2)
sent_calls = st.lists(st.tuples(st.sampled_from(["delete", "count"]), arguments), min_size=1, max_size=3)


def fragments_of(draw: Any, number: int, call: Sent, policies: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Split one call at random, with the indexes, ids and names of the policies."""
    (name, given_arguments), (index, id_, names) = call, policies
    raw = json.dumps(given_arguments, ensure_ascii=draw(st.booleans()))
    if not given_arguments:
        # Without indexes, a second call of a tool without arguments has the form of a repeated name.
        raw = draw(st.sampled_from(["", "{}", " ", "null"] if index in {"own", *WRONG_INDEXES} else ["{}", "null"]))
    cuts = sorted({0, len(raw), *draw(st.lists(st.integers(0, len(raw)), max_size=4))})
    pieces = [raw[start:end] for start, end in itertools.pairwise(cuts)] or [""]
    if draw(st.booleans()):
        pieces = ["", *pieces]
    made = []
    for at, piece in enumerate(pieces):
        fragment: dict[str, Any] = {"arguments": piece}
        opening = at == 0
        match index:
            case "own":
                fragment["index"] = number
            case "first" if opening:
                fragment["index"] = number
            case "zero":
                fragment["index"] = 0
            case "next":
                fragment["index"] = number if opening else number + 1
            case "fragments zero":
                fragment["index"] = number if opening else 0
            case "random":
                fragment["index"] = draw(st.one_of(st.none(), st.integers(0, 3)))
            case _:
                pass
        if id_ != "never" and (opening or id_ == "repeated"):
            fragment["id"] = f"call_{number}"
        elif id_ in {"empty", "new"}:
            fragment["id"] = "" if id_ == "empty" else f"call_{number}_{at}"
        if opening or names == "repeated":
            fragment["name"] = name
        elif names == "empty":
            fragment["name"] = ""
        made.append(fragment)
    return made


def chunks_of(draw: Any, calls: list[Sent], policies: tuple[str, str, str]) -> list[Chunk]:
    """Return the chunks of calls one after the other, with some fragments in a common chunk."""
    fragments = [each for number, call in enumerate(calls) for each in fragments_of(draw, number, call, policies)]
    chunks: list[list[dict[str, Any]]] = []
    for fragment in fragments:
        if chunks and draw(st.integers(0, 4)) == 0:
            chunks[-1].append(fragment)
        else:
            chunks.append([fragment])
    return [calls_delta(*chunk) for chunk in chunks]


@given(data=st.data(), calls=sent_calls)
async def test_calls_in_a_certain_form_run_with_exactly_their_arguments(data: Any, calls: list[Sent]) -> None:
    index, id_ = data.draw(st.sampled_from(INDEXES)), data.draw(st.sampled_from(["none", "empty", "repeated"]))
    policies = (index, id_, data.draw(st.sampled_from(NAMES)))

    ran, result = await outcome(chunks_of(data.draw, calls, policies))

    assert (ran, result.status) == (sorted(calls, key=repr), "COMPLETED")


@given(data=st.data(), calls=sent_calls)
async def test_no_call_in_any_form_runs_with_other_arguments(data: Any, calls: list[Sent]) -> None:
    index, id_ = data.draw(st.sampled_from([*INDEXES, *WRONG_INDEXES])), data.draw(st.sampled_from(IDS))
    # Fragments with a new id, a name and an index that no call has are calls of their own.
    names = data.draw(st.sampled_from([each for each in NAMES if each != "repeated" or id_ != "new"]))
    policies = (index, id_, names)

    ran, result = await outcome(chunks_of(data.draw, calls, policies))

    # Two calls of one tool without index, ids and arguments have the form of one.
    assert (Counter(map(repr, ran)) <= Counter(map(repr, calls)), result.status) == (True, "COMPLETED")
