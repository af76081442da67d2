"""Blocking code of tools, hooks, delegates and models runs on daemon threads and does not delay the exit."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from graph_agent._internal.sync_bridge import DaemonExecutor, DaemonThreads, call_in_thread
from graph_agent.errors import AbandonedCallsError
from tests.support.hung_run import AGENTS

WORD: ContextVar[str] = ContextVar("word", default="unset")


@contextmanager
def hung(seconds: float, *kinds: str) -> Iterator[subprocess.Popen[str]]:
    """A program whose agent hangs in blocking code."""
    command = [sys.executable, "-m", "tests.support.hung_run", str(seconds), *kinds]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n", process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_program_ends_though_blocking_code_hangs_beyond_its_time_limits() -> None:
    with hung(0.5, *AGENTS) as process:
        rest, _ = process.communicate(timeout=120)

    ended = [line for line in rest.splitlines() if line != "hanging"]
    assert (process.returncode, ended) == (0, [*AGENTS])


@pytest.mark.parametrize("kind", ["function", "delegate", "model"])
def test_one_ctrl_c_ends_a_program_whose_blocking_code_hangs(kind: str) -> None:
    with hung(600, kind) as process:
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=60)

    assert (process.returncode, rest, stderr.splitlines()[-1]) == (-signal.SIGINT, "", "KeyboardInterrupt")


@pytest.mark.parametrize(("kind", "concurrency"), [("invoke", 1), ("invoke", 3), ("invoke-delegate", 3)])
def test_one_ctrl_c_ends_a_blocking_run_with_several_calls_that_hang(kind: str, concurrency: int) -> None:
    with hung(600, kind, str(concurrency)) as process:
        assert process.stdout is not None
        others = [process.stdout.readline() for _ in range(concurrency - 1)]
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=60)

    # LangGraph may report futures of the delegate's threads after it, as the interpreter ends.
    assert (others, process.returncode, rest, "KeyboardInterrupt" in stderr.splitlines()) == (
        ["hanging\n"] * (concurrency - 1),
        -signal.SIGINT,
        "",
        True,
    )


async def test_a_call_has_its_callers_context() -> None:
    WORD.set("given")

    assert await call_in_thread(WORD.get) == "given"


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
