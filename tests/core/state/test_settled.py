"""A history is settled exactly if it has no open call and no result out of place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from graph_agent.core.state.messages import is_settled, open_calls, order_results

IDS = st.sampled_from(["a", "b"])
MESSAGES = st.lists(
    st.one_of(
        st.just(HumanMessage("Go.")),
        st.lists(IDS, max_size=2).map(
            lambda ids: AIMessage("", tool_calls=[{"id": id_, "name": "t", "args": {}} for id_ in ids])
        ),
        IDS.map(lambda id_: ToolMessage("x", tool_call_id=id_)),
    ),
    max_size=7,
)


@given(MESSAGES)
def test_a_settled_history_has_no_open_call_and_each_result_in_its_place(messages: list[AnyMessage]) -> None:
    repeats = any(
        len({call["id"] for call in message.tool_calls}) < len(message.tool_calls)
        for message in messages
        if isinstance(message, AIMessage)
    )

    expected = not repeats and order_results(messages) is messages and not open_calls(messages)
    assert is_settled(messages) == expected


def test_an_invalid_call_leaves_it_open_whether_a_history_is_settled() -> None:
    invalid = {"id": "a", "name": "t", "args": "{", "error": "no JSON", "type": "invalid_tool_call"}

    assert not is_settled([AIMessage("", invalid_tool_calls=[invalid]), ToolMessage("x", tool_call_id="a")])
