"""The kept results of a conversation are found as it grows, and again after an edit."""

from __future__ import annotations

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from graph_agent.core.planning.kept_results import KeptResults
from graph_agent.core.state.messages import KEPT_AS


def kept(id_: str, mark: str) -> ToolMessage:
    return ToolMessage("x", tool_call_id=id_, id=id_, artifact={KEPT_AS: mark})


def ids(found: dict[str, AnyMessage]) -> list[tuple[str, str | None]]:
    return [(mark, message.id) for mark, message in found.items()]


def test_the_newest_result_of_each_mark_counts_as_the_conversation_grows_and_is_edited() -> None:
    results = KeptResults()
    history: list[AnyMessage] = [kept("1", "a"), AIMessage("x"), kept("2", "b")]
    first = ids(results.of(history))
    grown = ids(results.of([*history, kept("3", "a"), ToolMessage("plain", tool_call_id="4")]))
    edited = ids(results.of(history[1:]))

    assert (first, grown, edited) == ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "3")], [("b", "2")])
