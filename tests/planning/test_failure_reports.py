"""Failures of foreign code: the message names each cause, and the log contains no secret."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool, ToolException

from graph_agent import LoopConfig, LoopHook, ScriptedChatModel, create_graph_agent
from graph_agent._internal.exception_text import exception_text
from graph_agent.delegation import Delegation, DelegationResult
from graph_agent.mcp.failures import root_cause
from graph_agent.models.errors import classify_model_error, describe_model_error
from tests.support.agents import asks, says

NESTED = ExceptionGroup(
    "unhandled errors in a TaskGroup",
    [ValueError("no rooms"), ExceptionGroup("unhandled errors in a TaskGroup", [OSError("refused")])],
)


def chained() -> RuntimeError:
    error = RuntimeError("search failed")
    error.__cause__ = NESTED
    return error


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no rooms"), "ValueError: no rooms"),
        (KeyError(), "KeyError"),
        (UnprintableError(), "UnprintableError"),
        (NESTED, "ValueError: no rooms; OSError: refused"),
        (
            ExceptionGroup("two searches failed", [NESTED, NESTED]),
            "two searches failed (ValueError: no rooms; OSError: refused)",
        ),
        (chained(), "RuntimeError: search failed (ValueError: no rooms; OSError: refused)"),
        (
            ExceptionGroup("many", [ValueError(str(number)) for number in range(9)]),
            "many (ValueError: 0; ValueError: 1; ValueError: 2; ValueError: 3; ValueError: 4; and 4 more)",
        ),
    ],
    ids=["plain", "no message", "unprintable", "nested", "own message", "cause", "many"],
)
def test_an_exceptions_text_names_its_causes(error: BaseException, text: str) -> None:
    assert exception_text(error) == text


class _AuthenticationError(Exception):
    status_code = 401


def test_a_providers_error_is_found_in_an_exception_group() -> None:
    error = ExceptionGroup("unhandled errors in a TaskGroup", [_AuthenticationError("bad key")])

    assert (classify_model_error(error), describe_model_error(error)) == (
        "auth",
        "The model provider refused the API key (HTTP 401: bad key); check the key and the address it is sent to.",
    )


def test_an_mcp_servers_failure_names_every_cause() -> None:
    assert root_cause(NESTED) == "ValueError: no rooms; OSError: refused"


async def fails_in_a_task_group() -> str:
    """Fail in two tasks at once."""

    async def fail(error: Exception) -> None:
        await asyncio.sleep(0)
        raise error

    async with asyncio.TaskGroup() as outer:
        outer.create_task(fail(ValueError("no rooms")))
        async with asyncio.TaskGroup() as inner:
            inner.create_task(fail(OSError("refused")))
    raise AssertionError


class FailingDelegate:
    name, description = "other", "Fails."

    async def run(self, delegation: Delegation) -> DelegationResult:
        raise NESTED


class FailingHook(LoopHook):
    async def should_run(self, response: Any, request: Any) -> Any:
        raise NESTED


CAUSES = "OSError: refused; ValueError: no rooms"


async def run(name: str, **parts: Any) -> list[str]:
    """Run one call; the texts of the results, or of the error event."""
    arguments = {"task": "x"} if name.startswith("delegate") else {}
    model = ScriptedChatModel([asks(("1", name, arguments)), "No more actions.", "Done."])
    parts.setdefault("config", LoopConfig())
    result = await create_graph_agent(model, **parts).ainvoke(says("go"))
    return [message.text for message in result["messages"] if isinstance(message, ToolMessage)]


def failing(function: Callable[..., Awaitable[Any]], **marks: Any) -> StructuredTool:
    return StructuredTool.from_function(coroutine=function, name="search", description="Search.", metadata=marks)


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == level]


async def test_a_task_groups_failure_names_its_causes_to_the_model_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = await run("search", tools=[failing(fails_in_a_task_group)])

    assert (sorted(results[0].removeprefix("search failed: ").split("; ")), len(logged(caplog, logging.WARNING))) == (
        ["OSError: refused", "ValueError: no rooms"],
        1,
    )


async def test_a_delegates_failure_names_its_causes_to_the_model_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = await run("delegate_to_other", delegates=[FailingDelegate()])

    text = "The delegate 'other' failed: ValueError: no rooms; OSError: refused"
    assert (results, logged(caplog, logging.WARNING)) == ([text], [text])


async def test_a_hooks_failure_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="graph_agent")
    await run("search", tools=[failing(fails_in_a_task_group)], hooks=[FailingHook()])

    assert [text.splitlines()[0] for text in logged(caplog, logging.DEBUG)] == ["The hook FailingHook failed:"]


SECRET = "sk-1234567890abcdef"


TIMEOUT_S = 300


async def leaks() -> str:
    """Fail with a key in the message."""
    raise ConnectionError(f"refused with api_key={SECRET}")


async def refuses() -> str:
    """Fail in words for the model."""
    raise ToolException("No rooms in May.")


async def never_ends() -> str:
    """Wait, and advance the loop's clock past the timeout."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + 2 * TIMEOUT_S  # type: ignore[method-assign]  # a clock to move
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        (leaks, "The tool 'search' failed: ConnectionError: refused with api_key=***"),
        (refuses, "The tool 'search' failed: ToolException: No rooms in May."),
        (never_ends, f"The tool 'search' failed: TimeoutError: stopped at its time limit of {TIMEOUT_S} s"),
    ],
    ids=["exception", "ToolException", "timeout"],
)
async def test_a_tools_exception_is_logged_once_in_a_line_and_once_with_its_traceback_without_secrets(
    caplog: pytest.LogCaptureFixture, tool: Callable[..., Awaitable[str]], line: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="graph_agent.tools.toolbox")
    await run("search", tools=[failing(tool, timeout_s=TIMEOUT_S)])

    (trace,) = logged(caplog, logging.DEBUG)
    assert (
        logged(caplog, logging.WARNING),
        trace.startswith("The tool 'search' failed:\nTraceback (most recent call last):"),
        f"in {tool.__name__}" in trace,
        SECRET in caplog.text,
    ) == ([line], True, True, False)


async def test_attempts_before_the_last_are_logged_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="graph_agent.tools.toolbox")
    again = {"max_attempts": 3, "initial_interval": 0}
    await run("search", tools=[failing(refuses, retry=again)])

    assert (logged(caplog, logging.WARNING), [text.splitlines()[0] for text in logged(caplog, logging.DEBUG)]) == (
        ["The tool 'search' failed: ToolException: No rooms in May."],
        [
            "Attempt 1 of the tool 'search' failed:",
            "Attempt 2 of the tool 'search' failed:",
            "The tool 'search' failed:",
        ],
    )


async def test_arguments_that_do_not_fit_are_no_failure_of_the_tool(caplog: pytest.LogCaptureFixture) -> None:
    async def search(place: str) -> str:
        """Search."""
        return place

    await run("search", tools=[failing(search)])

    assert logged(caplog, logging.WARNING) == []
