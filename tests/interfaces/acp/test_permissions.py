"""ACP: approvals as permission requests, modes, and questions that are answered by a message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError
from acp.schema import RequestPermissionResponse

from tests.support.acp import AGENT, call, calls, cancelled, editor, prepare, select

SEND = calls(call("a", "send", to="ana"), text="I write.")
BOTH = calls(call("a", "send", to="ana"), call("b", "send", to="bo"))
END = ["No more actions.", "Done."]
ONE_OF = ["allow_once", "allow_always", "reject_once"]


def sent(folder: Path) -> list[str]:
    """Who got a mail."""
    file = folder / "sent"
    return file.read_text().split() if file.exists() else []


async def test_an_allowed_call_runs(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [SEND, *END]) as client:
        await client.begin()
        end = await client.prompt("hi")

    assert (end, sent(tmp_path), client.asked) == ("end_turn", ["ana"], [('send {"to": "ana"}', ONE_OF)])
    assert client.outline() == [
        *("agent: I write.", "a: pending", "a: in_progress", "a: completed Sent to ana.", "agent: Done.")
    ]


async def test_a_rejected_call_does_not_run_and_the_model_goes_on(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [SEND, *END], select("reject")) as client:
        await client.begin()
        end = await client.prompt("hi")

    assert (end, sent(tmp_path)) == ("end_turn", [])
    assert [line.split(" ", 2)[:2] for line in client.outline()] == [
        *(["agent:", "I"], ["a:", "pending"], ["a:", "failed"], ["agent:", "Done."])
    ]


async def test_two_approvals_of_one_wave_are_decided_one_by_one(tmp_path: Path) -> None:
    prepare(tmp_path)

    async def only_ana(tool_call: Any, options: Any) -> RequestPermissionResponse:
        return await select("allow" if "ana" in tool_call.title else "reject")(tool_call, options)

    async with editor(tmp_path, [BOTH, *END], only_ana) as client:
        await client.begin()
        await client.prompt("hi")

    assert (sent(tmp_path), len(client.asked)) == (["ana"], 2)
    assert client.plans()[-1] == ["completed", "completed"]


async def test_always_allow_counts_for_later_calls(tmp_path: Path) -> None:
    prepare(tmp_path)
    again = calls(call("b", "send", to="bo"))
    async with editor(tmp_path, [SEND, again, *END], select("always")) as client:
        await client.begin()
        await client.prompt("hi")

    assert (sent(tmp_path), len(client.asked)) == (["ana", "bo"], 1)


async def test_edited_arguments_in_the_metadata_are_used(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [SEND, *END], select("allow", editedArgs={"to": "eve"})) as client:
        await client.begin()
        await client.prompt("hi")

    assert sent(tmp_path) == ["eve"]


async def test_the_mode_approve_asks_nothing(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [SEND, *END]) as client:
        await client.begin()
        await client.within(client.connection.set_session_mode(session_id=client.session_id, mode_id="approve"))
        await client.prompt("hi")
        with pytest.raises(RequestError, match="no mode 'other'"):
            await client.within(client.connection.set_session_mode(session_id=client.session_id, mode_id="other"))

    assert (sent(tmp_path), client.asked) == (["ana"], [])


async def test_the_mode_approve_asks_about_a_call_that_may_have_run_before(tmp_path: Path) -> None:
    prepare(tmp_path, AGENT.replace("desk:send", "desk:wire").replace("[send]", "[wire]"))
    script = [calls(call("a", "wire", to="ana")), calls(call("b", "wire", to="bo"), call("c", "wire", to="ana")), *END]
    async with editor(tmp_path, script, select("reject")) as client:
        await client.begin()
        await client.within(client.connection.set_session_mode(session_id=client.session_id, mode_id="approve"))
        await client.prompt("hi")

    assert (sent(tmp_path), client.asked) == (["ana", "bo"], [('wire {"to": "ana"}', ONE_OF)])


async def test_a_cancelled_question_ends_the_prompt_and_settles_the_calls(tmp_path: Path) -> None:
    prepare(tmp_path)

    async def cancels(*_: Any) -> RequestPermissionResponse:
        return cancelled()

    async with editor(tmp_path, [BOTH, "Next."], cancels) as client:
        await client.begin()
        end = await client.prompt("hi")
        later = await client.prompt("and now?")

    assert (end, later, sent(tmp_path), len(client.asked)) == ("cancelled", "end_turn", [], 1)
    assert client.plans()[-1] == ["completed", "completed"]
    assert client.answer() == "Next."


async def test_a_cancelled_question_within_a_wave_settles_the_call_that_asked(tmp_path: Path) -> None:
    prepare(tmp_path, AGENT.replace("desk:ask", "desk:sign"))

    async def cancels(*_: Any) -> RequestPermissionResponse:
        return cancelled()

    wave = calls(call("a", "sign", text="x"), call("b", "echo", text="y"))
    async with editor(tmp_path, [wave], cancels) as client:
        await client.begin()
        end = await client.prompt("hi")

    updates = [line.split()[:2] for line in client.outline() if line[:2] in ("a:", "b:")]
    assert (end, [state for id_, state in updates if id_ == "a:"][-1]) == ("cancelled", "failed")
    assert updates.count(["b:", "completed"]) == 1


async def test_cancel_ends_a_prompt_whose_question_has_no_answer(tmp_path: Path) -> None:
    prepare(tmp_path)

    async def never(*_: Any) -> RequestPermissionResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with editor(tmp_path, [SEND, "Next."], never) as client:
        await client.begin()
        prompt = asyncio.create_task(client.prompt("hi"))
        await client.until(lambda: bool(client.asked))
        await client.connection.cancel(session_id=client.session_id)

        assert (await prompt, sent(tmp_path)) == ("cancelled", [])
        assert [line for line in client.outline() if line.startswith("a: failed")] != []
        assert await client.prompt("and now?") == "end_turn"


async def test_a_question_is_answered_by_the_next_message(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [calls(call("a", "ask")), *END]) as client:
        await client.begin()
        asked = await client.prompt("hi")
        question = client.answer()
        await client.prompt("blue")

    assert (asked, question) == ("end_turn", "Which colour?")
    assert client.outline()[-2:] == ["a: completed The person said blue.", "agent: Done."]


async def test_a_call_that_needs_a_text_is_decided_by_the_next_message(tmp_path: Path) -> None:
    prepare(tmp_path, AGENT.replace("config: {approve: [send], max_steps: 3}", 'approve: ["desk:by_hand"]'))
    async with editor(tmp_path, [SEND, *END]) as client:
        await client.begin()
        await client.prompt("hi")
        question = client.answer()
        await client.prompt("respond: It was sent by hand.")

    assert ("respond" in question, client.asked, sent(tmp_path)) == (True, [], [])
    assert client.outline()[-2:] == ["a: completed It was sent by hand.", "agent: Done."]
