"""Failures of foreign code: the message names each cause, and the log contains no secret."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    after_agent,
    before_model,
    dynamic_prompt,
    wrap_model_call,
    wrap_tool_call,
)
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel, field_validator

from graph_agent import LoopConfig, LoopHook, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base._internal.failure_log import exception_text
from graph_agent.delegation import Delegation, DelegationResult
from graph_agent.errors import ConfigError, InputError
from graph_agent.integrations.mcp.messages import root_cause
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.waves import PlanningResult
from tests.support.agents import asks, says, thread

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

    assert (sorted(results[0].removeprefix("search failed: ").split("; ")), len(logged(caplog, logging.ERROR))) == (
        ["OSError: refused", "ValueError: no rooms"],
        1,
    )


async def test_a_delegates_failure_names_its_causes_to_the_model_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = await run("delegate_to_other", delegates=[FailingDelegate()])

    text = "The delegate 'other' failed: ValueError: no rooms; OSError: refused"
    assert (results, [line.splitlines()[0] for line in logged(caplog, logging.ERROR)]) == ([text], [text])


def bug(*_: Any) -> Any:
    """Fail as a mistake of a programmer does."""
    return dict[str, Any]()["rooms"]


class BuggyHook(LoopHook):
    async def should_run(self, response: Any, request: Any) -> Any:
        return bug()


@tool
async def books() -> Any:
    """Book a room."""
    return Command(update={"booked": 1, "messages": []})


def reduce(before: int, new: int) -> int:
    return int(bug())


class Booked(TypedDict):
    booked: Annotated[int, reduce]


async def search() -> str:
    """Search."""
    return "none"


async def buggy_search() -> str:
    """Search."""
    return str(bug())


class BuggyDelegate(FailingDelegate):
    async def run(self, delegation: Delegation) -> DelegationResult:
        return DelegationResult(bug(), "success")


class BuggyRewriter(LoopHook):
    async def rewrite_results(self, results: Any) -> Any:
        return bug()


@before_model(name="before")
def buggy_node(state: Any, runtime: Any) -> Any:
    return bug()


@after_agent(name="after")
def buggy_last_node(state: Any, runtime: Any) -> Any:
    return bug()


@dynamic_prompt
def buggy_prompt(request: Any) -> str:
    return str(bug())


class BuggySelection(AgentMiddleware):
    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tools=bug()))


class Hidden(AgentMiddleware):
    """Replaces the exception of the middleware that it surrounds."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except ZeroDivisionError:
            return bug()


class Inner(AgentMiddleware):
    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return 1 / 0


class Room(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        return int(bug())


class Plan(PlanningResult):
    @field_validator("action", mode="before")
    @classmethod
    def check(cls, action: Any) -> str:
        return str(bug())


@wrap_model_call(name="model")
async def buggy_model_wrapper(request: Any, handler: Any) -> Any:
    return bug()


@wrap_model_call(name="late")
async def buggy_wrapper_of_a_reply(request: Any, handler: Any) -> Any:
    await handler(request)
    return bug()


@wrap_tool_call(name="tool")
async def buggy_tool_wrapper(request: Any, handler: Any) -> Any:
    return bug()


def prompt() -> str:
    return str(bug())


def policy(call: Any) -> Any:
    return bug()


BUGS: dict[str, tuple[str, dict[str, Any]]] = {
    "tool": ("search", {"tools": [failing(buggy_search)]}),
    "hook": ("search", {"tools": [failing(search)], "hooks": [BuggyHook()]}),
    "rewriting hook": ("search", {"tools": [failing(search)], "hooks": [BuggyRewriter()]}),
    "node hook": ("search", {"tools": [failing(search)], "hooks": [buggy_node]}),
    "last node hook": ("search", {"tools": [failing(search)], "hooks": [buggy_last_node]}),
    "dynamic prompt": ("search", {"tools": [failing(search)], "hooks": [buggy_prompt]}),
    "tool selection": ("search", {"tools": [failing(search)], "hooks": [BuggySelection()]}),
    "response format": ("search", {"tools": [failing(search)], "response_format": Room}),
    "plan schema": (
        "search",
        {"tools": [failing(search)], "plan_schema": Plan, "config": LoopConfig(tool_calling="wave")},
    ),
    "model wrapper": ("search", {"tools": [failing(search)], "hooks": [buggy_model_wrapper]}),
    "wrapper of a reply": ("search", {"tools": [failing(search)], "hooks": [buggy_wrapper_of_a_reply]}),
    "tool wrapper": ("search", {"tools": [failing(search)], "hooks": [buggy_tool_wrapper]}),
    "delegate": ("delegate_to_other", {"delegates": [BuggyDelegate()]}),
    "policy": ("search", {"tools": [failing(search)], "config": LoopConfig(approve=policy)}),
    "reducer": ("books", {"tools": [books], "state_schema": Booked}),
    "reducer of an input": ("books", {"tools": [books], "state_schema": Booked}),
    "prompt": ("search", {"tools": [failing(search)], "system_prompt": prompt}),
}


def script(place: str) -> ScriptedChatModel:
    """A model that makes the call of a place, and answers what its response format accepts."""
    name = BUGS[place][0]
    call = asks(("1", name, {"task": "x"} if "delegate" in name else {}))
    first = '{"status": "done", "action": "reply", "tools": []}' if place == "plan schema" else call
    return ScriptedChatModel([first, "No more actions.", '{"number": 1}'])


@pytest.mark.parametrize("place", BUGS)
async def test_a_bug_in_the_users_code_is_logged_once_with_a_traceback_that_ends_at_its_line(
    caplog: pytest.LogCaptureFixture, place: str
) -> None:
    graph = create_graph_agent(script(place), checkpointer=InMemorySaver(), **BUGS[place][1])

    with contextlib.suppress(ConfigError, InputError):  # the accounts of bugs in a prompt and in a reducer
        await graph.ainvoke({**says("go"), **({"booked": 1} if place == "reducer of an input" else {})}, thread())

    (record,) = [line.splitlines() for line in logged(caplog, logging.ERROR)]
    first, last = record[1:3], [line.strip() for line in record if line.strip(" ^~")][-3:]
    line = bug.__code__.co_firstlineno + 2
    assert (record[0].endswith("failed: KeyError: 'rooms'"), first[0], __file__ in first[1], last) == (
        True,
        "Traceback (most recent call last):",
        True,
        [f'File "{__file__}", line {line}, in bug', 'return dict[str, Any]()["rooms"]', "KeyError: 'rooms'"],
    )


TRACED = "See the traceback in the log."
FAILURES = {
    "hook": ("hook", "The hook BuggyHook"),
    "rewriting hook": ("hook", "The hook BuggyRewriter"),
    "node hook": ("middleware", "The hook before.before_model"),
    "last node hook": ("middleware", "The hook after.after_agent"),
    "model wrapper": ("middleware", "The hook model.wrap_model_call"),
    "wrapper of a reply": ("middleware", "The hook late.wrap_model_call"),
    "dynamic prompt": ("middleware", "The hook buggy_prompt.wrap_model_call"),
    "tool selection": ("middleware", "The hook BuggySelection.wrap_model_call"),
    "response format": ("code", "The function 'check' of this agent"),
    "plan schema": ("code", "The function 'check' of this agent"),
}
"""Kind and subject of the errors of the places whose bugs fail the input; a bug elsewhere fails its call alone."""


@pytest.mark.parametrize("mode", ["native", "text", "wave"])
@pytest.mark.parametrize("place", [place for place in BUGS if place not in ("prompt", "reducer of an input", "policy")])
async def test_a_bug_in_the_users_code_is_accounted_to_its_place_and_its_text_is_not_in_the_answer(
    place: str, mode: Any
) -> None:
    own = {**BUGS[place][1], "config": LoopConfig(tool_calling="wave" if place == "plan schema" else mode)}
    graph = create_graph_agent(script(place), checkpointer=InMemorySaver(), **own)

    result = await Session(graph, "s1").run("go")

    kind, subject = FAILURES.get(place, ("", ""))
    fault = f"{subject} failed" if kind else ""
    assert (result.status, result.error_kind, result.error, result.hint, result.answer.partition("\n\n")[0]) == (
        ("FAILED", kind, f"{fault}: KeyError: 'rooms'", TRACED, f"This request failed. {fault}.")
        if kind
        else ("COMPLETED", "", "", "", '{"number": 1}')
    )
    assert "rooms" not in result.answer


@pytest.mark.parametrize(
    ("change", "fault", "fix"),
    [
        ({"model": 3}, "it asks the model 3", "Give a chat model."),
        ({"tools": [3]}, "3 is no tool", "Give an OpenAI schema or a LangChain tool"),
        (None, "it answered a model request with None", "Give a ModelResponse or AIMessage."),
    ],
    ids=["model", "tools", "response"],
)
async def test_an_unusable_value_of_middleware_fails_the_input_in_its_name(
    caplog: pytest.LogCaptureFixture, change: dict[str, Any] | None, fault: str, fix: str
) -> None:
    @wrap_model_call(name="guard")
    async def guard(request: Any, handler: Any) -> Any:
        return None if change is None else await handler(request.override(**change))

    graph = create_graph_agent(
        ScriptedChatModel(["Hi."]), tools=[failing(search)], hooks=[guard], checkpointer=InMemorySaver()
    )

    result = await Session(graph, "s1").run("go")

    what = "The hook guard.wrap_model_call failed"
    assert (result.error_kind, result.error.partition("; ")[0], result.hint.startswith(fix), result.answer) == (
        "middleware",
        f"{what}: {fault}",
        True,
        f"This request failed. {what}.",
    )
    assert logged(caplog, logging.ERROR) == [f"The input failed: {result.error}"]


async def test_middleware_receives_the_exception_of_the_middleware_that_it_surrounds() -> None:
    model = ScriptedChatModel(["Hi."])
    graph = create_graph_agent(model, hooks=[Hidden(), Inner()], checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("go")

    assert result.error == "The hook Hidden.wrap_model_call failed: KeyError: 'rooms'"


@wrap_model_call(name="translating")
async def translating(request: Any, handler: Any) -> Any:
    try:
        return await handler(request)
    except _AuthenticationError as error:
        raise RuntimeError("the gateway refuses") from error


class Refusing(ScriptedChatModel):
    async def _agenerate(self, *_: Any, **__: Any) -> Any:
        raise _AuthenticationError("bad key")


@pytest.mark.parametrize("hooks", [[], [translating]], ids=["raised", "raised from"])
async def test_a_providers_error_that_passes_middleware_stays_one_of_the_provider(hooks: list[Any]) -> None:
    graph = create_graph_agent(
        Refusing(responses=["Hi."], disable_streaming=True), hooks=hooks, checkpointer=InMemorySaver()
    )

    result = await Session(graph, "s1").run("go")

    assert (result.error_kind, result.answer) == (
        "auth",
        "This request failed. The model provider refused the API key (HTTP 401).",
    )


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
        (refuses, "The tool 'search' failed: ToolException: No rooms in May."),
        (never_ends, f"The tool 'search' failed: TimeLimitError: stopped at its time limit of {TIMEOUT_S} s"),
    ],
    ids=["ToolException", "timeout"],
)
async def test_a_tools_exception_is_logged_once_in_a_line_and_once_with_its_traceback_without_secrets(
    caplog: pytest.LogCaptureFixture, tool: Callable[..., Awaitable[str]], line: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="graph_agent.execution.run_call")
    await run("search", tools=[failing(tool, timeout_s=TIMEOUT_S)])

    (trace,) = logged(caplog, logging.DEBUG)
    assert (
        logged(caplog, logging.WARNING),
        trace.startswith("The tool 'search' failed:\nTraceback (most recent call last):"),
        f"in {tool.__name__}" in trace,
    ) == ([line], True, True)


async def test_a_logged_traceback_has_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    await run("search", tools=[failing(leaks)])

    (record,) = logged(caplog, logging.ERROR)
    assert (record.splitlines()[0], SECRET in caplog.text) == (
        "The tool 'search' failed: ConnectionError: refused with api_key=***",
        False,
    )


async def test_attempts_before_the_last_are_logged_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="graph_agent.execution.run_call")
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

    assert caplog.messages == []
