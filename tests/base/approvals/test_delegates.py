"""Approvals of delegates in the delegating session: the question, the history, and recovery after a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve, edit, reject
from graph_agent.base.approvals.text import question_text
from graph_agent.errors import InputConflictError, InputError
from graph_agent.interfaces.cli.dialog import describe_question, questions_of
from graph_agent.session.results import EventAdded
from tests.support.agents import asks, thread
from tests.support.approvals import ALL, Desk, asked
from tests.support.gates import Gate, gated_tool

APPROVALS = ("approval_request", "approval_decision")
READ_ON = {"ts", "seq", "session_id", "step", "waited_s"}
PAY = asks(("p", "pay", {"amount": 5}))


def delegate(name: str, ran: list[str], *script: str | AIMessage, **options: Any) -> GraphDelegate:
    """A delegate with the tool `pay`, which needs approval, and records its calls in `ran`."""

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(f"{name} paid {amount}")
        return "paid"

    tools = [pay, *options.pop("tools", [])]
    config = LoopConfig(approve=["pay"], **options.pop("config", {}))
    graph = create_graph_agent(ScriptedChatModel(list(script)), tools=tools, config=config, **options)
    return GraphDelegate(name, "Pays.", graph)


def lead(*delegates: GraphDelegate, script: list[str] | None = None, **options: Any) -> Session:
    """A session of an agent that gives each delegate one task in one wave."""
    wave = asks(*((str(at), f"delegate_to_{each.name}", {"task": "Pay."}) for at, each in enumerate(delegates, 1)))
    options.setdefault("checkpointer", InMemorySaver())
    model = ScriptedChatModel(script or [wave, "Done."])
    return Session(create_graph_agent(model, delegates=delegates, **options), "s1")


async def approvals(session: Session) -> list[dict[str, Any]]:
    """The session's approval events, without the fields of every event."""
    return [
        {key: value for key, value in entry.items() if key not in READ_ON}
        for entry in await session.events()
        if entry["type"] in APPROVALS
    ]


def requested(amount: int, path: str = "bank", delegation: str = "1", id_: str = "p") -> dict[str, Any]:
    call = {"id": id_, "name": "pay", "arguments": {"amount": amount}, "allowed_decisions": ALL}
    return {"type": "approval_request", "calls": [call], "delegate": path, "delegation": delegation}


def decided(decision: str, by: str, path: str = "bank", delegation: str = "1", **fields: Any) -> dict[str, Any]:
    made = {"id": "p", "name": "pay", "decision": decision, "decided_by": by, **fields}
    return {"type": "approval_decision", **made, "delegate": path, "delegation": delegation}


async def test_the_history_has_the_request_of_a_delegate_while_it_waits_and_each_decision_of_every_round() -> None:
    ran: list[str] = []
    session = lead(delegate("bank", ran, PAY, asks(("p", "pay", {"amount": 6})), "Paid."))

    await session.run("go")
    first = await approvals(session)
    await session.resume(approve(), decided_by="ana")
    second = await approvals(session)
    result = await session.resume(reject("Enough."), decided_by="bob")

    expected = [
        requested(5),
        decided("approve", "ana"),
        requested(6, id_="p#2"),
        decided("reject", "bob", id="p#2", message="Enough."),
    ]
    assert (first, second, await approvals(session), ran, result.results) == (
        expected[:1],
        expected[:3],
        expected,
        ["bank paid 5"],
        {"1": "Paid."},
    )


async def test_the_request_of_a_delegate_keeps_its_shape_and_names_the_delegate() -> None:
    session = lead(delegate("bank", [], PAY, "Paid."))

    waiting = await session.run("go")

    value = waiting.interrupts[0].value
    assert (value, question_text(value).splitlines()[:3], describe_question(questions_of(waiting.interrupts)[0])) == (
        {
            "action_requests": [{"name": "pay", "args": {"amount": 5}, "description": "Delegate bank"}],
            "review_configs": [{"action_name": "pay", "allowed_decisions": ALL}],
            "call_ids": ["p"],
            "delegate": "bank",
            "delegation": "1",
        },
        ["A call waits for approval:", '1. pay {"amount": 5}', "   Delegate bank"],
        ['pay (delegate bank) {"amount": 5}'],
    )


async def test_equal_questions_of_two_delegates_are_answered_by_id() -> None:
    ran: list[str] = []
    session = lead(delegate("a", ran, PAY, "A."), delegate("b", ran, PAY, "B."))

    waiting = await session.run("go")
    by_name = {each.value["delegate"]: each.id for each in waiting.interrupts}
    result = await session.resume({by_name["a"]: reject(), by_name["b"]: approve()}, decided_by="ana")

    assert (await approvals(session), ran, result.results) == (
        [
            requested(5, "a", "1"),
            requested(5, "b", "2"),
            decided("reject", "ana", "a", "1"),
            decided("approve", "ana", "b", "2"),
        ],
        ["b paid 5"],
        {"1": "A.", "2": "B."},
    )


async def test_the_question_of_a_nested_delegate_names_the_whole_path() -> None:
    ran: list[str] = []
    teller = delegate("teller", ran, PAY, "Paid.")
    inner = create_graph_agent(
        ScriptedChatModel([asks(("t", "delegate_to_teller", {"task": "Pay."})), "The bank paid."]), delegates=[teller]
    )
    session = lead(GraphDelegate("bank", "Pays.", inner), config=LoopConfig(max_delegation_depth=2))

    waiting = await session.run("go")
    result = await session.resume(approve(), decided_by="ana")

    value = waiting.interrupts[0].value
    assert (value["delegate"], value["delegation"], value["action_requests"][0]["description"]) == (
        "bank/teller",
        "1",
        "Delegate bank: Delegate teller",
    )
    assert (await approvals(session), ran, result.results) == (
        [requested(5, "bank/teller"), decided("approve", "ana", "bank/teller")],
        ["teller paid 5"],
        {"1": "The bank paid."},
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (approve(), ["bank paid 5", "teller paid 5"]),
        ("1: reject\n2: approve", ["bank paid 5"]),
        ([approve(), reject("No.")], ["teller paid 5"]),
        ({"decisions": {"1": approve(), "2": edit({"amount": 7})}}, ["bank paid 7", "teller paid 5"]),
    ],
    ids=str,
)
async def test_calls_of_a_delegate_and_of_its_own_delegate_are_asked_in_one_round(
    answer: Any, expected: list[str]
) -> None:
    ran: list[str] = []
    teller = delegate("teller", ran, PAY, "Paid.")
    both = asks(("t", "delegate_to_teller", {"task": "Pay."}), ("p", "pay", {"amount": 5}))
    bank = delegate("bank", ran, both, "The bank paid.", delegates=[teller])
    session = lead(bank, config=LoopConfig(max_delegation_depth=2))

    waiting = await session.run("go")
    result = await session.resume(answer, decided_by="ana")

    descriptions = [action.get("description") for action in waiting.interrupts[0].value["action_requests"]]
    decisions = [entry["delegate"] for entry in await approvals(session) if entry["type"] == "approval_decision"]
    assert (descriptions, sorted(ran), sorted(decisions), result.results) == (
        ["Delegate bank: Delegate teller", "Delegate bank"],
        expected,
        ["bank", "bank/teller"],
        {"1": "The bank paid."},
    )


async def test_a_partial_answer_leaves_the_other_calls_of_a_delegate_and_of_its_delegate_open() -> None:
    ran: list[str] = []
    teller = delegate("teller", ran, PAY, "Paid.")
    both = asks(("t", "delegate_to_teller", {"task": "Pay."}), ("q", "pay", {"amount": 6}))
    session = lead(
        delegate("bank", ran, both, "The bank paid.", delegates=[teller]), config=LoopConfig(max_delegation_depth=2)
    )

    await session.run("go")
    second = await session.resume("2: approve")
    result = await session.resume("1: approve")

    assert (asked(second.interrupts), sorted(ran), result.results) == (
        [[("pay", {"amount": 5})]],
        ["bank paid 6", "teller paid 5"],
        {"1": "The bank paid."},
    )


async def test_an_answer_that_a_delegate_refuses_repeats_the_question_and_is_no_decision() -> None:
    ran: list[str] = []
    session = lead(delegate("bank", ran, PAY, "Paid."))

    await session.run("go")
    again = await session.resume(edit({"amount": "many"}), decided_by="ana")
    await session.resume(edit({"amount": 7}), decided_by="ana")

    assert ("many" in again.interrupts[0].value["error"], ran, await approvals(session)) == (
        True,
        ["bank paid 7"],
        [requested(5), decided("edit", "ana", arguments={"amount": 7})],
    )


@pytest.mark.parametrize("id_", ["b", "c"])
async def test_an_answer_that_a_delegate_refuses_does_not_use_up_its_id(id_: str) -> None:
    ran: list[str] = []
    session = lead(delegate("bank", ran, PAY, "Paid."))
    await session.run("go", input_id="a")

    refused = [await session.resume(edit({"amount": "many"}), input_id="b") for _ in range(2)]
    corrected = [await session.resume(edit({"amount": 7}), input_id=id_) for _ in range(2)]

    assert (refused[1], "many" in refused[0].interrupts[0].value["error"]) == (refused[0], True)
    assert (corrected[1], corrected[0].results, ran) == (corrected[0], {"1": "Paid."}, ["bank paid 7"])


async def test_an_answer_that_a_delegate_accepts_uses_up_its_id() -> None:
    ran: list[str] = []
    session = lead(delegate("bank", ran, PAY, asks(("q", "pay", {"amount": 6})), "Paid."))
    await session.run("go", input_id="a")
    await session.resume(approve(), input_id="b")

    with pytest.raises(InputConflictError):
        await session.resume(edit({"amount": 7}), input_id="b")

    assert ran == ["bank paid 5"]


async def test_a_crash_after_a_decision_neither_repeats_the_question_nor_the_call() -> None:
    ran: list[str] = []
    gate = Gate()
    bank = delegate("bank", ran, PAY, asks(("l", "look", {})), "Paid.", tools=[gated_tool(gate, "look", effect="read")])
    session = lead(bank)
    await session.run("go")

    run = asyncio.create_task(session.resume(approve(), decided_by="ana"))
    await gate.reached()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    gate.open()
    result = await session.resume()

    history = next(event for event in await session.events() if event["type"] == "delegation_response")["history"]
    assert (ran, result.results, await approvals(session), history[0]["type"]) == (
        ["bank paid 5"],
        {"1": "Paid."},
        [requested(5), decided("approve", "ana")],
        "user_message",
    )


async def test_a_decision_on_a_delegate_s_call_approves_no_call_of_the_agent_with_the_same_id() -> None:
    ran: list[str] = []
    bank = delegate("bank", ran, PAY, "Paid.")
    desk = Desk(
        asks(("d", "delegate_to_bank", {"task": "Pay."}), ("p", "pay", {"amount": 5})),
        "Done.",
        tools=[_paying(ran)],
        approve=["pay"],
        delegates=[bank],
    )

    first = await desk.session.run("go")
    waiting = await desk.session.resume({first.interrupts[0].id: approve()})
    result = await desk.session.resume(reject())

    assert (asked(first.interrupts), asked(waiting.interrupts), ran, result.results["d"]) == (
        [[("pay", {"amount": 5})], [("pay", {"amount": 5})]],
        [[("pay", {"amount": 5})]],
        ["bank paid 5"],
        "Paid.",
    )


async def test_calls_of_a_wave_and_of_its_delegates_are_asked_in_one_round_and_each_decision_counts() -> None:
    ran: list[str] = []
    pays = asks(("p", "pay", {"amount": 1}), ("q", "pay", {"amount": 2}))
    banks = [delegate(name, ran, pays, "Paid.") for name in ("one", "two")]
    wave = [(name, f"delegate_to_{name}", {"task": "Pay."}) for name in ("one", "two")]
    desk = Desk(
        asks(*wave, ("w", "write", {"path": "a"}), ("r", "read", {"path": "b"})),
        "Done.",
        delegates=banks,
        approve=["write"],
    )

    first = await desk.session.run("go")
    ids = [each.id for each in first.interrupts]
    second = await desk.session.resume({ids[0]: {"decisions": {"p": approve()}}, ids[2]: approve()})
    third = await desk.session.resume({ids[1]: approve()})
    result = await desk.session.resume(reject())

    both, write = [("pay", {"amount": 1}), ("pay", {"amount": 2})], [("write", {"path": "a"})]
    assert [asked(each.interrupts) for each in (first, second, third)] == [[both, both, write], [both], [both[1:]]]
    assert (result.answer, sorted(ran), desk.ran) == (
        "Done.",
        ["one paid 1", "two paid 1", "two paid 2"],
        ["read b", "wrote a"],
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (approve(), ["bank paid 5", "wrote a"]),
        ("approve", ["bank paid 5", "wrote a"]),
        (reject("No."), []),
        ({"decisions": [approve(), reject()]}, ["bank paid 5"]),
        ({"decisions": {"p": reject(), "w": approve()}}, ["wrote a"]),
        ('1: edit: {"amount": 7}\n2: reject', ["bank paid 7"]),
    ],
    ids=str,
)
async def test_one_answer_counts_for_all_calls_that_wait_together(answer: Any, expected: list[str]) -> None:
    ran: list[str] = []
    wave = asks(("d", "delegate_to_bank", {"task": "Pay."}), ("w", "write", {"path": "a"}))
    desk = Desk(wave, "Done.", delegates=[delegate("bank", ran, PAY, "Paid.")])

    await desk.session.run("go")
    result = await desk.session.resume(answer, decided_by="ana")

    by = {entry["decided_by"] for entry in await approvals(desk.session) if entry["type"] == "approval_decision"}
    assert (result.answer, ran + desk.ran, by) == ("Done.", expected, {"ana"})


async def test_one_answer_to_equal_ids_is_by_number_and_one_that_fits_no_call_changes_nothing() -> None:
    ran: list[str] = []
    session = lead(delegate("a", ran, PAY, "A."), delegate("b", ran, PAY, "B."))
    waiting = await session.run("go")

    for answer in (edit({"amount": 6}), {"decisions": {"p": approve()}}, [approve()], "why?"):
        with pytest.raises(InputError, match="1"):
            await session.resume(answer)
    asked_again = await session.interrupts()
    result = await session.resume({"decisions": {"1": reject(), "2": approve()}})

    assert (asked_again, ran, result.results) == (waiting.interrupts, ["b paid 5"], {"1": "A.", "2": "B."})


async def test_one_approval_for_good_counts_for_later_calls_of_every_request() -> None:
    ran: list[str] = []
    again = asks(("q", "pay", {"amount": 6}))
    session = lead(delegate("a", ran, PAY, again, "A."), delegate("b", ran, PAY, again, "B."))

    await session.run("go")
    result = await session.resume(approve(always=True))

    assert (sorted(ran), result.results) == (
        ["a paid 5", "a paid 6", "b paid 5", "b paid 6"],
        {"1": "A.", "2": "B."},
    )


async def test_a_process_that_ends_between_the_questions_of_a_wave_repeats_no_answered_one() -> None:
    ran: list[str] = []
    desk = Desk(
        asks(("d", "delegate_to_bank", {"task": "Pay."}), ("w", "write", {"path": "a"})),
        "Done.",
        approve=["write"],
        delegates=[delegate("bank", ran, PAY, "Paid.")],
    )
    first = await desk.session.run("go")
    await desk.session.resume({first.interrupts[1].id: approve()})
    asked_again = await Session(desk.graph, "s1").resume()
    aborted = await Session(desk.graph, "s1").run("Leave it.")

    assert (asked(asked_again.interrupts), ran, desk.ran) == ([[("pay", {"amount": 5})]], [], [])
    assert (aborted.answer, list(await desk.answers())) == ("Done.", ["d", "w"])


async def test_an_answer_to_a_question_that_is_not_open_is_refused_and_nothing_is_changed() -> None:
    ran: list[str] = []
    session = lead(*(delegate(name, ran, PAY, "Paid.") for name in ("one", "two")))
    one, two = (each.id for each in (await session.run("go")).interrupts)
    await session.resume({one: approve()})

    for stale in ({one: reject()}, {one: reject(), two: approve()}, {"0" * 32: approve()}):
        with pytest.raises(InputError, match=f"not open: {next(iter(stale))}. Open: {two}"):
            await session.resume(stale)
        with pytest.raises(InputError, match="not open"):
            [part async for part in session.stream_resume(stale)]
    result = await session.resume({two: approve()})

    assert (result.answer, ran) == ("Done.", ["one paid 5", "two paid 5"])


async def test_an_answer_that_another_run_took_in_between_is_refused_under_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []
    session = lead(*(delegate(name, ran, PAY, "Paid.") for name in ("one", "two")))
    one, two = (each.id for each in (await session.run("go")).interrupts)
    older = await session.graph.aget_state(thread())
    await session.resume({one: approve()})

    async def stale(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        return older

    monkeypatch.setattr(session.graph, "aget_state", stale)
    with pytest.raises(InputError, match=f"not open: {one}. Open: {two}"):
        await session.resume({one: reject()})

    assert ran == ["one paid 5"]


def _paying(ran: list[str]) -> Any:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(f"lead paid {amount}")
        return "paid"

    return pay


async def test_requests_of_langchain_s_middleware_in_a_delegate_are_in_the_history() -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    ran: list[str] = []
    inner = create_agent(
        ScriptedChatModel([PAY, "Paid."]),
        tools=[_paying(ran)],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": {"allowed_decisions": ["approve", "reject"]}})],
    )
    session = lead(GraphDelegate("bank", "Pays.", inner))

    await session.run("go")
    before = [entry["type"] for entry in await approvals(session)]
    await session.resume("reject: too much", decided_by="ana")

    assert (
        before,
        ran,
        [(entry["type"], entry["delegate"], entry.get("decided_by")) for entry in await approvals(session)],
    ) == (
        ["approval_request"],
        [],
        [("approval_request", "bank", None), ("approval_decision", "bank", "ana")],
    )


async def test_the_stream_has_a_delegate_s_approvals_in_the_order_of_the_history() -> None:
    session = lead(delegate("a", [], PAY, "A."), delegate("b", [], PAY, "B."))

    parts = [part async for part in session.stream("go")]
    by_id = {each.id: approve() for each in await session.interrupts()}
    parts += [part async for part in session.stream_resume(by_id)]

    streamed = [part.event for part in parts if isinstance(part, EventAdded)]
    assert streamed == await session.events()


async def test_langgraph_s_command_resumes_a_delegate() -> None:
    ran: list[str] = []
    session = lead(delegate("bank", ran, PAY, "Paid."))
    graph: Any = session.graph

    await graph.ainvoke({"messages": [("user", "go")]}, thread())
    result = await graph.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), thread())

    assert (ran, result["messages"][-1].text) == (["bank paid 5"], "Done.")


async def test_new_input_settles_a_delegate_s_question() -> None:
    ran: list[str] = []
    wave = asks(("1", "delegate_to_bank", {"task": "Pay."}))
    session = lead(delegate("bank", ran, PAY, "Paid."), script=[wave, "Never mind."])

    await session.run("go")
    result = await session.run("stop")

    assert (ran, result.answer, await session.interrupts()) == ([], "Never mind.", [])


async def test_the_usage_of_a_delegate_that_waited_is_counted_once() -> None:
    session = lead(delegate("bank", [], PAY, "Paid."))

    await session.run("go")
    result = await session.resume(approve())

    assert result.usage["model_calls"] == 4


async def test_the_stream_has_the_results_of_a_wave_in_which_a_call_still_waits() -> None:
    wave = asks(("1", "ask_me", {}), ("2", "look", {}))

    @tool
    def ask_me() -> str:
        """Ask."""
        return str(interrupt("Which?"))

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    session = lead(script=[wave, "Done."], tools=[ask_me, look])

    parts = [part async for part in session.stream("go")]

    streamed = [part.event for part in parts if isinstance(part, EventAdded)]
    assert streamed == await session.events()
