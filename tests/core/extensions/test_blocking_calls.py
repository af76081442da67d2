"""Blocking code of tools, hooks, delegates and models runs on daemon threads and does not delay the exit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.base._internal.sync_bridge import DaemonExecutor, DaemonThreads, call_in_thread
from graph_agent.errors import AbandonedCallsError
from tests.support.agents import asks, says
from tests.support.gates import Gate, gated_tool, until
from tests.support.hung_run import AGENTS

WORD: ContextVar[str] = ContextVar("word", default="unset")


@pytest.fixture(scope="module")
def programs() -> Iterator[subprocess.Popen[str]]:
    """Starts programs whose agents hang."""
    command = [sys.executable, "-m", "tests.support.hung_run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@dataclass
class Hung:
    """A program whose agent hangs in blocking code."""

    pid: int
    stdout: IO[str]
    _errors: Path
    _ended: IO[str]
    _status: int | None = None

    def communicate(self) -> tuple[int, str, str]:
        """Wait for its end; return the exit status, the rest of its output, and its errors."""
        return self.wait(), self.stdout.read(), self._errors.read_text()

    def wait(self) -> int:
        """Wait for its end, and kill it after 60 s; return the exit status."""
        if self._status is None:
            killer = threading.Timer(60, self.kill)
            killer.start()
            self._status = int(self._ended.readline())
            killer.cancel()
            killer.join()
        return self._status

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def start(programs: subprocess.Popen[str], tmp_path: Path) -> Iterator[Callable[..., Hung]]:
    """Starts a program, and waits until it hangs."""
    with ExitStack() as opened:

        def start(*arguments: str, waits: bool = True) -> Hung:
            assert programs.stdin is not None
            assert programs.stdout is not None
            output, errors = tmp_path / "output", tmp_path / "errors"
            os.mkfifo(output)
            errors.touch()
            programs.stdin.write(json.dumps([str(output), str(errors), arguments]) + "\n")
            programs.stdin.flush()
            pid = int(programs.stdout.readline())
            program = Hung(pid, opened.enter_context(output.open()), errors, programs.stdout)
            opened.callback(program.wait)
            opened.callback(program.kill)
            if waits:
                assert program.stdout.readline() == "hanging\n", errors.read_text()
            return program

        yield start


def test_a_program_ends_though_blocking_code_hangs_beyond_its_time_limits(start: Callable[..., Hung]) -> None:
    # On a busy machine, a time limit may be reached before the code hangs.
    status, rest, _ = start("0.5", *AGENTS, waits=False).communicate()

    assert (status, [line for line in rest.splitlines() if line != "hanging"]) == (0, [*AGENTS])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["function", "delegate", "model"])
def test_one_ctrl_c_ends_a_program_whose_blocking_code_hangs(kind: str, start: Callable[..., Hung]) -> None:
    program = start("600", kind)
    os.kill(program.pid, signal.SIGINT)
    status, rest, stderr = program.communicate()

    assert (status, rest, stderr.splitlines()[-1]) == (-signal.SIGINT, "", "KeyboardInterrupt")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "concurrency"), [("invoke", 1), ("invoke", 3), ("invoke-delegate", 3)])
def test_one_ctrl_c_ends_a_blocking_run_with_several_calls_that_hang(
    kind: str, concurrency: int, start: Callable[..., Hung]
) -> None:
    program = start("600", kind, str(concurrency))
    others = [program.stdout.readline() for _ in range(concurrency - 1)]
    os.kill(program.pid, signal.SIGINT)
    status, rest, stderr = program.communicate()

    # LangGraph may report futures of the delegate's threads after it, as the interpreter ends.
    assert (others, status, rest, "KeyboardInterrupt" in stderr.splitlines()) == (
        ["hanging\n"] * (concurrency - 1),
        -signal.SIGINT,
        "",
        True,
    )


async def test_a_call_has_its_callers_context() -> None:
    WORD.set("given")

    assert await call_in_thread(WORD.get) == "given"


async def test_a_run_that_a_blocking_tool_waits_for_is_cancelled_with_the_tool() -> None:
    gate = Gate()
    inner = create_graph_agent(ScriptedChatModel([asks(("1", "wait", {}))]), [gated_tool(gate, "wait")])

    @tool
    def ask() -> str:
        """Ask another agent, and wait for its answer."""
        return str(inner.invoke(says("go"))["messages"][-1].text)

    model = ScriptedChatModel([asks(("1", "ask", {}))])
    session = Session(create_graph_agent(model, [ask], checkpointer=InMemorySaver()), "s1")
    run = asyncio.create_task(session.run("go"))
    await gate.reached()

    await session.abort()
    result = await run
    await until(lambda: gate.cancelled)

    assert result.stop_reason == "aborted"


async def test_a_stop_iteration_reaches_the_caller_as_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await call_in_thread(next, iter(()))


def test_calls_that_wait_for_each_other_each_have_a_thread() -> None:
    together = threading.Barrier(100)
    pool = DaemonThreads()

    met = [pool.submit(lambda: together.wait(30)) for _ in range(100)]

    assert sorted(future.result(30) for future in met) == list(range(100))


def test_abandoned_calls_are_limited_and_counted_only_while_they_run() -> None:
    pool, go_on, begun = DaemonThreads(most_abandoned=2), threading.Event(), threading.Semaphore(0)

    def hang_for_a_while() -> None:
        begun.release()
        go_on.wait(30)

    calls = [pool.submit(hang_for_a_while) for _ in range(2)]
    for call in calls:
        begun.acquire(timeout=30)
        call.cancel()
        call.cancel()
    with pytest.raises(AbandonedCallsError, match="2 blocking calls that were cancelled or timed out still run"):
        pool.submit(int)
    go_on.set()
    for call in calls:
        call.result(30)

    assert pool.submit(int).result(30) == 0


def test_a_loop_still_waits_at_its_end_for_blocking_code_of_others() -> None:
    written: list[str] = []
    may_end = threading.Event()

    def write() -> None:
        may_end.wait(30)
        written.append("all")

    async def program() -> None:
        asyncio.get_running_loop().set_default_executor(DaemonExecutor(lambda: False))
        asyncio.get_running_loop().run_in_executor(None, write)
        may_end.set()

    asyncio.run(program())

    assert written == ["all"]
