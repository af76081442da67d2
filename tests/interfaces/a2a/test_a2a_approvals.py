"""Approvals over A2A: the question of a task, and its answers."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import GetTaskRequest, Part, Task
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from langchain_core.tools import tool
from langgraph.types import interrupt

from graph_agent import A2ADelegate, GraphDelegate
from graph_agent.approvals import edit
from tests.support.a2a_client import BINDINGS, a2a_client, artifact_texts, message_request, send, state_name
from tests.support.a2a_servers import serving_ours
from tests.support.agents import asks
from tests.support.approvals import ALL, Desk, asked

WRITE = asks(("1", "write", {"path": "a", "lines": 2}))
QUESTION = (
    'A call waits for approval:\n1. write {"path": "a", "lines": 2}\n'
    'Answer with one of: "approve", "reject", "reject: <reason>", "edit: {<all arguments as JSON>}", '
    '"respond: <the result>".'
)


DELEGATED = asks(("d", "delegate_to_clerk", {"task": "Write b."}), ("1", "write", {"path": "a", "lines": 2}))
"""A call of the agent itself and a delegation; both need approval."""
BOTH = [
    "2 calls wait for approval:",
    '1. write {"path": "b"}',
    "   Delegate clerk",
    '2. write {"path": "a", "lines": 2}',
]


@tool
def choose(what: str) -> str:
    """Have a person choose."""
    return f"{what}: {interrupt(what)}"


def desks() -> tuple[Desk, Desk]:
    """An agent, and its delegate `clerk`; each has a call that needs approval."""
    clerk = Desk(asks(("2", "write", {"path": "b"})), "Written.", checkpointer=None)
    return Desk(DELEGATED, "Done.", delegates=[GraphDelegate("clerk", "Writes.", clerk.graph)]), clerk


def question_lines(task: Task) -> list[str]:
    """The lines of a task's question, without the explanation of how to answer it."""
    return task.status.message.parts[-2].text.splitlines()[:-1]


def data_answer(waiting: Any, data: Any) -> Any:
    """A message that answers a task's question with a data part."""
    request = message_request("", waiting)
    del request.message.parts[:]
    request.message.parts.append(Part(data=ParseDict(data, Value())))
    return request


async def test_a_question_is_text_and_data() -> None:
    with serving_ours(Desk(WRITE).graph) as url:
        async with a2a_client(url, streaming=False) as client:
            waiting = await send(client, message_request("go"))
    text, data = waiting.status.message.parts

    assert (state_name(waiting), text.text, MessageToDict(data.data)) == (
        "TASK_STATE_INPUT_REQUIRED",
        QUESTION,
        {
            "action_requests": [{"name": "write", "args": {"path": "a", "lines": 2.0}}],
            "review_configs": [{"action_name": "write", "allowed_decisions": ALL}],
            "call_ids": ["1"],
        },
    )


@pytest.mark.parametrize(
    ("answer", "ran", "decision"),
    [
        ("approve", ["wrote a"], "approve"),
        ("reject: not now", [], "reject"),
        ({"decisions": [{"type": "approve"}], "decided_by": "mallory"}, ["wrote a"], "approve"),
        ({"decisions": [{"type": "edit", "edited_action": {"args": {"path": "b", "lines": 3}}}]}, ["wrote b"], "edit"),
    ],
)
async def test_decisions_are_sent_as_text_or_data(answer: Any, ran: list[str], decision: str) -> None:
    desk = Desk(WRITE, "Done.")
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False) as client:
            waiting = await send(client, message_request("go", context_id="s1"))
            reply = message_request(answer, waiting) if isinstance(answer, str) else data_answer(waiting, answer)
            done = await send(client, reply)
        decisions = await desk.decisions()

    assert (state_name(done), artifact_texts(done), desk.ran) == ("TASK_STATE_COMPLETED", ["Done."], ran)
    assert [(each["decision"], each["decided_by"]) for each in decisions] == [(decision, "user")]


@pytest.mark.parametrize(("version", "binding"), BINDINGS)
@pytest.mark.parametrize(
    ("answer", "ran"),
    [
        ("approve", ["wrote a", "wrote b"]),
        ("1: reject: no\n2: approve", ["wrote a"]),
        ({"decisions": [{"type": "approve"}, {"type": "reject"}]}, ["wrote b"]),
        ({"decisions": {"1": {"type": "approve"}, "2": {"type": "reject"}}}, ["wrote a"]),
    ],
    ids=["one decision", "lines", "list", "by id"],
)
async def test_one_answer_decides_on_the_calls_of_an_agent_and_of_its_delegate(
    version: str, binding: str, answer: Any, ran: list[str]
) -> None:
    desk, clerk = desks()
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False, version=version, binding=binding) as client:
            waiting = await send(client, message_request("go", context_id="s1"))
            reply = message_request(answer, waiting) if isinstance(answer, str) else data_answer(waiting, answer)
            done = await send(client, reply)

    assert (question_lines(waiting), state_name(done), artifact_texts(done), sorted(desk.ran + clerk.ran)) == (
        BOTH,
        "TASK_STATE_COMPLETED",
        ["Done."],
        ran,
    )


async def test_calls_without_a_decision_are_asked_about_again() -> None:
    desk, clerk = desks()
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False) as client:
            waiting = await send(client, message_request("go", context_id="s1"))
            unclear = await send(client, message_request("why?", waiting))
            partial = await send(client, message_request("2: approve", waiting))
            done = await send(client, message_request("reject", waiting))

    assert [question_lines(task) for task in (unclear, partial)] == [
        BOTH,
        ["A call waits for approval:", *BOTH[1:3]],
    ]
    assert ("no decision" in unclear.status.message.parts[0].text, state_name(done), desk.ran, clerk.ran) == (
        True,
        "TASK_STATE_COMPLETED",
        ["wrote a"],
        [],
    )


async def test_an_answer_to_a_question_that_has_changed_gets_the_new_question() -> None:
    desk, clerk = desks()
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False) as client:
            waiting = await send(client, message_request("go", context_id="s1"))
            delegated, _ = await desk.session.interrupts()
            await desk.session.resume({delegated.id: "reject"})
            late = await send(client, message_request("1: reject\n2: approve", waiting))
            done = await send(client, message_request("approve", waiting))

    assert (late.status.message.parts[0].text, question_lines(late), desk.ran, clerk.ran, state_name(done)) == (
        "The question has changed, and the answer was not used. Answer the new question.",
        ["A call waits for approval:", '1. write {"path": "a", "lines": 2}'],
        ["wrote a"],
        [],
        "TASK_STATE_COMPLETED",
    )


async def test_one_answer_decides_on_the_calls_of_a_remote_agent_and_of_its_delegate() -> None:
    remote, clerk = desks()
    with serving_ours(remote.graph) as url:
        desk = Desk(
            asks(("d", "delegate_to_scribe", {"task": "Write."})),
            "Done.",
            config={"max_delegation_depth": 2},
            delegates=[A2ADelegate("scribe", url)],
        )
        waiting = await desk.session.run("go")
        result = await desk.session.resume("1: reject\n2: approve", decided_by="ana")
        decisions = await desk.decisions()

    assert (asked(waiting.interrupts), result.results, remote.ran, clerk.ran) == (
        [[("write", {"path": "b"}), ("write", {"path": "a", "lines": 2})]],
        {"d": "Done."},
        ["wrote a"],
        [],
    )
    assert [(each["decision"], each["decided_by"]) for each in decisions] == [("reject", "ana"), ("approve", "ana")]


async def test_an_answer_without_ids_decides_on_approvals_and_leaves_a_question_of_another_kind_open() -> None:
    remote = Desk(asks(("1", "choose", {"what": "color"})), "Red.", tools=[choose])
    with serving_ours(remote.graph) as url:
        desk = Desk(
            asks(("d", "delegate_to_painter", {"task": "Paint."}), ("w", "write", {"path": "a"})),
            "Done.",
            delegates=[A2ADelegate("painter", url)],
        )
        waiting = await desk.session.run("go")
        left = await desk.session.resume("approve")
        result = await desk.session.resume("red")

    assert ([waiting.waiting, left.waiting], left.interrupts[0].value["question"], result.results) == (
        ["approval", "answer"],
        "color",
        {"d": "Red.", "w": "wrote a"},
    )


async def test_questions_that_are_no_approvals_are_asked_one_after_the_other() -> None:
    wave = asks(("1", "choose", {"what": "color"}), ("2", "choose", {"what": "size"}), ("3", "write", {"path": "a"}))
    desk = Desk(wave, "Done.", tools=[choose])
    questions: list[str] = []
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False) as client:
            task = await send(client, message_request("go", context_id="s1"))
            for answer in ("red", "large", "approve"):
                questions.append(task.status.message.parts[0].text.splitlines()[0])
                task = await send(client, message_request(answer, task))

    assert (questions, state_name(task), await desk.answers()) == (
        ["color", "size", "A call waits for approval:"],
        "TASK_STATE_COMPLETED",
        {"1": "color: red", "2": "size: large", "3": "wrote a"},
    )


async def test_an_answer_that_does_not_fit_leaves_the_task_waiting() -> None:
    desk = Desk(WRITE, "Done.")
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False) as client:
            waiting = await send(client, message_request("go"))
            for misfit in ("What is in it?", "edit: {}"):
                waiting = await send(client, message_request(misfit, waiting))
            reason = waiting.status.message.parts[0].text
            await send(client, message_request("approve", waiting))
            done = await client.get_task(GetTaskRequest(id=waiting.id))

    assert ("the field 'path' is missing" in reason, state_name(done), desk.ran) == (
        True,
        "TASK_STATE_COMPLETED",
        ["wrote a"],
    )


async def test_the_question_of_a_remote_agent_is_answered_in_the_delegating_session() -> None:
    remote = Desk(WRITE, "Written.")
    with serving_ours(remote.graph) as url:
        desk = Desk(
            asks(("d", "delegate_to_scribe", {"task": "Write a."})), "Done.", delegates=[A2ADelegate("scribe", url)]
        )
        waiting = await desk.session.run("go")
        result = await desk.session.resume("approve")

    assert (waiting.interrupts[0].value["question"].startswith("A call waits"), result.results, remote.ran) == (
        True,
        {"d": "Written."},
        ["wrote a"],
    )


async def test_a_delegation_to_a_remote_agent_is_approved_before_anything_is_sent() -> None:
    remote = Desk("Written.")
    with serving_ours(remote.graph) as url:
        desk = Desk(
            asks(("d", "delegate_to_scribe", {"task": "Write a."})),
            "Done.",
            approve=["delegate_to_*"],
            delegates=[A2ADelegate("scribe", url)],
        )
        waiting = await desk.session.run("go")
        sent = len(remote.model.requests)
        result = await desk.session.resume("approve")

    assert (asked(waiting.interrupts), sent, result.results) == (
        [[("delegate_to_scribe", {"task": "Write a."})]],
        0,
        {"d": "Written."},
    )


async def test_the_history_has_the_request_of_a_remote_agent_and_the_decision() -> None:
    remote = Desk(WRITE, "Written.")
    with serving_ours(remote.graph) as url:
        desk = Desk(
            asks(("d", "delegate_to_scribe", {"task": "Write a."})), "Done.", delegates=[A2ADelegate("scribe", url)]
        )
        waiting = await desk.session.run("go")
        refused = await desk.session.resume(edit({"lines": 3}), decided_by="ana")
        await desk.session.resume(edit({"path": "b", "lines": 3}), decided_by="ana")
    events = [event for event in await desk.session.events() if event["type"].startswith("approval")]

    call = {"id": "1", "name": "write", "arguments": {"path": "a", "lines": 2}, "allowed_decisions": ALL}
    source = {"delegate": "scribe", "delegation": "d"}
    value = waiting.interrupts[0].value
    assert (waiting.waiting, refused.waiting, value["action_requests"], value["call_ids"], remote.ran) == (
        "approval",
        "approval",
        [{"name": "write", "args": {"path": "a", "lines": 2}, "description": "Delegate scribe"}],
        ["1"],
        ["wrote b"],
    )
    edited = {"id": "1", "name": "write", "decision": "edit", "arguments": {"path": "b", "lines": 3}}
    common = {"ts", "seq", "session_id", "step", "waited_s"}
    assert [{key: value for key, value in event.items() if key not in common} for event in events] == [
        {"type": "approval_request", "calls": [call], **source},
        {"type": "approval_decision", **edited, "decided_by": "ana", **source},
    ]


async def test_an_answer_that_a_remote_agent_refuses_does_not_use_up_its_id() -> None:
    remote = Desk(WRITE, "Written.")
    with serving_ours(remote.graph) as url:
        desk = Desk(
            asks(("d", "delegate_to_scribe", {"task": "Write a."})), "Done.", delegates=[A2ADelegate("scribe", url)]
        )
        await desk.session.run("go", input_id="a")
        refused = [await desk.session.resume(edit({"lines": 3}), input_id="b") for _ in range(2)]
        corrected = [await desk.session.resume(edit({"path": "b", "lines": 3}), input_id="b") for _ in range(2)]

    assert (refused[1], corrected[1], corrected[0].results, remote.ran) == (
        refused[0],
        corrected[0],
        {"d": "Written."},
        ["wrote b"],
    )
