"""Calls that wait for approval: the request, the decisions, and the calls that run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, after_model, wrap_tool_call
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve, edit, reject, respond
from graph_agent.calls import Call
from graph_agent.errors import InputError
from graph_agent.session.results import EventAdded, Progress
from tests.support.agents import asks, kinds, says, thread
from tests.support.approvals import Desk, asked
from tests.support.wave_helpers import DONE, plan, use

MIXED = asks(
    ("1", "write", {"path": "a"}),
    ("2", "read", {"path": "b"}),
    ("3", "write", {"path": "c"}),
    ("4", "write", {"path": "d"}),
)
ONE = asks(("1", "write", {"path": "a"}))
WROTE_A = {"1": "wrote a"}


def rejected(reason: str) -> dict[str, str]:
    return {"error": f"Not run: a person rejected this call. {reason}"}


async def test_one_request_lists_all_calls_and_the_others_run_at_once() -> None:
    desk = Desk(MIXED, "Done.")

    waiting = await desk.session.run("go")
    ran = [*desk.ran]
    result = await desk.session.resume({"decisions": [approve(), reject("Keep c."), edit({"path": "e"})]})

    assert (asked(waiting.interrupts), ran, desk.ran, result.results) == (
        [[("write", {"path": "a"}), ("write", {"path": "c"}), ("write", {"path": "d"})]],
        ["read b"],
        ["read b", "wrote a", "wrote e"],
        {"1": "wrote a", "2": "read b", "3": rejected("Reason: Keep c."), "4": "wrote e"},
    )


def result_ids(messages: Sequence[Any]) -> list[str]:
    return [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]


@pytest.mark.parametrize("text", ["1: approve\n2: reject\n3: respond: ok", "1: reject\n2: approve\n3: approve"])
async def test_results_reach_the_model_in_call_order_after_approvals(text: str) -> None:
    desk = Desk(MIXED, "Done.")
    await desk.session.run("go")
    await desk.session.resume(text)

    in_order = ["1", "2", "3", "4"]
    assert (result_ids(desk.model.requests[-1].messages), list(await desk.answers())) == (in_order, in_order)


@wrap_tool_call
async def guard(request: Any, handler: Any) -> ToolMessage:
    """Denies a call or answers it, by its `path`."""
    denies = request.tool_call["args"]["path"] == "denied"
    return ToolMessage("Rule 7.", tool_call_id=request.tool_call["id"], status="error" if denies else "success")


@after_model
def reviewer(state: Any, runtime: Any) -> dict[str, Any] | None:
    """Behaves like `guard`, before the calls are announced."""
    calls = state["messages"][-1].tool_calls
    statuses = ["error" if call["args"]["path"] == "denied" else "success" for call in calls]
    results = zip(calls, statuses, strict=True)
    return {"messages": [ToolMessage("Rule 7.", tool_call_id=call["id"], status=to) for call, to in results]}


HUMAN = HumanInTheLoopMiddleware({"write": True})


@pytest.mark.parametrize(
    ("options", "by"),
    [
        ({"approve": ["write"]}, "ann"),
        ({"approve": None, "hooks": [HUMAN]}, "ann"),
        ({"approve": None, "hooks": [guard]}, "guard"),
        ({"approve": None, "hooks": [reviewer]}, "reviewer"),
    ],
    ids=["policy", "person through middleware", "around the tool", "after the model"],
)
async def test_a_call_that_did_not_run_is_recorded_as_denied_or_answered_with_a_name(options: Any, by: str) -> None:
    desk = Desk(asks(("1", "write", {"path": "denied"}), ("2", "write", {"path": "b"})), "Done.", **options)
    result = await desk.session.run("go")
    if result.interrupts:
        answer = {"decisions": [reject("Rule 7."), respond("Rule 7.")]}
        result = await desk.session.resume(answer, decided_by="ann")

    results = [each for each in await desk.session.events() if each["type"] == "tool_result"]
    assert (desk.ran, [(each["id"], each["status"], each.get("decided_by")) for each in results]) == (
        [],
        [("1", "denied", by), ("2", "answered", by)],
    )
    assert all("Rule 7." in each["content"] for each in results)
    assert (list(result.results["1"]), result.results["2"]) == (["error"], "Rule 7.")


async def test_a_call_that_loop_detection_withheld_is_recorded_as_denied() -> None:
    script = [asks((str(n), "read", {"path": "a"})) for n in range(5)]
    desk = Desk(*script, "Done.", approve=None, config={"max_steps": 9})

    await desk.session.run("go")

    results = [each for each in await desk.session.events() if each["type"] == "tool_result"]
    assert [(each["status"], each.get("decided_by")) for each in results[3:]] == [
        ("success", None),
        ("denied", "loop_detection"),
    ]


async def test_the_history_has_the_request_and_each_decision() -> None:
    desk = Desk(MIXED, "Done.")
    await desk.session.run("go")
    while_waiting = kinds(await desk.session.events())

    await desk.session.resume({"decisions": {"1": approve(), "3": reject("Keep c.")}}, decided_by="ana")
    await desk.session.resume({"decisions": [edit({"path": "e"}, name="erase")]})

    assert (while_waiting[-1], await desk.decisions()) == (
        "approval_request",
        [
            {"id": "1", "name": "write", "decision": "approve", "decided_by": "ana"},
            {"id": "3", "name": "write", "decision": "reject", "message": "Keep c.", "decided_by": "ana"},
            {
                "id": "4",
                "name": "write",
                "decision": "edit",
                "arguments": {"path": "e"},
                "edited_name": "erase",
                "decided_by": "user",
            },
        ],
    )


async def test_a_call_is_announced_only_once_it_is_approved() -> None:
    desk = Desk(ONE, "Done.")
    await desk.session.run("go")
    await desk.session.resume(approve())

    assert kinds(await desk.session.events()) == [
        "user_message",
        "status",
        "plan",
        "approval_request",
        "approval_decision",
        "tool_call",
        "tool_result",
        "plan",
        "agent_response",
        "status",
    ]


async def test_undecided_calls_are_asked_about_again() -> None:
    desk = Desk(MIXED, "Done.")
    await desk.session.run("go")

    waiting = await desk.session.resume({"decisions": {"3": approve()}})
    result = await desk.session.resume([reject(), approve()])

    assert (asked(waiting.interrupts), desk.ran, result.results["1"]) == (
        [[("write", {"path": "a"}), ("write", {"path": "d"})]],
        ["read b", "wrote c", "wrote d"],
        rejected("Do not repeat it unless the user asks for it."),
    )


async def test_an_edit_is_recorded_in_the_messages() -> None:
    desk = Desk(ONE, "Done.")
    await desk.session.run("go")
    result = await desk.session.resume(edit({"path": "b", "lines": 2}))

    assert (await desk.calls(), result.results) == ([("write", {"path": "b", "lines": 2})], {"1": "wrote b"})


async def test_an_edit_of_a_message_with_content_blocks_is_recorded_in_the_messages() -> None:
    blocks: list[Any] = [
        {"type": "text", "text": "I write."},
        {"type": "tool_use", "id": "1", "name": "write", "input": {"path": "a"}},
    ]
    calls = [ToolCall(id="1", name="write", args={"path": "a"})]
    desk = Desk(AIMessage(blocks, tool_calls=calls), "Done.")
    await desk.session.run("go")
    await desk.session.resume(edit({"path": "b"}))
    messages = (await desk.graph.aget_state(thread())).values["messages"]

    assert (messages[1].content, await desk.calls()) == (
        [{"type": "text", "text": "I write."}],
        [("write", {"path": "b"})],
    )


async def test_the_model_receives_a_notice_of_an_edit_once_and_no_chat_window_shows_it() -> None:
    desk = Desk(ONE, asks(("2", "read", {"path": "c"})), "Done.")
    await desk.session.run("go")
    await desk.session.resume(edit({"path": "b"}, name="erase"))
    notices = [each for each in desk.model.requests[-1].messages if each.text.startswith("[Notice")]

    assert [(each.text, (each.id or "").startswith("do-not-render-")) for each in notices] == [
        (
            "[Notice from the agent framework, not from the user: a person changed calls before they ran. "
            'write {"path": "a"} ran as erase {"path": "b"}. This was intended: do not repeat the planned call unless '
            "the user asks for it.]",
            True,
        )
    ]


async def test_a_response_is_the_result_of_the_call() -> None:
    desk = Desk(ONE, "Done.")
    await desk.session.run("go")
    result = await desk.session.resume(respond("It is there already."))

    assert (result.results, await desk.answers(), desk.ran) == (
        {"1": "It is there already."},
        {"1": "It is there already."},
        [],
    )


async def test_the_model_receives_the_reason_of_a_rejection() -> None:
    desk = Desk(ONE, "Done.")
    await desk.session.run("go")
    await desk.session.resume(reject("Use b."))
    answer = desk.model.requests[-1].messages[-1]

    assert (answer.type, answer.text, answer.status) == (  # type: ignore[attr-defined]  # of a tool message
        "tool",
        "Not run: a person rejected this call. Reason: Use b.",
        "error",
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"decisions": [approve()]}, "has 1 decisions, and 3 calls wait"),
        ({"decisions": {"1": {"type": "maybe"}}}, "has the type 'maybe'"),
        ({"decisions": {"1": edit({"path": "x"}, name="format")}}, "the agent has no tool 'format'"),
        ({"decisions": {"1": edit({"lines": 3})}}, "the field 'path' is missing"),
        ({"decisions": {"1": edit({"path": "x", "line": 3})}}, "write has no argument 'line'.*Did you mean 'lines'"),
        ({"decisions": {"1": edit({"path": "x", "lines": "many"})}}, "lines='many'"),
        ("yes, but later", "is no decision"),
        ("sure", "is no decision"),
    ],
)
async def test_a_decision_that_does_not_fit_is_refused_and_the_session_waits_as_before(
    answer: Any, message: str
) -> None:
    desk = Desk(MIXED, "Done.")
    before = await desk.session.run("go")
    at = (await desk.graph.aget_state(thread())).config

    with pytest.raises(InputError, match=message):
        await desk.session.resume(answer)

    state = await desk.graph.aget_state(thread())
    assert (list(state.interrupts), state.config, desk.ran) == (before.interrupts, at, ["read b"])
    await desk.session.resume(approve())
    assert desk.ran == ["read b", "wrote a", "wrote c", "wrote d"]


async def test_a_bare_resume_with_an_answer_that_does_not_fit_repeats_the_question_with_the_reason() -> None:
    desk = Desk(ONE, "Done.")
    await desk.graph.ainvoke(says("go"), thread())

    wrong: Any = await desk.graph.ainvoke(Command(resume={"decisions": []}), thread())
    again: Any = await desk.graph.ainvoke(Command(resume="what?"), thread())
    await desk.graph.ainvoke(Command(resume={"decisions": [approve()]}), thread())

    errors = [each["__interrupt__"][0].value["error"] for each in (wrong, again)]
    assert (errors, desk.ran) == (
        [
            "The answer has 0 decisions, and 1 calls wait: 1 (write). Give one decision for each, in this order, or a "
            "mapping of call id to decision.",
            '\'what?\' is no decision on the calls that wait. Answer with one of: "approve", "reject", '
            '"reject: <reason>", "edit: {<all arguments as JSON>}", "respond: <the result>".',
        ],
        ["wrote a"],
    )


async def test_text_may_answer_a_request() -> None:
    desk = Desk(MIXED, "Done.")
    await desk.session.run("go")
    result = await desk.session.resume("1: approve\n2: no, keep c\n3: approve")

    assert (desk.ran, result.results["3"]) == (["read b", "wrote a", "wrote d"], rejected("Reason: keep c"))


@pytest.mark.parametrize("again", [True, False])
async def test_an_edit_is_reviewed_by_the_policy_of_the_new_call(again: bool) -> None:
    def policy(call: Call) -> Any:
        if call["name"] != "write":
            return False
        return ["approve", "reject"] if call["arguments"]["path"] == "/etc" else True

    desk = Desk(ONE, "Done.", approve=policy)
    await desk.session.run("go")
    result = await desk.session.resume(edit({"path": "/etc" if again else "b"}))

    expected = ([[("write", {"path": "/etc"})]], []) if again else ([], ["wrote b"])
    assert (asked(result.interrupts), desk.ran) == expected


@pytest.mark.parametrize(("rules", "question"), [(["write", "erase"], [[("erase", {"path": "a"})]]), (["write"], [])])
async def test_an_edit_to_another_tool_does_not_bypass_the_policy_of_that_tool(rules: Any, question: Any) -> None:
    desk = Desk(ONE, "Done.", approve=rules)
    await desk.session.run("go")

    result = await desk.session.resume(edit({"path": "a"}, name="erase"))
    ran = [*desk.ran]
    if question:
        result = await desk.session.resume(approve())

    assert (ran, desk.ran, result.results) == (
        [] if question else ["erased a"],
        ["erased a"],
        {"1": "erased a"},
    )


async def test_an_edit_may_replace_a_call_by_a_delegation() -> None:
    scribe = create_graph_agent(ScriptedChatModel(["Written."]))
    desk = Desk(ONE, "Done.", delegates=[GraphDelegate("scribe", "Writes.", scribe)])
    await desk.session.run("go")

    with pytest.raises(InputError, match="delegate_to_scribe takes"):
        await desk.session.resume(edit({"path": "a"}, name="delegate_to_scribe"))
    result = await desk.session.resume(edit({"task": "Write a."}, name="delegate_to_scribe"))

    assert (result.results, desk.ran) == ({"1": "Written."}, [])


async def test_a_call_of_a_structured_plan_is_asked_about_with_its_real_arguments_once_it_is_ready() -> None:
    desk = Desk(
        plan(
            use("a", "read", path="x"),
            use("b", "write", path="${a}"),
            use("c", "read", "b", path="y"),
            use("d", "write", "c", path="z"),
        ),
        DONE,
        "Done.",
        config={"tool_calling": "wave"},
    )

    first = await desk.session.run("go")
    second = await desk.session.resume(approve())
    result = await desk.session.resume(reject())

    assert (asked(first.interrupts), asked(second.interrupts), desk.ran, result.pending) == (
        [[("write", {"path": "read x"})]],
        [[("write", {"path": "z"})]],
        ["read x", "wrote read x", "read y"],
        [],
    )


async def test_calls_that_need_no_approval_run_before_the_question_at_every_level() -> None:
    desk = Desk(
        plan(use("w", "write", path="a"), use("r", "read", path="b"), use("s", "read", "r", path="c")),
        DONE,
        "Done.",
        config={"tool_calling": "wave"},
    )

    await desk.session.run("go")

    assert desk.ran == ["read b", "read c"]


async def test_calls_that_need_a_rejected_one_are_skipped() -> None:
    desk = Desk(
        plan(use("a", "write", path="x"), use("b", "read", path="${a}")),
        DONE,
        "Done.",
        config={"tool_calling": "wave"},
    )
    await desk.session.run("go")
    result = await desk.session.resume(reject())

    assert (desk.ran, result.results["b"]) == ([], {"error": "Not run: it needs 'a', which failed or was not run."})


async def test_an_edit_of_a_structured_plan_is_taken_literally() -> None:
    desk = Desk(
        plan(use("a", "read", path="x"), use("b", "write", path="${a}"), use("c", "read", path="${b}")),
        DONE,
        "Done.",
        config={"tool_calling": "wave"},
    )
    await desk.session.run("go")
    result = await desk.session.resume(edit({"path": "${HOME}/${a} and $${b}"}))

    assert (result.waiting, desk.ran) == (
        None,
        ["read x", "wrote ${HOME}/${a} and $${b}", "read wrote ${HOME}/${a} and $${b}"],
    )


async def test_an_edit_by_langchains_middleware_does_not_bypass_the_approval_of_another_tool() -> None:
    desk = Desk(
        asks(("1", "read", {"path": "a"}), ("2", "read", {"path": "b"})),
        "Done.",
        hooks=[HumanInTheLoopMiddleware({"read": True})],
    )
    await desk.session.run("go")
    result = await desk.session.resume({"decisions": [edit({"path": "x"}, name="write"), edit({"path": "y"})]})

    assert (desk.ran, "'write', which needs a person's approval" in result.results["1"]["error"]) == (["read y"], True)
    results = [each for each in await desk.session.events() if each["type"] == "tool_result"]
    assert [(each["status"], each.get("decided_by")) for each in results] == [("denied", "approve"), ("success", None)]


async def test_middleware_may_change_the_arguments_of_an_approved_call() -> None:
    class Below(AgentMiddleware):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            arguments = {"path": f"below/{request.tool_call['args']['path']}"}
            return await handler(request.override(tool_call={**request.tool_call, "args": arguments}))

    desk = Desk(ONE, "Done.", hooks=[Below()])
    await desk.session.run("go")
    await desk.session.resume(approve())

    assert desk.ran == ["wrote below/a"]


async def test_calls_in_text_can_be_approved() -> None:
    desk = Desk(ONE, "No more actions.", "Done.", config={"tool_calling": "text", "finalize": "compose"})
    await desk.session.run("go")

    assert (await desk.session.resume(edit({"path": "b"}))).results == {"1": "wrote b"}


async def test_a_tool_that_asks_by_itself_is_answered_before_the_request() -> None:
    @tool
    def book(room: str) -> str:
        """Book a room."""
        return f"{room}: {interrupt(room)}"

    desk = Desk(asks(("1", "write", {"path": "a"}), ("2", "book", {"room": "7"})), "Done.", tools=[book])

    first = await desk.session.run("go")
    second = await desk.session.resume("yes")
    result = await desk.session.resume(approve())

    assert ([each.value for each in first.interrupts], asked(second.interrupts), result.results) == (
        ["7"],
        [[("write", {"path": "a"})]],
        {"1": "wrote a", "2": "7: yes"},
    )


async def test_an_approved_tool_may_ask_by_itself() -> None:
    @tool
    def book(room: str) -> str:
        """Book a room."""
        return f"{room}: {interrupt(room)}"

    desk = Desk(asks(("1", "book", {"room": "7"})), "Done.", tools=[book], approve=["book"])
    await desk.session.run("go")
    waiting = await desk.session.resume(approve())
    result = await desk.session.resume("yes")

    assert ([each.value for each in waiting.interrupts], result.results) == (["7"], {"1": "7: yes"})


async def test_requests_of_delegates_reach_the_session_and_each_is_answered_by_its_id() -> None:
    ran: list[str] = []

    def worker(name: str) -> GraphDelegate:
        @tool
        def pay(amount: int) -> str:
            """Pay."""
            ran.append(f"{name} paid {amount}")
            return "paid"

        model = ScriptedChatModel([asks(("p", "pay", {"amount": 5})), f"{name} is done."])
        graph = create_graph_agent(model, tools=[pay], config=LoopConfig(approve=["pay"]))
        return GraphDelegate(name, "Pays.", graph)

    model = ScriptedChatModel(
        [asks(("1", "delegate_to_a", {"task": "Pay."}), ("2", "delegate_to_b", {"task": "Pay."})), "Done."]
    )
    graph = create_graph_agent(model, delegates=[worker("a"), worker("b")], checkpointer=InMemorySaver())
    session = Session(graph, "s1")

    waiting = await session.run("go")
    first, second = waiting.interrupts
    with pytest.raises(InputError, match="has the type 'maybe'"):
        await session.resume({first.id: [{"type": "maybe"}], second.id: [approve()]})
    result = await session.resume({first.id: approve(), second.id: reject("No.")}, decided_by="ana")

    assert (ran, result.results) == (["a paid 5"], {"1": "a is done.", "2": "b is done."})
    history = {event["id"]: event["history"] for event in await session.events() if "history" in event}  # type: ignore[typeddict-item]  # of delegations
    assert [
        [(entry["decision"], entry["decided_by"]) for entry in events if entry["type"] == "approval_decision"]
        for events in history.values()
    ] == [[("approve", "ana")], [("reject", "ana")]]


async def test_the_stream_has_the_request_and_its_progress() -> None:
    desk = Desk(ONE, "Done.")
    parts = [part async for part in desk.session.stream("go")]

    requests = [
        part.event for part in parts if isinstance(part, EventAdded) and part.event["type"] == "approval_request"
    ]
    assert ([part for part in parts if isinstance(part, Progress)], [event["calls"] for event in requests]) == (
        [Progress(1, "approval", "write")],
        [
            [
                {
                    "id": "1",
                    "name": "write",
                    "arguments": {"path": "a"},
                    "allowed_decisions": ["approve", "edit", "reject", "respond"],
                }
            ]
        ],
    )


async def test_a_resumed_stream_records_who_decided() -> None:
    desk = Desk(ONE, "Done.")
    await desk.session.run("go")
    async for _ in desk.session.stream_resume(approve(), decided_by="ana"):
        pass

    assert [entry["decided_by"] for entry in await desk.decisions()] == ["ana"]


async def test_a_rejected_call_is_not_pending_at_a_limit() -> None:
    desk = Desk(ONE, "Best effort.", config={"max_steps": 1})
    await desk.session.run("go")
    result = await desk.session.resume(reject())

    assert (result.stop_reason, result.pending) == ("step_limit", [])


async def test_an_approved_call_runs_at_the_last_step() -> None:
    desk = Desk(ONE, "Best effort.", config={"max_steps": 1})
    await desk.session.run("go")

    assert (await desk.session.resume(approve())).results == WROTE_A


async def test_repeated_calls_count_as_a_loop_although_each_was_approved() -> None:
    desk = Desk(*[ONE] * 3, "Done.", config={"max_steps": 9})
    result = await desk.session.run("go")
    for _ in range(3):
        result = await desk.session.resume(approve())

    assert ("loop_detected" in kinds(await desk.session.events()), result.answer) == (True, "Done.")


async def test_approval_works_with_the_effect_ledger() -> None:
    desk = Desk(MIXED, "Done.", config={"effect_ledger": True})
    await desk.session.run("go")
    result = await desk.session.resume({"decisions": [approve(), reject(), approve()]})

    assert (desk.ran, result.results["4"]) == (["read b", "wrote a", "wrote d"], "wrote d")


async def test_a_person_may_deny_a_waiting_call_by_an_edit_of_the_state() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"}), ("2", "write", {"path": "b"})), "Done.")
    await desk.session.run("go")
    denial = ToolMessage("Denied.", tool_call_id="1", status="error")
    await desk.graph.aupdate_state(thread(), {"messages": [denial]})

    waiting = await desk.session.resume()
    result = await desk.session.resume(approve())

    assert (asked(waiting.interrupts), desk.ran, result.results) == (
        [[("write", {"path": "b"})]],
        ["wrote b"],
        {"1": {"error": "Denied."}, "2": "wrote b"},
    )


@pytest.mark.parametrize("arguments", [{"path": "a"}, {"path": "x"}])
async def test_an_edit_of_the_state_does_not_bypass_approval(arguments: dict[str, Any]) -> None:
    desk = Desk(ONE, "Done.")
    await desk.session.run("go")
    planned = (await desk.graph.aget_state(thread())).values["messages"][-1]
    calls = [
        {"id": "1", "name": "write", "args": arguments, "type": "tool_call"},
        {"id": "2", "name": "write", "args": {"path": "new"}, "type": "tool_call"},
    ]
    await desk.graph.aupdate_state(thread(), {"messages": [planned.model_copy(update={"tool_calls": calls})]})

    waiting = await desk.session.resume()
    result = await desk.session.resume(approve())

    assert (asked(waiting.interrupts), result.results) == (
        [[("write", arguments), ("write", {"path": "new"})]],
        {"1": f"wrote {arguments['path']}", "2": "wrote new"},
    )


async def test_an_edit_at_a_breakpoint_does_not_bypass_approval() -> None:
    desk = Desk(asks(("1", "read", {"path": "a"})), "Done.")
    await desk.graph.ainvoke(says("go"), thread(), interrupt_before=["tools"])
    planned = (await desk.graph.aget_state(thread())).values["messages"][-1]
    planned.tool_calls[0]["name"] = "write"
    await desk.graph.aupdate_state(thread(), {"messages": [planned]})

    waiting = await desk.session.resume()
    result = await desk.session.resume(approve())

    assert (asked(waiting.interrupts), result.results) == ([[("write", {"path": "a"})]], WROTE_A)


def test_a_blocking_run_waits_for_approval() -> None:
    desk = Desk(MIXED, "Done.")

    waiting: Any = desk.graph.invoke(says("go"), thread())
    ended: Any = desk.graph.invoke(Command(resume={"decisions": [approve()] * 3}), thread())

    assert (asked(waiting["__interrupt__"]), ended["messages"][-1].text, sorted(desk.ran)) == (
        [[("write", {"path": "a"}), ("write", {"path": "c"}), ("write", {"path": "d"})]],
        "Done.",
        ["read b", "wrote a", "wrote c", "wrote d"],
    )


async def test_a_request_reaches_a_parent_graph_and_is_answered_there() -> None:
    desk = Desk(ONE, "Done.", checkpointer=None)
    parent = StateGraph(MessagesState)
    parent.add_node("agent", desk.graph)
    parent.add_edge(START, "agent")
    graph = parent.compile(checkpointer=InMemorySaver())

    waiting: Any = await graph.ainvoke(says("go"), thread())  # type: ignore[call-overload]  # a plain mapping
    ended = await graph.ainvoke(Command(resume={"decisions": [approve()]}), thread())

    assert (asked(waiting["__interrupt__"]), ended["messages"][-1].text, sorted(desk.ran)) == (
        [[("write", {"path": "a"})]],
        "Done.",
        ["wrote a"],
    )


async def test_requests_of_langchain_s_middleware_in_a_delegate_are_answered_in_the_same_way() -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    ran: list[str] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(f"paid {amount}")
        return "paid"

    inner = create_agent(
        ScriptedChatModel([asks(("1", "pay", {"amount": 5}), ("2", "pay", {"amount": 6})), "Paid."]),
        tools=[pay],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})],
    )
    desk = Desk(
        asks(("d", "delegate_to_bank", {"task": "Pay."})),
        "Done.",
        delegates=[GraphDelegate("bank", "Pays.", inner)],
    )
    waiting = await desk.session.run("go")
    with pytest.raises(InputError, match="must be decided together: 2"):
        await desk.session.resume({"decisions": {"1": approve()}})
    result = await desk.session.resume("1: approve\n2: reject: too much")

    assert (waiting.waiting, ran, result.results) == ("approval", ["paid 5"], {"d": "Paid."})


async def test_a_decision_without_a_name_is_refused_and_the_question_stays() -> None:
    desk = Desk(ONE, "Done.")
    await desk.session.run("go")
    with pytest.raises(InputError, match=r"decided_by=' ': give the person's name"):
        await desk.session.resume(approve(), decided_by=" ")
    waiting = len(await desk.session.interrupts())

    result = await desk.session.resume(approve(), decided_by="ana")

    assert (waiting, result.answer) == (1, "Done.")
