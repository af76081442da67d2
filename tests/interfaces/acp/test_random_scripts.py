"""ACP: random scripts of a model keep to the protocol's schema, and the joined text is the answer."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from acp.schema import RequestPermissionRequest, SessionNotification
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_agent import ScriptedChatModel, SessionMemory, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.acp import Editor, call, calls, editor, prepare, select

_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=30).filter(str.strip)
_CALLS = st.one_of(
    st.builds(lambda id_, text: call(id_, "echo", text=text), st.sampled_from("abc"), _TEXTS),
    st.builds(lambda id_, to: call(id_, "send", to=to), st.sampled_from("abc"), st.sampled_from(["ana", "bo"])),
    st.builds(lambda id_: call(id_, "nothing"), st.sampled_from("abc")),
    st.builds(lambda id_: call(id_, "echo", wrong=1), st.sampled_from("abc")),
)
_WAVES = st.builds(
    lambda made, text: calls(*made, text=text),
    st.lists(_CALLS, min_size=1, max_size=3, unique_by=lambda each: each["id"]),
    st.one_of(st.just(""), _TEXTS),
)
_TURNS = st.lists(st.tuples(st.lists(_WAVES, max_size=2), _TEXTS), min_size=1, max_size=4)
_MODELS: dict[str, Any] = {
    "session/update": SessionNotification,
    "session/request_permission": RequestPermissionRequest,
}


@settings(max_examples=12)
@given(turns=_TURNS, option=st.sampled_from(["allow", "always", "reject"]))
def test_texts_and_calls_are_those_of_the_history(turns: list[tuple[list[str], str]], option: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_converse(Path(folder), turns, option))


async def _converse(folder: Path, turns: list[tuple[list[str], str]], option: str) -> None:
    prepare(folder)
    script = [reply for waves, answer in turns for reply in (*waves, answer)]
    async with editor(folder, script, select(option)) as client:
        session_id = await client.begin()
        ends = [await client.prompt(f"input {number}") for number in range(len(turns))]
        messages, states = client.messages(), _last_states(client)
        client.updates.clear()
        await client.load(session_id)
    async with open_saver(f"sqlite:///{folder}/desk.db") as saver:
        agent = create_graph_agent(ScriptedChatModel([]), checkpointer=saver)
        history = await SessionMemory(agent).get_session_events(session_id)

    assert ends == ["end_turn"] * len(turns)
    assert messages == [text for event in history if (text := _text(event))]
    assert (client.messages(), _last_states(client)) == (messages, states)
    assert [message for message in client.raw if not _fits(message)] == []


def _text(event: Any) -> str:
    """The text of a plan with calls, or of an answer."""
    if event["type"] == "plan" and event["calls"]:
        return str(event["reasoning"])
    return str(event["content"]) if event["type"] == "agent_response" else ""


def _last_states(client: Editor) -> dict[str, str]:
    """The last status of each call."""
    return {update["toolCallId"]: update["status"] for update in client.updates if "toolCallId" in update}


def _fits(message: dict[str, Any]) -> bool:
    """Whether a model of the protocol reads a message without dropping a part; it skips what does not fit."""
    model = _MODELS.get(message.get("method", ""))
    if model is None:
        return "result" in message
    read = model.model_validate(message["params"]).model_dump(mode="json", by_alias=True, exclude_unset=True)
    return bool(read == message["params"])
