"""Replays of recorded sessions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents.middleware import AgentMiddleware, wrap_tool_call
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, Tool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import InjectedState, ToolRuntime
from pydantic import BaseModel, Field

from graph_agent import (
    LoopConfig,
    LoopHook,
    LoopPlan,
    RequestPatch,
    ScriptedChatModel,
    Session,
    create_graph_agent,
)
from graph_agent.approvals import edit, reject, respond
from graph_agent.errors import ConfigError, InputError
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.testing import Recording, Replay, read_recording, replay
from tests.support.recorded_sessions import SESSIONS

WRITTEN = Path("payments.txt")


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    with WRITTEN.open("a") as file:
        file.write(f"{amount}\n")
    return f"paid {amount}"


def weather(city: str) -> dict[str, Any]:
    """Return the weather."""
    return {"city": city, "degrees": [7, 9]}


FIND = tool(weather)
FIND.metadata = {"effect": "read"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan(*calls: tuple[str, str, dict[str, Any]]) -> str:
    return json.dumps({"tool_calls": [{"id": id_, "name": name, "arguments": args} for id_, name, args in calls]})


def wave(status: str, *calls: tuple[str, str, dict[str, Any], list[str]]) -> str:
    tools = [{"id": id_, "tool": name, "args": args, "needs": needs} for id_, name, args, needs in calls]
    return json.dumps({"status": status, "action": "act", "tools": tools, "reasoning": "", "slots": {}})


OSLO, ROME, PAY = ("a", "weather", {"city": "Oslo"}), ("b", "weather", {"city": "Rome"}), ("p", "pay", {"amount": 3})
TWO_STEPS = (plan(OSLO, ROME), plan(PAY), "It rains, and 3 are paid.")
Play = Callable[[Session], Awaitable[Any]]


class FailsLater(ScriptedChatModel):
    """Fails at the second request."""

    status_code: int | None = None
    asked: int = 0

    async def _agenerate(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        if self.asked == 2:
            failure = ValueError("The model has failed.")
            failure.status_code = self.status_code  # type: ignore[attr-defined]  # as clients of providers do
            raise failure
        return await super()._agenerate(*args, **options)


def agent(replies: Sequence[str] = (), config: LoopConfig | None = None, **options: Any) -> Any:
    return create_graph_agent(
        ScriptedChatModel(list(replies)),
        tools=[FIND, pay],
        config=config or LoopConfig(record_requests=True),
        checkpointer=InMemorySaver(),
        **options,
    )


async def asked(session: Session) -> None:
    await session.run("Weather, and pay 3.")
    await session.run("Thanks.")


async def recorded(graph: Any, play: Play = asked) -> Recording:
    await play(Session(graph, "s1"))
    return await read_recording(graph.checkpointer, "s1")


def written() -> str:
    """Return what the writing tool has written."""
    return WRITTEN.read_text() if WRITTEN.exists() else ""


def texts(outcome: Replay) -> list[str]:
    return list(map(str, outcome.differences))


async def decided(session: Session) -> None:
    await session.run("Pay.")
    await session.resume(
        {"decisions": {"p": edit({"amount": 1}), "q": reject("too much"), "r": respond("paid before")}},
        decided_by="ann",
    )


class Noted(AgentMiddleware[Any, Any, Any]):
    """Adds a message before the model, and reads results in capitals."""

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        if any("Be brief." in str(each.content) for each in state["messages"]):
            return None
        return {"messages": [HumanMessage("Be brief.")]}


@wrap_tool_call
async def in_capitals(request: Any, handler: Any) -> Any:
    result = await handler(request)
    return result.model_copy(update={"content": str(result.content).upper()})


LONG = ("l", "weather", {"city": "Bergen" * 40})


class AsksAgain(LoopHook):
    """Asks the model once more at each step."""

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return not any("Really?" in str(each.content) for each in request.messages), None

    async def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        messages = [*request.messages, HumanMessage("Really?")]
        return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=messages))


@tool
def noted(
    q: str, state: Annotated[dict[str, Any], InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
) -> str:
    """Read injected arguments."""
    return f"{q} {len(state['messages'])} {tool_call_id}"


@tool
def blocks(q: str, runtime: ToolRuntime) -> Any:
    """Return content blocks."""
    return [{"type": "text", "text": q}, {"type": "text", "text": "b"}]


@tool(response_format="content_and_artifact")
def artifact(q: str) -> tuple[str, Any]:
    """Return an artifact."""
    return "text", {"structured_content": {"q": q}}


@tool
def fails(q: str) -> None:
    """Fail."""
    raise ToolException(f"no {q}")


class Sized(BaseModel):
    """Checked arguments."""

    size: Annotated[int, Field(ge=0)]


@tool(args_schema=Sized)
def sized(size: int) -> int:
    """Return a number."""
    return size


KINDS = [noted, blocks, artifact, fails, sized, Tool(name="single", description="One text.", func=str.upper)]
OF_EACH_KIND = plan(
    *[(each.name, each.name, {"q": "a"}) for each in KINDS[:4]],
    ("s1", "sized", {"size": 1}),
    ("s2", "sized", {"size": -1}),
    ("u", "single", {"__arg1": "a"}),
)
CASES: dict[str, tuple[Any, Play]] = {
    "references": (
        lambda: agent(
            [
                wave("continue", (*OSLO, []), ("p", "pay", {"amount": "${a.degrees[0]}"}, ["a"])),
                wave("done"),
                "Paid.",
                wave("done"),
                "Bye.",
            ],
            LoopConfig(tool_calling="wave"),
        ),
        asked,
    ),
    "approvals": (
        lambda: agent(
            [plan(PAY, ("q", "pay", {"amount": 4}), ("r", "pay", {"amount": 5})), "Done."], LoopConfig(approve=["pay"])
        ),
        decided,
    ),
    "truncation": (
        lambda: agent([plan(OSLO), plan(LONG), "Best effort."], LoopConfig(max_steps=2, max_output_chars=100)),
        lambda session: session.run("Weather?"),
    ),
    "hooks": (lambda: agent([*TWO_STEPS, "Bye."], hooks=[Noted(), in_capitals]), asked),
    "a hook that asks again": (
        lambda: agent(["It rains.", plan(OSLO), "It rains.", "It is dry."], hooks=[AsksAgain()]),
        lambda session: session.run("Weather?"),
    ),
    "tools of each kind": (
        lambda: create_graph_agent(ScriptedChatModel([OF_EACH_KIND, "Done."]), KINDS, checkpointer=InMemorySaver()),
        lambda session: session.run("Run all."),
    ),
    **{
        f"a failure with status {status}, and an input after it": (
            lambda status=status: create_graph_agent(
                FailsLater(responses=[plan(OSLO), "Rain."], status_code=status),
                [FIND],
                config=LoopConfig(model_retries=0, record_requests=True),
                checkpointer=InMemorySaver(),
            ),
            asked,
        )
        for status in (None, 400, 401, 403, 404, 413, 429, 503)
    },
}


@pytest.mark.parametrize("case", CASES)
async def test_an_unchanged_agent_replays_its_session(case: str) -> None:
    make, play = CASES[case]
    graph = make()
    recording = await recorded(graph, play)
    before = written()

    outcome = await replay(recording, graph)

    after = written()
    steps = sum(bool(step.number) for each in recording.inputs for step in each.steps)
    assert (texts(outcome), outcome.steps, outcome.is_equal, after) == ([], steps, True, before)


async def test_a_changed_prompt_is_the_first_difference_of_the_requests() -> None:
    recording = await recorded(agent([*TWO_STEPS, "Bye."], system_prompt="Be kind."))
    other = agent(system_prompt="Be brief.")

    found = await replay(recording, other)
    expected = await replay(recording, other, ignore_prompt=True)

    assert ([(each.input, each.step, each.kind, each.path) for each in found.differences], expected.differences) == (
        [(1, 1, "request", "$.messages[0].content")],
        (),
    )


MUTATIONS: dict[str, tuple[Sequence[str], Mapping[str, Any], list[str]]] = {
    "another order": ([plan(ROME, OSLO), *TWO_STEPS[1:]], {}, []),
    "other ids": ([plan(("x", *OSLO[1:]), ("y", *ROME[1:])), *TWO_STEPS[1:]], {}, []),
    "an argument": (
        [plan(OSLO, ("b", "weather", {"city": "Bergen"}))],
        {},
        ['input 1, step 1, call weather $.city: recorded "Rome", now "Bergen"'],
    ),
    "a further call": (
        [plan(OSLO, ROME, PAY)],
        {},
        ['input 1, step 1, call pay $: recorded nothing, now {"amount": 3}'],
    ),
    "a call fewer": (
        [plan(OSLO), plan(PAY)],
        {},
        ['input 1, step 1, call weather $: recorded {"city": "Rome"}, now nothing'],
    ),
    "no further step": (
        [TWO_STEPS[0], "It rains."],
        {},
        ['input 1, step 2, call pay $: recorded {"amount": 3}, now nothing'],
    ),
    "another answer": (
        [*TWO_STEPS[:2], "It rains."],
        {},
        ['input 1, answer $: recorded "It rains, and 3 are paid.", now "It rains."'],
    ),
    "an ignored answer": ([*TWO_STEPS[:2], "It rains."], {"answers": "ignore"}, []),
    "a step from the middle": ([plan(("p", "pay", {"amount": 4}))], {"number": 1, "from_step": 2}, [
        "input 1, step 2, call pay $.amount: recorded 3, now 4"
    ]),
}  # fmt: skip


@pytest.mark.parametrize("case", MUTATIONS)
async def test_another_model_differs_at_exactly_one_place(case: str) -> None:
    replies, options, expected = MUTATIONS[case]
    graph = agent([*TWO_STEPS, "Bye."])
    recording = await recorded(graph)
    model = ScriptedChatModel([*replies, "Bye."])

    outcome = await replay(recording, graph, model=model, **{"answers": "exact", **options})

    assert ([str(each) for each in outcome.counted], written()) == (expected, "3\n")


async def test_a_mutated_result_is_reported_by_its_path() -> None:
    graph = agent([*TWO_STEPS, "Bye."])
    recording = await recorded(graph)

    def colder(city: str) -> dict[str, Any]:
        """Return the weather."""
        return {"city": city, "degrees": [7, 9 if city == "Oslo" else 8]}

    real = tool("weather")(colder)
    real.metadata = {"effect": "read"}
    outcome = await replay(recording, graph, tools={"weather": real})

    assert (texts(outcome), written()) == (
        ["input 1, step 1, result weather $.degrees[1]: recorded 9, now 8"],
        "3\n",
    )


async def test_a_lower_limit_is_reported_where_it_stops() -> None:
    session = Session(agent([*TWO_STEPS, "Bye."]), "s1")
    await asked(session)

    outcome = await replay(session, agent(config=LoopConfig(max_steps=1)))

    expected = 'input 1, step 1, limit $[0]: recorded nothing, now {"reason": "step_limit", "limit": 1}'
    assert (texts(outcome), written()) == ([expected], "3\n")


async def test_a_replay_that_continues_runs_reading_tools_only() -> None:
    graph = agent([*TWO_STEPS, "Bye."])
    recording = await recorded(graph)
    bergen = plan(OSLO, ("b", "weather", {"city": "Bergen"}))
    model = ScriptedChatModel([bergen, plan(("p", "pay", {"amount": 4})), "Bye."])

    outcome = await replay(recording, graph, model=model, keep_going=True)

    assert (texts(outcome), outcome.stopped, written()) == (
        [
            'input 1, step 1, call weather $.city: recorded "Rome", now "Bergen"',
            "input 1, step 2, call pay $.amount: recorded 3, now 4",
        ],
        "The call pay has no recorded result; it may write, so it never runs in a replay.",
        "3\n",
    )


async def test_an_approval_that_is_not_asked_for_any_more_is_a_difference() -> None:
    make, play = CASES["approvals"]
    recording = await recorded(make(), play)

    outcome = await replay(recording, agent())

    assert [(each.step, each.kind, each.name, each.recorded) for each in outcome.differences] == [
        (1, "approval", "pay", {"amount": 3})
    ]


@pytest.mark.parametrize("given", [pay, tool(weather)])
async def test_a_tool_without_a_mark_never_runs(given: BaseTool) -> None:
    graph = agent([*TWO_STEPS, "Bye."])
    recording = await recorded(graph)

    with pytest.raises(ConfigError, match=r'may write.*mark it: metadata={"effect": "read"}'):
        await replay(recording, graph, tools={"pay": given})


async def test_a_step_that_the_input_does_not_have_is_refused() -> None:
    graph = agent([*TWO_STEPS, "Bye."])
    recording = await recorded(graph)

    with pytest.raises(InputError, match=r"cannot begin at step 7: the input has the steps \[1, 2, 3\]"):
        await replay(recording, graph, number=1, from_step=7)


END = "The model is asked for a reply that is not recorded."
STOPPED = {
    "waiting_for_approval": "The agent asks a person, and no answer is recorded.",
    "waiting_call_of_a_wave": "The recording ends before the result of ask_person.",
    "deadline_in_a_call": END,
    "deadline_in_a_reply": END,
}
"""Session → where its recording ends."""
NOT_REPEATED = {
    "unusable_calls",  # the half-written arguments of a call are not stored
    "steering_of_an_answer",  # it was run without a stream, so that the answer was not shown before the steering
}


@pytest.mark.parametrize("name", sorted(SESSIONS.keys() - NOT_REPEATED))
async def test_an_unchanged_agent_replays_a_session_of_each_kind(name: str) -> None:
    session = await SESSIONS[name]()

    replayed = await replay(session, session.graph)

    assert (texts(replayed), replayed.stopped) == ([], STOPPED.get(name, ""))
