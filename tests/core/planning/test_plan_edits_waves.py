"""Edits of structured waves, and of arbitrary calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage
from langgraph.types import Command

from tests.support.agents import asks, thread
from tests.support.edit_agent import DONE, EditedAgent, denied, ended, with_calls
from tests.support.wave_helpers import plan, use

WAVE = plan(
    use("a", "write", text="first"),
    use("b", "write", text="after ${a}"),
    use("c", "write", "b", text="last"),
    use("d", "write", text="free"),
    status="done",
)
A, D = ("a", "write", {"text": "first"}), ("d", "write", {"text": "free"})
B, C = ("b", "write", {"text": "after ${a}"}), ("c", "write", {"text": "last"})


def lost(id_: str) -> str:
    return f"Not run: it needs {id_!r}, which failed or was not run."


@pytest.mark.parametrize("as_node", [None, "tools"])
@pytest.mark.parametrize(
    ("calls", "answers", "expected"),
    [
        ((A, B, C, D), [], {"a": "first", "b": "after wrote first", "c": "last", "d": "free"}),
        (
            (A, ("b", "write", {"text": "$${x} ${d}"}), C, D),
            [],
            {"a": "first", "b": "${x} wrote free", "c": "last", "d": "free"},
        ),
        (
            (("a", "write", {"text": "${d}"}), B, C, D),
            [],
            {"a": "wrote free", "b": "after wrote wrote free", "c": "last", "d": "free"},
        ),
        ((B, C, D), [], {"b": lost("a"), "c": lost("b"), "d": "free"}),
        ((("b", "write", {"text": "plain"}), C, D), [], {"b": "plain", "c": "last", "d": "free"}),
        ((A, C, D), [], {"a": "first", "c": lost("b"), "d": "free"}),
        ((A, B, C, D), [denied("a")], {"a": "denied", "b": "after denied", "c": "last", "d": "free"}),
        ((A, B, C, D), [denied("a", status="error")], {"a": "denied", "b": lost("a"), "c": lost("b"), "d": "free"}),
        ((A, B, C, D), [denied("b")], {"a": "first", "b": "denied", "c": "last", "d": "free"}),
        (
            (A, B, C, D, ("e", "write", {"text": "${c}, ${d}"})),
            [],
            {"a": "first", "b": "after wrote first", "c": "last", "d": "free", "e": "wrote last, wrote free"},
        ),
        ((A, D, ("e", "write", {"text": "${zz}"})), [], {"a": "first", "d": "free", "e": lost("zz")}),
        (
            (A, ("b", "delegate_to_d", {"task": "see ${a}"}), C, D),
            [],
            {"a": "first", "b": "Delegated.", "c": "last", "d": "free"},
        ),
        (
            (("a", "write", {"text": "${b}"}), B, D),
            [],
            {"a": "Not run: it needs calls that need it.", "b": "Not run: it needs calls that need it.", "d": "free"},
        ),
    ],
    ids=[
        "nothing",
        "a waiting call",
        "a ready call",
        "needed and removed",
        "removed, its reference edited",
        "a waiting call removed",
        "needed and answered",
        "needed and failed",
        "a waiting call answered",
        "added",
        "added, its reference unknown",
        "a waiting call delegated",
        "a circle",
    ],
)
async def test_a_wave_of_levels_runs_as_edited(
    calls: Any, answers: list[BaseMessage], expected: dict[str, str], as_node: str | None
) -> None:
    agent = EditedAgent([WAVE, "Done."], tool_calling="wave")
    planned = await agent.stand()
    await agent.edit(with_calls(planned, *calls), *answers, as_node=as_node)

    found = await agent.end()

    unwritten = ("Not run", "denied", "Delegated")
    texts = {id_: text if text.startswith(unwritten) else f"wrote {text}" for id_, text in expected.items()}
    ran = sorted(text for text in expected.values() if not text.startswith(unwritten))
    assert (found, (await agent.talk.driver.result()).pending) == (ended(ran, texts), [])


@st.composite
def edited_waves(draw: st.DrawFn) -> tuple[list[tuple[str, str, dict[str, Any]]], list[str], list[str]]:
    """Calls of an edited plan, the ids that a person answers, and those planned."""
    ids = ["a", "b", "c", "d"][: draw(st.integers(1, 4))]
    calls = []
    for id_ in [*ids, *draw(st.lists(st.sampled_from(["e", "f"]), unique=True))]:
        match draw(st.sampled_from(["keep", "keep", "change", "drop", "refer"])):
            case "keep":
                calls.append((id_, "write", {"text": id_}))
            case "change":
                name = draw(st.sampled_from(["write", "erase", "unknown", "delegate_to_d"]))
                calls.append((id_, name, {"text": f"new {id_}", "task": "help"}))
            case "refer":
                calls.append((id_, "write", {"text": f"${{{draw(st.sampled_from('abcdef'))}}}"}))
    answered = draw(st.lists(st.sampled_from(ids), unique=True))
    return draw(st.permutations(calls)), answered, ids


@settings(max_examples=60)
@given(
    edited_waves(),
    st.sampled_from(["native", "wave"]),
    st.sampled_from([None, "plan", "tools", "__start__", "command"]),
    st.booleans(),
)
@example(
    ([("a", "write", {"text": "${b}"}), ("b", "write", {"text": "${b}"})], ["a"], ["a", "b"]), "native", None, False
)
def test_whatever_is_edited_each_call_has_one_result(
    edited: tuple[list[tuple[str, str, dict[str, Any]]], list[str], list[str]], mode: str, how: str | None, ledger: bool
) -> None:
    calls, answered, ids = edited
    answered = [id_ for id_ in answered if id_ in {call[0] for call in calls}]
    structured = plan(*(use(id_, "write", text=id_) for id_ in ids))
    script = (
        [structured, '{"status": "done"}', "Done."]
        if mode == "wave"
        else [
            asks(*((id_, "write", {"text": id_}) for id_ in ids)),
            *DONE,
        ]
    )

    async def play() -> tuple[dict[str, Any], list[Any], Any]:
        agent = EditedAgent(script, tool_calling=mode, effect_ledger=ledger)
        messages = [with_calls(await agent.stand(), *calls), *map(denied, answered)]
        if how == "command":
            await agent.graph.ainvoke(Command(update={"messages": messages}), thread())
        else:
            await agent.edit(*messages, as_node=how)
            await agent.graph.ainvoke(None, thread())
        recorded = await agent.events_of("tool_result", "delegation_response")
        return await agent.found(), recorded, (await agent.talk.driver.result()).pending

    found, recorded, pending = asyncio.run(play())

    texts = {id_: given["text"] for id_, _, given in calls}
    unanswered = {text for id_, text in texts.items() if id_ not in answered}
    never = {f"{sign}{text}" for id_ in answered for sign in ("", "-") if (text := texts[id_]) not in unanswered}
    expected = {"ran": found["ran"], "results": found["results"], "faults": [], "status": "COMPLETED"}
    recorded_ids = sorted(id_ for _, id_, _ in recorded)
    assert (found, sorted(found["results"]), recorded_ids, pending, never & set(found["ran"])) == (
        expected,
        sorted(call[0] for call in calls),
        sorted({*ids, *(call[0] for call in calls)}),
        [],
        set(),
    )
    if mode == "native":
        written = [call[2]["text"] for call in calls if call[0] not in answered and call[1] == "write"]
        assert [text for text in found["ran"] if not text.startswith("-")] == sorted(written)
