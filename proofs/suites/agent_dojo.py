"""Replays the user tasks of AgentDojo: `python -m proofs.suites.agent_dojo`, in an environment that has it.

A scripted model makes the calls of a task's `ground_truth`, one a step, on the functions of AgentDojo's environment;
the task's own check then judges the answer and the state of the environment. The same is done in each mode of tool
calling: with native calls, with calls written as text, and with structured plans.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentdojo.agent_pipeline.base_pipeline_element import BasePipelineElement
from agentdojo.base_tasks import BaseUserTask
from agentdojo.functions_runtime import EmptyEnv, Function, FunctionCall, FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suites
from agentdojo.types import ChatAssistantMessage, text_content_block_from_string
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, RunResult, ScriptedChatModel, Session, create_graph_agent

VERSION = "v1.2.2"
MODES = ("native", "text", "wave")


@dataclass
class Counts:
    """What the tasks of one mode came to."""

    tasks: int = 0
    passed: int = 0
    calls: int = 0
    succeeded: int = 0
    steps: int = 0
    failed: list[str] = field(default_factory=list)
    """Suite and id of each task that has not passed."""


class Replay(BasePipelineElement):
    """Runs an agent with the calls of a task's ground truth."""

    def __init__(self, task: BaseUserTask[Any], mode: str) -> None:
        self._task, self._mode = task, mode
        self.result: RunResult[Any] | None = None

    def query(
        self,
        query: str,
        runtime: FunctionsRuntime,
        env: Any = EmptyEnv(),  # noqa: B008 - as in the base class
        messages: Sequence[Any] = (),
        extra_args: dict[str, Any] | None = None,
    ) -> tuple[str, FunctionsRuntime, Any, Sequence[Any], dict[str, Any]]:
        """Run the task; arguments and results as in the base class."""
        calls = self._task.ground_truth(env)
        answer = self._task.GROUND_TRUTH_OUTPUT or "Done."
        model = ScriptedChatModel([*(reply(call, at, self._mode) for at, call in enumerate(calls)), answer])
        agent = create_graph_agent(
            model,
            tools=[tool_of(function, runtime, env) for function in runtime.functions.values()],
            config=LoopConfig(tool_calling=self._mode, max_steps=len(calls) + 1),
            checkpointer=InMemorySaver(),
        )
        self.result = asyncio.run(Session(agent, self._task.ID).run(query))
        made = [FunctionCall(function=call.name, args=call.arguments, id=call.id) for call in self.result.calls]
        replies = [ChatAssistantMessage(role="assistant", tool_calls=[call], content=None) for call in made]
        content = [text_content_block_from_string(self.result.answer)]
        last = ChatAssistantMessage(role="assistant", tool_calls=None, content=content)
        return query, runtime, env, [*messages, *replies, last], extra_args or {}


def reply(call: FunctionCall, at: int, mode: str) -> AIMessage:
    """Return the reply of a model that makes one call."""
    id_, arguments = f"call_{at}", json.loads(json.dumps(dict(call.args), default=str))
    if mode == "native":
        return AIMessage("", tool_calls=[{"id": id_, "name": call.function, "args": arguments}])
    if mode == "text":
        return AIMessage(json.dumps({"tool_calls": [{"id": id_, "name": call.function, "arguments": arguments}]}))
    return AIMessage(
        json.dumps({"status": "continue", "tools": [{"id": id_, "tool": call.function, "args": arguments}]})
    )


def tool_of(function: Function[Any, Any], runtime: FunctionsRuntime, env: Any) -> BaseTool:
    """Return a function of AgentDojo as a tool on an environment."""

    async def run(**arguments: Any) -> Any:
        value, _ = runtime.run_function(env, function.name, arguments, raise_on_error=True)
        return value

    return StructuredTool.from_function(
        coroutine=run, name=function.name, description=function.description, args_schema=function.parameters
    )


def replay(mode: str, only: int | None = None) -> Counts:
    """Replay the tasks of all suites in one mode.

    Args:
        only: Tasks of each suite; None for all.
    """
    counts = Counts()
    for name, suite in get_suites(VERSION).items():
        for task in [*suite.user_tasks.values()][:only]:
            pipeline = Replay(task, mode)
            passed, _ = suite.run_task_with_pipeline(pipeline, task, None, {})
            assert pipeline.result is not None
            counts.tasks += 1
            counts.passed += passed
            counts.calls += len(pipeline.result.calls)
            counts.succeeded += sum(call.status == "success" for call in pipeline.result.calls)
            counts.steps += pipeline.result.iterations
            if not passed:
                counts.failed.append(f"{name} {task.ID}")
    return counts


def main() -> None:
    """Print the counts of each mode; the status is 1 if a task fails, or if modes differ."""
    only = int(sys.argv[1]) if len(sys.argv) > 1 else None
    found = {mode: replay(mode, only) for mode in MODES}
    for mode, counts in found.items():
        print(
            f"AgentDojo {VERSION}, {mode}: {counts.passed} of {counts.tasks} user tasks pass, with {counts.calls} "
            f"calls in {counts.steps} steps, {counts.calls - counts.succeeded} of them errors"
            f"{'; failed: ' + ', '.join(counts.failed) if counts.failed else ''}"
        )
    first, *others = found.values()
    sys.exit(bool(first.failed) or any(counts != first for counts in others))


if __name__ == "__main__":
    main()
