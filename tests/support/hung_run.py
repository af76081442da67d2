"""Programs whose agents run blocking code that never returns, for tests of their exit.

`python -m tests.support.hung_run` imports everything, and forks for each line of its input: a JSON list of a file for
the standard output, one for the standard error, and the arguments. It prints the id of the process, and the exit status
once that has ended. Each process ends like an interpreter that was started for it, unlike those of `warm_process`.

`SECONDS KIND…`: the time limit of each run, and what hangs in it (see `AGENTS`).
`SECONDS invoke CONCURRENCY`: a blocking run of three calls that hang.
`SECONDS invoke-delegate CONCURRENCY`: a blocking run of a delegate with such calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.outputs import ChatResult
from langchain_core.tools import BaseTool, Tool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from graph_agent import GraphDelegate, LoopConfig, LoopHook, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base._internal.signals import handling
from tests.support.agents import asks, says


def _wait_for_main_thread() -> None:
    """Return when the main thread no longer moves.

    The interpreter does not see a signal that arrives after its last check before a wait until that wait ends.
    """
    main, place, times = threading.main_thread().ident, None, 0
    while threading.current_thread() is not threading.main_thread() and times < 20:
        time.sleep(0.002)
        frame = sys._current_frames().get(main or 0)
        before, place = place, frame and (id(frame), frame.f_lasti)
        times = times + 1 if place == before else 0


def hang(_: str = "") -> str:
    """Never return."""
    _wait_for_main_thread()
    print("hanging\n", end="", flush=True)  # noqa: T201 - the test reads it; one write, as threads print at once
    threading.Event().wait()
    return ""


@tool
async def in_default_executor(text: str) -> str:
    """Hang in the event loop's default executor."""
    return await asyncio.to_thread(hang, text)


class HangingTool(BaseTool):
    name: str = "base_tool"
    description: str = "Hang."

    def _run(self, text: str) -> str:
        return hang(text)


class HangingHook(LoopHook):
    def should_run(self, response: Any, request: Any) -> Any:
        hang()


class HangingMiddleware(AgentMiddleware):
    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        hang()


class HangingModel(BaseChatModel):
    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        hang()
        raise AssertionError

    @property
    def _llm_type(self) -> str:
        return "hanging"


def _delegate() -> GraphDelegate:
    graph = StateGraph(MessagesState)
    graph.add_node("node", lambda state: {"messages": [("ai", hang())]})
    graph.add_edge(START, "node")
    return GraphDelegate("hanging", "Hangs.", graph.compile())


def _calling(name: str, **arguments: str) -> ScriptedChatModel:
    return ScriptedChatModel([asks(("1", name, arguments)), "No more actions.", "Done."])


AGENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "function": lambda: {"model": _calling("hang"), "tools": [hang]},
    "Tool": lambda: {"model": _calling("one", __arg1="x"), "tools": [Tool("one", hang, "Hang.")]},
    "BaseTool": lambda: {"model": _calling("base_tool", text="x"), "tools": [HangingTool()]},
    "to_thread": lambda: {"model": _calling("in_default_executor", text="x"), "tools": [in_default_executor]},
    "hook": lambda: {"model": _calling("hang"), "tools": [hang], "hooks": [HangingHook()]},
    "middleware": lambda: {"model": _calling("hang"), "tools": [hang], "hooks": [HangingMiddleware()]},
    "delegate": lambda: {"model": _calling("delegate_to_hanging", task="x"), "delegates": [_delegate()]},
    "model": lambda: {"model": HangingModel()},
}


async def main(seconds: float, kinds: list[str]) -> None:
    """Run one input for each kind to its end, which its deadline is."""
    config = LoopConfig(deadline_s=seconds, tool_timeout_s=seconds, model_retries=0)
    # asyncio.run loses a signal that arrives immediately before its loop waits for events.
    with handling(signal.SIGINT, signal.getsignal(signal.SIGINT)):
        for kind in kinds:
            graph = create_graph_agent(**AGENTS[kind](), config=config, checkpointer=InMemorySaver())
            await Session(graph, "s1").run("go")
            print(kind, flush=True)  # noqa: T201 - the test reads it


def invoke(seconds: float, concurrency: int, *, delegated: bool) -> None:
    """Run one input with three hanging calls in LangGraph's blocking way, as many at a time as given."""
    model = ScriptedChatModel([asks(*((str(n), "hang", {}) for n in range(3))), "No more actions.", "Done."])
    config = LoopConfig(deadline_s=seconds, tool_timeout_s=seconds)
    graph = create_graph_agent(model, tools=[hang], config=config, checkpointer=None if delegated else InMemorySaver())
    if delegated:
        delegate = GraphDelegate("hanging", "Hangs.", graph)
        outer = _calling("delegate_to_hanging", task="x")
        graph = create_graph_agent(outer, delegates=[delegate], config=config, checkpointer=InMemorySaver())
    graph.invoke(says("go"), {"configurable": {"thread_id": "s1"}, "max_concurrency": concurrency})


def _forked() -> list[str]:
    """Fork for each line; return the arguments in a forked process, and none at the end of the input."""
    while line := sys.stdin.readline():
        if (pid := os.fork()) == 0:
            stdout, stderr, arguments = json.loads(line)
            for number, file in ((1, stdout), (2, stderr)):
                descriptor = os.open(file, os.O_WRONLY)
                os.dup2(descriptor, number)
                os.close(descriptor)
            return list(arguments)
        print(pid, flush=True)  # noqa: T201 - the test reads it
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201 - the same
    return []


if __name__ == "__main__":
    # Background jobs of a shell ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    match _forked():
        case [seconds, "invoke" | "invoke-delegate" as kind, concurrency]:
            invoke(float(seconds), int(concurrency), delegated=kind == "invoke-delegate")
        case [seconds, *kinds]:
            asyncio.run(main(float(seconds), kinds))
