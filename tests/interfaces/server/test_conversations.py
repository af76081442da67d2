"""Conversations of the Responses API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.server import AgentSource, create_app
from tests.interfaces.server.process import Served
from tests.support.commits import commits, committed


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def texts(client: openai.OpenAI, id_: str) -> list[str]:
    listed: list[Any] = list(client.conversations.items.list(id_, order="asc", limit=2))
    return [item.content[0].text for item in listed]


def test_responses_continue_a_conversation_and_are_its_items(openai_client: openai.OpenAI, served: Served) -> None:
    conversation = openai_client.conversations.create(metadata={"topic": "x"})
    first = openai_client.responses.create(model="parrot", input="one", conversation=conversation.id)
    second = openai_client.responses.create(model="parrot", input="two", conversation={"id": conversation.id})
    with served.http() as http:
        status = http.get(f"/sessions/{conversation.id}").json()["status"]

    assert (first.conversation, second.output_text, status) == (
        first.conversation,
        "You said: one / two",
        "COMPLETED",
    )
    assert second.conversation is not None
    assert second.conversation.id == conversation.id
    assert texts(openai_client, conversation.id) == ["one", "You said: one", "two", "You said: one / two"]


def test_items_that_were_added_reach_the_next_response_once(openai_client: openai.OpenAI) -> None:
    conversation = openai_client.conversations.create(
        items=[user("zero"), {"role": "assistant", "content": "0"}, user("one")]
    )
    first = openai_client.responses.create(model="parrot", input="two", conversation=conversation.id)
    openai_client.conversations.items.create(
        conversation.id, items=[user("three"), {"role": "assistant", "content": "3"}, user("four")]
    )
    second = openai_client.responses.create(model="parrot", input="five", conversation=conversation.id)
    third = openai_client.responses.create(model="parrot", input="six", conversation=conversation.id)

    assert [each.output_text for each in (first, second, third)] == [
        "You said: zero / one / two",
        "You said: zero / one / two / three / four / five",
        "You said: zero / one / two / three / four / five / six",
    ]


def test_a_conversation_is_changed_and_deleted(openai_client: openai.OpenAI) -> None:
    id_ = openai_client.conversations.create(items=[user("one"), user("two")]).id
    changed = openai_client.conversations.update(id_, metadata={"a": "b"})
    [newest] = openai_client.conversations.items.list(id_, limit=1).data
    found: Any = openai_client.conversations.items.retrieve(newest.id or "", conversation_id=id_)
    openai_client.conversations.items.delete(newest.id or "", conversation_id=id_)
    rest = texts(openai_client, id_)
    deleted = openai_client.conversations.delete(id_)

    assert (changed.metadata, found.content[0].text, rest, deleted.deleted) == ({"a": "b"}, "two", ["one"], True)
    for send in (
        lambda: openai_client.conversations.retrieve(id_),
        lambda: openai_client.conversations.items.list(id_),
        lambda: openai_client.responses.create(model="parrot", input="x", conversation=id_),
    ):
        with pytest.raises(openai.NotFoundError, match="not found"):
            send()


def test_a_deleted_conversation_is_gone_and_its_responses_remain(openai_client: openai.OpenAI) -> None:
    id_ = openai_client.conversations.create().id
    first = openai_client.responses.create(model="parrot", input="one", conversation=id_)
    openai_client.conversations.delete(id_)
    with pytest.raises(openai.NotFoundError, match="not found"):
        openai_client.responses.create(model="parrot", input="two", conversation=id_)
    second = openai_client.responses.create(model="parrot", input="two", previous_response_id=first.id)

    assert (openai_client.responses.retrieve(first.id), second.output_text) == (first, "You said: one / two")


def test_errors_name_the_conversation(openai_client: openai.OpenAI, tmp_path: Path) -> None:
    """Not its session: that of a response is named by another response, or by a key."""
    id_ = openai_client.conversations.create().id
    first = openai_client.responses.create(model="parrot", input="one")
    running = openai_client.responses.create(
        model="parrot", input=f"!wait {tmp_path / 'go'}", conversation=id_, background=True
    )
    with pytest.raises(openai.RateLimitError) as busy:
        openai_client.responses.create(model="parrot", input="two", conversation=id_)
    output: Any = {"type": "function_call_output", "call_id": "call_unknown", "output": ""}
    with pytest.raises(openai.BadRequestError) as unknown:
        openai_client.responses.create(model="parrot", input=[output], previous_response_id=first.id)
    openai_client.responses.cancel(running.id)

    assert f"The conversation {id_!r} is answering another request." in busy.value.message
    assert f"The conversation of the response {first.id!r} waits for no result" in unknown.value.message


def test_an_item_of_the_history_is_not_deleted(openai_client: openai.OpenAI) -> None:
    id_ = openai_client.conversations.create(items=[user("one")]).id
    openai_client.responses.create(model="parrot", input="two", conversation=id_)
    [first, *_] = openai_client.conversations.items.list(id_, order="asc").data
    with pytest.raises(openai.ConflictError, match="belongs to a response that has used it"):
        openai_client.conversations.items.delete(first.id or "", conversation_id=id_)


def test_a_session_is_continued_as_a_conversation(openai_client: openai.OpenAI) -> None:
    openai_client.chat.completions.create(
        model="parrot",
        messages=[{"role": "user", "content": "one"}],
        extra_headers={"X-Session-Id": "v1.0:a-conversation"},
    )
    answer = openai_client.responses.create(model="parrot", input="two", conversation="v1.0:a-conversation")

    assert answer.output_text == "You said: one / two"


def test_unsupported_items_are_refused_at_once(openai_client: openai.OpenAI) -> None:
    unsupported: Any = [{"type": "computer_call"}]
    with pytest.raises(openai.BadRequestError, match="Items of type 'computer_call' are not supported"):
        openai_client.conversations.create(items=unsupported)


async def test_a_killed_server_leaves_no_half_change_of_a_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield create_graph_agent(ScriptedChatModel(["Hi."]))

    app = create_app(AgentSource("scripted", "", url, opened))
    there = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")
    changes = []
    async with app.router.lifespan_context(app), there as http:
        id_ = (await http.post("/v1/conversations")).json()["id"]
        items: Any = {"items": [{**user("one"), "type": "message"}]}
        for change in (
            http.post(f"/v1/conversations/{id_}/items", json=items),
            http.delete(f"/v1/conversations/{id_}"),
        ):
            before = committed(url)["store"]
            with commits(url, monkeypatch) as seen:
                (await change).raise_for_status()
            stored = [rows["store"] for rows in seen]
            changes.append([rows for at, rows in enumerate(stored) if rows not in stored[:at]] == [before, stored[-1]])

    assert changes == [True, True]
