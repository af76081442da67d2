"""The sessions of tests that `recorded` stores and replays; the guide runs the fixtures in pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.types import interrupt

from graph_agent import GraphDelegate, LoopConfig, LoopHook, LoopPlan, RequestPatch, Session, create_graph_agent
from graph_agent.approvals import approve, edit
from graph_agent.devtools.recorded_tests import RecordedTest
from graph_agent.errors import ConfigError, InputError, ScriptError
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.testing import ScriptedChatModel, TestModel

CALL = {"id": "a", "name": "pay", "arguments": {"amount": 5}}
Recorder = Callable[..., RecordedTest]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorder:
    def opened(*, records: bool) -> RecordedTest:
        return RecordedTest(tmp_path / "recordings" / "test_pay.json", records=records, command="pytest --record")

    return opened


@pytest.fixture
def paid() -> list[int]:
    """The amounts that the tool `pay` has received."""
    return []


def paying(paid: list[int], model: Any = None, **options: Any) -> Any:
    @tool
    def pay(amount: int) -> dict[str, Any]:
        """Pay an amount."""
        paid.append(amount)
        return {"amount": amount, "token": "api_key=sk-abcdefghijklmnop1234567890"}

    return create_graph_agent(model or ScriptedChatModel([CALL, "Paid."], cycle=True), tools=[pay], **options)


async def record(recorded: Recorder, agent: Any, *inputs: str) -> None:
    test = recorded(records=True)
    session = test.session(agent)
    for each in inputs:
        await session.run(each)
    test.close(passed=True)


@pytest.mark.parametrize("mode", ["native", "text", "wave"])
async def test_a_recorded_session_is_replayed_without_its_model_and_its_tools(
    mode: Any, recorded: Recorder, paid: list[int], tmp_path: Path
) -> None:
    def agent(model: Any) -> Any:
        config = LoopConfig(tool_calling=mode)
        helper = GraphDelegate("helper", "Helps.", create_graph_agent(TestModel(), config=config))
        return paying(paid, model, delegates=[helper], config=config)

    await record(recorded, agent(TestModel()), "Pay", "Pay again")
    unused = TestModel()
    test = recorded(records=False)
    session = test.session(agent(unused))

    results = [await session.run("Pay"), await session.run("Pay again")]
    test.close(passed=True)

    names = [[call.name for call in result.calls] for result in results]
    assert (names, paid, unused.requests) == ([["pay", "delegate_to_helper"]] * 2, [1, 1], [])
    assert "sk-abc" not in (tmp_path / "recordings" / "test_pay.json").read_text(encoding="utf-8")


class AsksAgain(LoopHook):
    """Asks the model once more, so that its first reply is not recorded."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, None]:
        return request.depth == 0 and bool(response.calls), None

    def build_plan(self, context: None, response: HookResponse, request: HookRequest) -> LoopPlan:
        messages = [*request.messages, HumanMessage("Really?")]
        return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=messages))


async def test_a_hook_that_asks_again_gets_the_recorded_reply_again(recorded: Recorder, paid: list[int]) -> None:
    first = {"id": "b", "name": "pay", "arguments": {"amount": 9}}
    await record(recorded, paying(paid, ScriptedChatModel([first, CALL, "Paid."]), hooks=[AsksAgain()]), "Pay")
    test = recorded(records=False)

    result = await test.session(paying(paid, hooks=[AsksAgain()])).run("Pay")
    test.close(passed=True)

    assert (result.answer, paid) == ("Paid.", [5])


class Confirming(AgentMiddleware):
    """Asks a person before each call, around it."""

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        interrupt("Run it?")
        return await handler(request)


@pytest.mark.parametrize("middleware", [[], [Confirming()]], ids=["tool", "middleware"])
async def test_questions_of_calls_are_asked_in_both_modes(
    middleware: list[Any], recorded: Recorder, paid: list[int]
) -> None:
    @tool
    def book(room: str) -> str:
        """Book a room."""
        if middleware:
            return f"Booked {room}."
        answers = [interrupt({"question": f"{word} {room}?"}) for word in ("Book", "Pay")]
        paid.append(1)
        return f"{room}: {', '.join(answers)}."

    wave = [{"id": room, "name": "book", "arguments": {"room": room}} for room in ("7", "8")]
    found = []
    for records in (True, False):
        test = recorded(records=records)
        session = test.session(
            create_graph_agent(ScriptedChatModel([wave, "Booked."]), tools=[book], middleware=middleware)
        )
        result, asked = await session.run("Book two rooms."), list[Any]()
        while result.interrupts:
            asked.append([each.value for each in result.interrupts])
            result = await session.resume({result.interrupts[0].id: "yes"})
        test.close(passed=True)
        found.append((asked, result.answer, result.results))

    assert found[0] == found[1]
    assert (len(found[0][0]), len(paid)) == ((2, 0) if middleware else (4, 2))


@pytest.mark.parametrize("approves", [False, True], ids=["interrupt", "approval"])
async def test_questions_of_delegates_are_asked_in_both_modes(approves: bool, recorded: Recorder) -> None:
    @tool
    def book(room: str) -> str:
        """Book a room, and ask about the first one only."""
        return f"{interrupt('Book?')}: {room}." if room == "1" and not approves else f"Booked {room}."

    def call(name: str, **arguments: str) -> dict[str, Any]:
        return {"id": "a", "name": name, "arguments": arguments}

    found = []
    for records in (True, False):
        desk = create_graph_agent(
            ScriptedChatModel([call("book", room="1"), "One.", call("book", room="2"), "Two."]),
            tools=[book],
            config=LoopConfig(approve=lambda given: approves and given["arguments"]["room"] == "1"),
        )
        task = call("delegate_to_desk", task="Book.")
        test = recorded(records=records)
        session = test.session(
            create_graph_agent(
                ScriptedChatModel([task, "First.", task, "Second."]),
                delegates=[GraphDelegate("desk", "Books.", desk)],
            )
        )
        asked = await session.run("Book one.")
        ended = await session.resume(approve() if approves else "yes")
        second = await session.run("Book two.")
        test.close(passed=True)
        found.append((asked.waiting, [each.value for each in asked.interrupts], ended.answer, second.answer))

    assert found[0] == found[1]
    assert (found[0][0], found[0][2:]) == ("approval" if approves else "answer", ("First.", "Second."))


async def test_approvals_are_given_by_the_test_in_both_modes(recorded: Recorder, paid: list[int]) -> None:
    results = []
    for records in (True, False):
        test = recorded(records=records)
        session = test.session(paying(paid, config=LoopConfig(approve=["pay"])))
        results.append(await session.run("Pay", on_approval=lambda call: edit({"amount": 3})))
        test.close(passed=True)

    assert (results[0].results["a"]["amount"], results[1].results["a"]["amount"], paid) == (3, 3, [3])


@pytest.mark.parametrize(
    ("inputs", "amount", "message"),
    [
        (["Pay now"], 5, 'input 1 $[0]: recorded "Pay", now "Pay now"'),
        (["Pay"], 6, "Step 1, call 'a' (pay) $.arguments.amount: the recorded result is for 5, and the call has 6."),
        ([], 5, "The recording has 1 inputs, and the session 0."),
        (["Pay", "Pay"], 5, "The model is asked for a reply that is not recorded."),
    ],
)
async def test_the_first_difference_is_named(
    inputs: list[str], amount: int, message: str, recorded: Recorder, paid: list[int]
) -> None:
    config = LoopConfig(approve=["pay"])
    await record_edited(recorded, paying(paid, config=config), "Pay", 5)
    test = recorded(records=False)
    session = test.session(paying(paid, config=config))

    try:
        for each in inputs:
            await session.run(each, on_approval=lambda call: edit({"amount": amount}))
    except ScriptError as error:
        assert str(error) == message  # noqa: PT017 - only some of the differences end the run

    with pytest.raises(AssertionError, match=re.escape(message)) as raised:
        test.close(passed=True)
    assert "If the change is meant, record the session again: pytest --record" in str(raised.value)


async def record_edited(recorded: Recorder, agent: Any, text: str, amount: int) -> None:
    test = recorded(records=True)
    await test.session(agent).run(text, on_approval=lambda call: edit({"amount": amount}))
    test.close(passed=True)


async def test_the_result_of_another_parameter_type_is_a_difference(recorded: Recorder, paid: list[int]) -> None:
    def pay(amount: bool) -> None:
        """Pay an amount."""

    await record(recorded, paying(paid), "Pay")
    test = recorded(records=False)
    await test.session(create_graph_agent(TestModel(), tools=[pay])).run("Pay")

    with pytest.raises(AssertionError, match=r'step 1, result pay \$: recorded "status success", now "status inv'):
        test.close(passed=True)


async def test_a_test_that_failed_keeps_its_recording(recorded: Recorder, paid: list[int], tmp_path: Path) -> None:
    test = recorded(records=True)
    await test.session(paying(paid)).run("Pay")
    test.close(passed=False)

    with pytest.raises(InputError, match=r"There is no recording .*test_pay\.json; record it: pytest --record"):
        recorded(records=False).session(paying(paid))


async def test_a_recording_that_is_no_json_is_named(recorded: Recorder, paid: list[int], tmp_path: Path) -> None:
    await record(recorded, paying(paid), "Pay")
    (tmp_path / "recordings" / "test_pay.json").write_text("<<<<<<< HEAD\n{}\n")

    with pytest.raises(InputError, match=r"test_pay\.json is no JSON: .*; correct it, or record it again: pytest"):
        recorded(records=False).session(paying(paid))


async def test_a_model_of_a_function_needs_no_key_in_a_replay(
    recorded: Recorder, paid: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    await record(recorded, paying(paid), "Pay")
    test = recorded(records=False)

    result = await test.session(lambda: paying(paid, "openai:gpt-4o-mini")).run("Pay")
    test.close(passed=True)

    assert (result.answer, paid) == ("Paid.", [5])


def test_sessions_of_one_test_have_names(recorded: Recorder, paid: list[int]) -> None:
    test = recorded(records=True)
    sessions = [test.session(paying(paid)), test.session(paying(paid), "second")]

    with pytest.raises(ConfigError, match="The test has a session 'second' already"):
        test.session(paying(paid), "second")
    assert [(type(each), each.id) for each in sessions] == [(Session, "test_pay"), (Session, "test_pay.second")]


def test_the_plugin_loads_nothing_before_a_fixture_is_used() -> None:
    code = (
        "import sys, pytest; before = {*sys.modules}; import graph_agent.testing.plugin; print({*sys.modules} - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)

    doors = {"graph_agent", "graph_agent.base", "graph_agent.base._internal"}
    doors |= {f"graph_agent.base._internal.{name}" for name in ("inner_paths", "lazy")}
    loaded = {*doors, "graph_agent.testing", "graph_agent.testing.plugin"}
    assert {name for name in re.findall(r"'([\w.]+)'", done.stdout) if not name.startswith("_")} == loaded
