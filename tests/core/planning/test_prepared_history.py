"""The conversation in the form of requests: each message is converted once, and an edit is taken over."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from graph_agent.core.planning.prepared_history import PreparedHistory
from graph_agent.models.prompts import Prompts
from graph_agent.models.sanitize import is_text_only, sanitized

PROMPTS = Prompts(None)


def conversation(*texts: str) -> list[AnyMessage]:
    return [HumanMessage(text, id=text) for text in texts]


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the messages that were converted."""
    texts: list[str] = []

    def recording(message: Any) -> Any:
        texts.append(message.text)
        return sanitized(message)

    monkeypatch.setattr("graph_agent.core.planning.prepared_history.sanitized", recording)
    return texts


def test_each_message_of_a_growing_conversation_is_converted_once(converted: list[str]) -> None:
    prepared, history = PreparedHistory(), conversation("a", "b")
    sizes = [len(prepared.of(history, PROMPTS))]
    for text in ("c", "d"):
        history = [*history, *conversation(text)]
        sizes.append(len(prepared.of(history, PROMPTS)))

    assert (sizes, converted) == ([2, 3, 4], ["a", "b", "c", "d"])


@pytest.mark.parametrize(
    "edited", [("a",), ("a", "x", "c"), ("x", "a", "b", "c"), (), ("b", "c")], ids=lambda texts: "".join(texts) or "-"
)
def test_an_edited_conversation_is_prepared_anew(edited: tuple[str, ...]) -> None:
    prepared = PreparedHistory()
    prepared.of(conversation("a", "b", "c"), PROMPTS)

    assert prepared.of(conversation(*edited), PROMPTS) == conversation(*edited)


def test_a_list_that_grows_in_place_is_prepared_completely() -> None:
    prepared, history = PreparedHistory(), conversation("a")
    prepared.of(history, PROMPTS)
    history += conversation("b")

    assert prepared.of(history, PROMPTS) == conversation("a", "b")


def test_marked_and_unsafe_messages_are_converted() -> None:
    steering = HumanMessage("faster", additional_kwargs={"graph_agent_steering": True})
    prepared = PreparedHistory().of([steering, AIMessage("half \ud83d")], PROMPTS)

    assert [message.text for message in prepared] == [PROMPTS.render("steering", content="faster"), "half \ufffd"]


@pytest.mark.parametrize(("content", "is_text"), [("text", True), ([{"type": "text", "text": "block"}], False)])
def test_content_blocks_are_detected(content: Any, is_text: bool) -> None:
    prepared = PreparedHistory()
    prepared.of(conversation("a"), PROMPTS)

    assert is_text_only(prepared.of([*conversation("a"), HumanMessage(content)], PROMPTS)) is is_text
