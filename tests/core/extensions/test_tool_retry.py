"""Tool retries: by mark only, and only if safe."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.core.extensions.invoke import ToolRetry
from graph_agent.errors import ConfigError
from tests.support.agents import asks, says, thread

AT_ONCE = {"initial_interval": 0, "jitter": False}


class Flaky:
    """A tool that raises the given errors, then returns the number of its runs."""

    def __init__(self, *failures: BaseException | Callable[[], Any], **marks: Any) -> None:
        self.failures = list(failures)
        self.runs = 0
        self.marks = marks

    async def run(self, text: str) -> str:
        """Try."""
        self.runs += 1
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, BaseException):
                raise failure
            await failure()
        return f"{text} after {self.runs}"

    @property
    def tool(self) -> BaseTool:
        return StructuredTool.from_function(coroutine=self.run, name="flaky", metadata=self.marks)


async def result_of(flaky: Flaky, **arguments: Any) -> tuple[str, str, int]:
    """Call the tool once; the result's status and text, and how often the tool ran."""
    script = [asks(("c1", "flaky", arguments or {"text": "done"})), "No more actions.", "Done."]
    result = await create_graph_agent(ScriptedChatModel(script), tools=[flaky.tool]).ainvoke(says("go"))
    (answer,) = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    return answer.status, answer.text, flaky.runs


async def forever() -> None:
    await asyncio.Event().wait()


TWICE = {"max_attempts": 2, **AT_ONCE}


@pytest.mark.parametrize(
    ("flaky", "outcome"),
    [
        (lambda: Flaky(OSError("busy")), ("error", "flaky failed: OSError: busy", 1)),
        (lambda: Flaky(OSError("busy"), retry=TWICE), ("success", "done after 2", 2)),
        (
            lambda: Flaky(OSError("busy"), OSError("gone."), retry=TWICE),
            ("error", "flaky failed: OSError: gone (after 2 attempts).", 2),
        ),
        (lambda: Flaky(ToolException("no"), retry=TWICE), ("success", "done after 2", 2)),
        (lambda: Flaky(TimeoutError("its own"), retry=TWICE), ("success", "done after 2", 2)),
        (
            lambda: Flaky(forever, retry=TWICE, timeout_s=0.01),
            (
                "error",
                "flaky was stopped at its time limit of 0.01 s. It is not known whether it took effect; check before "
                "repeating it.",
                1,
            ),
        ),
        (lambda: Flaky(forever, retry=TWICE, timeout_s=1, effect="read"), ("success", "done after 2", 2)),
        (lambda: Flaky(forever, retry=TWICE, timeout_s=1, idempotent=True), ("success", "done after 2", 2)),
        (lambda: Flaky(SystemExit(3), retry=TWICE), ("error", "flaky failed: SystemExit: 3", 1)),
    ],
    ids=["unmarked", "once more", "in vain", "ToolException", "own timeout", "timeout", "reads", "idempotent", "exit"],
)
async def test_an_exception_is_retried_if_marked(flaky: Callable[[], Flaky], outcome: tuple[str, str, int]) -> None:
    assert await result_of(flaky()) == outcome


async def test_invalid_arguments_are_not_retried() -> None:
    assert await result_of(Flaky(retry=TWICE), wrong=1) == (
        "error",
        "The arguments do not fit the tool 'flaky': text: Field required. It takes: text.",
        0,
    )


async def test_an_interrupt_is_not_retried() -> None:
    async def ask() -> None:
        interrupt("May I?")

    flaky = Flaky(ask, ask, retry=TWICE)
    script = [asks(("c1", "flaky", {"text": "done"})), "No more actions.", "Done."]
    graph = create_graph_agent(ScriptedChatModel(script), tools=[flaky.tool], checkpointer=InMemorySaver())

    asked = await graph.ainvoke(says("go"), thread())
    runs = flaky.runs
    answered = await graph.ainvoke(Command(resume="yes"), thread())

    results = [message.text for message in answered["messages"] if isinstance(message, ToolMessage)]
    assert (isinstance(asked["messages"][-1], AIMessage), runs, results) == (True, 1, ["done after 2"])


async def test_a_cancelled_run_tries_nothing_again() -> None:
    begun = asyncio.Event()

    async def begin() -> None:
        begun.set()
        await forever()

    flaky = Flaky(begin, retry={"max_attempts": 5, **AT_ONCE})
    run = asyncio.create_task(result_of(flaky))
    await begun.wait()
    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run
    assert flaky.runs == 1


@pytest.mark.parametrize(
    ("retry", "message"),
    [
        (3, "The tool 'flaky': retry=3: write a mapping, such as {'max_attempts': 2}."),
        (
            {"max_attempt": 2},
            "The tool 'flaky': retry: unknown field 'max_attempt'; known: backoff_factor, initial_interval, jitter, "
            "max_attempts, max_interval. Did you mean 'max_attempts'?",
        ),
        (
            {"max_attempts": 0},
            "The tool 'flaky': retry: max_attempts=0: Input should be greater than or equal to 1.",
        ),
        ({"jitter": "yes"}, "The tool 'flaky': retry: jitter='yes': Input should be a valid boolean."),
        (
            {"max_interval": math.inf},
            "The tool 'flaky': retry: max_interval=inf: Input should be a finite number.",
        ),
    ],
    ids=["number", "misspelt", "none", "kind", "endless"],
)
def test_an_invalid_mark_is_refused_at_construction(retry: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        create_graph_agent(ScriptedChatModel(["Hi."]), tools=[Flaky(retry=retry).tool])

    assert str(refused.value) == message


def test_waits_grow_to_the_longest() -> None:
    policy = ToolRetry(max_attempts=9, initial_interval=0.5, backoff_factor=3, max_interval=10, jitter=False)

    assert [policy.wait_s(attempt) for attempt in range(1, 6)] == [0.5, 1.5, 4.5, 10, 10]


def test_jitter_takes_up_to_half_away() -> None:
    policy = ToolRetry(max_attempts=2, initial_interval=8)

    waits = [policy.wait_s(1) for _ in range(200)]

    assert (min(waits) >= 4, max(waits) <= 8, len(set(waits)) > 1) == (True, True, True)
