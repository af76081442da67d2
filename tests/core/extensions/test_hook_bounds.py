"""Rerun bounds of a whole input: the number of reruns, and the calls that caused them."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from graph_agent import LoopConfig, LoopHook, LoopPlan, ScriptedChatModel, Session, create_graph_agent
from graph_agent.hooks import HookRequest, HookResponse
from tests.support.agents import asks, echo

LIMIT = (
    "The hook Again wants the model asked again, but the model was asked again {} times, which is all that "
    "max_agentic_loops allows; its last reply counts."
)
REPEAT = "The hook Again wants the model asked again, but the model makes the same calls again; its last reply counts."


class Again(LoopHook):
    """Requests a rerun of each reply with calls, `times` for each step, and counts the replies it sees."""

    def __init__(self, times: int = 1_000) -> None:
        self.times = times
        self.shown: list[tuple[int, int]] = []

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        if response.calls:
            self.shown.append((request.step, request.depth))
        return bool(response.calls) and request.depth < self.times, None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        return LoopPlan(run_agentic_loop=True)


def call(text: str) -> str:
    return asks((f"c{text}", "echo", {"text": text}))


END = ["No more actions.", "Done."]


def session(model: ScriptedChatModel, *hooks: LoopHook, tools: Any = (echo,), **config: Any) -> Session:
    graph = create_graph_agent(
        model,
        tools=tools,
        hooks=hooks,
        config=LoopConfig(finalize="compose", max_steps=20, **config),
        checkpointer=InMemorySaver(),
    )
    return Session(graph, "s1")


async def warnings(talk: Session) -> list[str]:
    return [event["message"] for event in await talk.events() if event["type"] == "warning"]


@pytest.mark.parametrize(
    ("most", "shown"),
    [
        (3, [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0)]),
        (1, [(1, 0), (1, 1), (2, 0)]),
        (0, [(1, 0)]),
    ],
)
async def test_the_steps_of_an_input_share_the_reruns(most: int, shown: list[tuple[int, int]]) -> None:
    """One rerun a step: after the last one allowed, the hook is refused once and not asked again."""
    replies = [call(str(number)) for number in range(6 + most)]
    hook, model = Again(times=1), ScriptedChatModel([*replies, *END])
    talk = session(model, hook, max_agentic_loops=most)

    result = await talk.run("go")

    model.assert_spent()
    assert (hook.shown, await warnings(talk), len(result.results)) == (shown, [LIMIT.format(most)], 6)


async def test_a_repeated_rerun_request_ends_reruns_also_in_a_later_step() -> None:
    hook, model = Again(times=1), ScriptedChatModel([call("a"), call("b"), call("a"), call("c"), *END])
    talk = session(model, hook)

    result = await talk.run("go")

    model.assert_spent()
    assert (hook.shown, await warnings(talk), list(result.results)) == (
        [(1, 0), (1, 1), (2, 0)],
        [REPEAT],
        ["cb", "ca", "cc"],
    )


async def test_a_new_input_resets_the_rerun_count() -> None:
    hook, model = Again(), ScriptedChatModel([call("a"), call("a"), *END, call("a"), call("b"), call("b"), *END])
    talk = session(model, hook)
    await talk.run("go")
    before = len(hook.shown)

    await talk.run("again")

    model.assert_spent()
    assert (before, hook.shown[before:], await warnings(talk)) == (2, [(1, 0), (1, 1), (1, 2)], [REPEAT] * 2)


async def test_a_hook_without_reruns_still_replaces_the_answer() -> None:
    class Guards(Again):
        """Requests a rerun of calls, and removes secrets from answers."""

        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            secret = "secret" in response.text
            return bool(response.calls) or secret, secret

        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            return LoopPlan(response_override="Withheld.") if context else LoopPlan(run_agentic_loop=True)

    model = ScriptedChatModel([call("a"), "No more actions.", "The secret is 7."])
    talk = session(model, Guards(), max_agentic_loops=0)

    assert ((await talk.run("go")).answer, len(await warnings(talk))) == ("Withheld.", 1)


async def test_a_refused_rerun_of_the_answer_adds_no_second_warning() -> None:
    class Every(Again):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            return True, None

    model = ScriptedChatModel([call("a"), *END])
    talk = session(model, Every(), max_agentic_loops=0)

    assert ((await talk.run("go")).answer, len(await warnings(talk))) == ("Done.", 1)


async def test_reruns_of_the_answer_count_too() -> None:
    class Answers(Again):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            return request.phase == "answer" or (bool(response.calls) and request.depth == 0), None

    model = ScriptedChatModel([call("a"), call("b"), "No more actions.", "One.", "Two."])
    talk = session(model, Answers(), max_agentic_loops=2)

    result = await talk.run("go")

    model.assert_spent()
    assert (result.answer, await warnings(talk)) == ("Two.", [LIMIT.format(2).replace("Again", "Answers")])


async def test_a_resumed_input_keeps_its_rerun_count() -> None:
    @tool
    def ask(text: str) -> str:
        """Ask the person."""
        return str(interrupt(text))

    model = ScriptedChatModel([call("a"), asks(("q", "ask", {"text": "?"})), call("b"), call("c"), *END])
    hook = Again(times=1)
    talk = session(model, hook, tools=(echo, ask), max_agentic_loops=1)
    waiting = await talk.run("go")

    result = await Session(talk.graph, "s1").resume("yes")

    model.assert_spent()
    assert (len(waiting.interrupts), hook.shown, await warnings(talk), list(result.results.values())) == (
        1,
        [(1, 0), (1, 1), (2, 0)],
        [LIMIT.format(1)],
        ["yes", "b", "c"],
    )


async def test_later_hooks_run_after_a_refused_rerun() -> None:
    class Guard(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            return any(each["arguments"].get("text") == "secret" for each in response.calls), None

        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            return LoopPlan(response_override="Blocked.")

    model = ScriptedChatModel([call("a"), call("b"), call("secret")])
    hook = Again()
    talk = session(model, hook, Guard(), max_agentic_loops=1)

    result = await talk.run("go")

    model.assert_spent()
    assert (result.answer, hook.shown, list(result.results.values())) == ("Blocked.", [(1, 0), (1, 1)], ["b"])


async def test_a_reply_without_its_rerun_goes_to_the_later_hooks() -> None:
    class Overrides(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            return True, None

        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            return LoopPlan(response_override="Overridden.")

    hook = Again()
    talk = session(ScriptedChatModel([call("a")]), hook, Overrides(), max_agentic_loops=0)

    assert ((await talk.run("go")).answer, hook.shown) == ("Overridden.", [(1, 0)])


async def test_replies_without_calls_are_bounded_too() -> None:
    class Never(Again):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            return True, None

    model = ScriptedChatModel([*["No more actions."] * 4, "Done."])
    talk = session(model, Never())

    await talk.run("go")

    model.assert_spent()
    assert await warnings(talk) == [LIMIT.format(3).replace("Again", "Never")]
