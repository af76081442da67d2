"""ACP: what a client sees of a prompt, from its text to the reason of its end."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any, cast

import pytest
from acp import (
    RequestError,
    embedded_blob_resource,
    embedded_text_resource,
    image_block,
    resource_block,
    resource_link_block,
    text_block,
)
from acp.interfaces import Client
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import create_graph_agent
from graph_agent.interfaces.acp.agent import EditorAgent
from tests.support.acp import AGENT, call, calls, editor, prepare
from tests.support.gates import Gate, GatedModel

PIXEL = base64.b64encode(b"pixel").decode()
ECHO = calls(call("a", "echo", text="x"))


async def test_an_answer_is_streamed(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, ["Hello, what can I do?"]) as client:
        await client.begin()
        end = await client.prompt("hi")

    assert (end, client.outline()) == ("end_turn", ["agent: Hello, what can I do?"])


async def test_reasoning_becomes_thoughts(tmp_path: Path) -> None:
    prepare(tmp_path, AGENT.replace("openai:gpt-4o-mini", "desk:thinking"))
    async with editor(tmp_path, None) as client:
        await client.begin()
        await client.prompt("hi")

    assert client.outline() == ["thought: Let me see.", "agent: I see."]


async def test_a_wave_is_a_plan_with_the_states_of_its_calls(tmp_path: Path) -> None:
    prepare(tmp_path)
    wave = calls(call("a", "echo", text="x"), call("b", "echo", text="y"), text="I echo.")
    async with editor(tmp_path, [wave, "No more actions.", "Done."]) as client:
        await client.begin()
        await client.prompt("hi")

    plans = client.plans()
    assert (client.outline()[0], client.outline()[-1]) == ("agent: I echo.", "agent: Done.")
    assert (plans[0], plans[-1]) == (["pending", "pending"], ["completed", "completed"])
    assert sorted(client.outline()[1:-1]) == [
        *("a: completed echo x", "a: in_progress", "b: completed echo y", "b: in_progress")
    ]


async def test_a_structured_plan_is_a_thought(tmp_path: Path) -> None:
    prepare(tmp_path, AGENT.replace("max_steps: 3", "tool_calling: wave"))
    tool = '{"id": "a", "tool": "echo", "args": {"text": "x"}}'
    plan = f'{{"status": "continue", "action": "echo", "tools": [{tool}], "reasoning": "First an echo."}}'
    done = '{"status": "done", "action": "answer", "tools": [], "reasoning": ""}'
    async with editor(tmp_path, [plan, done, "Done."]) as client:
        await client.begin()
        await client.prompt("hi")

    assert client.outline() == ["thought: First an echo.", "a: in_progress", "a: completed echo x", "agent: Done."]


async def test_an_id_that_the_model_uses_again_is_another_call(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [ECHO, ECHO, "No more actions.", "Done."]) as client:
        await client.begin()
        await client.prompt("hi")

    assert client.outline()[:-1] == [
        *("a: in_progress", "a: completed echo x", "a#2: in_progress", "a#2: completed echo x")
    ]


async def test_the_answer_at_the_step_limit_is_whole(tmp_path: Path) -> None:
    prepare(tmp_path, AGENT.replace("max_steps: 3", "max_steps: 1"))
    async with editor(tmp_path, [ECHO, "This much is known."]) as client:
        await client.begin()
        end = await client.prompt("hi")

    expected = "Reached maximum reasoning steps (1)\n\nThis much is known."
    assert (end, client.answer()) == ("max_turn_requests", expected)


@pytest.mark.parametrize("model", ["filtered", "unwilling", "blocked"])
async def test_a_refusal_of_the_model_or_its_provider_is_the_stop_reason(tmp_path: Path, model: str) -> None:
    prepare(tmp_path, AGENT.replace("openai:gpt-4o-mini", f"desk:{model}"))
    async with editor(tmp_path, None) as client:
        await client.begin()
        end = await client.prompt("hi")

    assert (end, len(client.messages())) == ("refusal", 1)


async def test_a_failed_input_is_an_error_after_its_text(tmp_path: Path) -> None:
    prepare(tmp_path, AGENT.replace("openai:gpt-4o-mini", "desk:refused"))
    async with editor(tmp_path, None) as client:
        await client.begin()
        with pytest.raises(RequestError, match="The model call failed") as raised:
            await client.prompt("hi")

    assert (raised.value.code, len(client.outline())) == (-32603, 1)
    assert client.outline()[0].startswith("agent: ")


async def test_what_tools_print_goes_to_standard_error(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [calls(call("a", "shout")), "No more actions.", "Done."]) as client:
        await client.begin()
        await client.prompt("hi")

    assert client.outline() == ["a: in_progress", "a: completed shouted", "agent: Done."]
    assert (tmp_path / "log").read_text().split("\n")[:2] == ["from Python", "from a child "]


async def test_images_and_resources_are_in_the_history(tmp_path: Path) -> None:
    prepare(tmp_path)
    prompt = [
        text_block("See "),
        resource_link_block("main.py", "file:///main.py"),
        resource_block(embedded_text_resource("file:///notes.txt", "note")),
        image_block(PIXEL, "image/png"),
        resource_block(embedded_blob_resource("file:///red.png", PIXEL, mime_type="image/png")),
    ]
    async with editor(tmp_path, ["Seen."]) as client:
        await client.begin()
        await client.within(client.connection.prompt(session_id=client.session_id, prompt=prompt))
        client.updates.clear()
        await client.load(client.session_id)

    blocks = [update["content"] for update in client.updates if update["sessionUpdate"] == "user_message_chunk"]
    assert "".join(block.get("text", "") for block in blocks) == (
        'See [@main.py](file:///main.py)\n<resource uri="file:///notes.txt">\nnote\n</resource>\n'
    )
    assert [block for block in blocks if block["type"] == "image"] == [
        {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    ] * 2


async def test_data_that_are_no_base64_are_refused(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, ["Never said."]) as client:
        await client.begin()
        prompt = [image_block("?", "image/png")]
        with pytest.raises(RequestError, match="no valid base64"):
            await client.within(client.connection.prompt(session_id=client.session_id, prompt=prompt))

    assert client.outline() == []


class _Silent:
    """A client that reads nothing."""

    async def session_update(self, **_: Any) -> None:
        pass


async def test_a_cancellation_leaves_a_prompt_that_follows_at_once() -> None:
    first, second = Gate(), Gate()
    model = GatedModel(["One two.", "Three four."], within={1: first, 2: second})
    agent = EditorAgent(create_graph_agent(model, checkpointer=InMemorySaver()), "ana")
    agent.on_connect(cast("Client", _Silent()))
    session_id = (await agent.new_session()).session_id
    prompt = asyncio.create_task(agent.prompt([text_block("hi")], session_id))
    await first.reached()
    cancelling = asyncio.create_task(agent.cancel(session_id))
    stopped = await prompt
    following = asyncio.create_task(agent.prompt([text_block("and now?")], session_id))
    await asyncio.gather(cancelling, second.reached())
    second.open()

    assert (stopped.stop_reason, (await following).stop_reason) == ("cancelled", "end_turn")
