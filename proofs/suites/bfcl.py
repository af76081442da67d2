"""Replays the gold calls of BFCL v4: `python -m proofs.suites.bfcl`, in an environment that has it.

- AST: a scripted model makes the calls of a possible answer in one wave, on tools with the item's schemas; BFCL's AST
  checker then judges the calls that the agent has made. Items of Java and JavaScript are left out: their values are
  written in these languages, and an agent's calls are JSON.
- Multi-turn: the gold calls of each turn, one a step, run on BFCL's own classes; after each turn, BFCL's checkers
  compare the state of the instances and the results with those of a run of the gold calls by BFCL itself.

The same is done in each mode of tool calling. Memory and web search need a model or the network, so they are left out.
"""

from __future__ import annotations

import ast
import asyncio
import copy
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent


class _AnyModel(dict[str, Any]):
    """What the checkers ask of a model: whether its names have underscores in place of dots."""

    def __missing__(self, name: str) -> Any:
        return SimpleNamespace(underscore_to_dot=False)


# The package's own list of models imports the client of each provider.
_stub: Any = ModuleType("bfcl_eval.constants.model_config")
_stub.MODEL_CONFIG_MAPPING = _AnyModel()
sys.modules[_stub.__name__] = _stub

import bfcl_eval  # noqa: E402 - after the stub
from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.constants.executable_backend_config import (  # noqa: E402
    CLASS_FILE_PATH_MAPPING,
    MULTI_TURN_FUNC_DOC_FILE_MAPPING,
    STATELESS_CLASSES,
)
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call  # noqa: E402

DATA = Path(bfcl_eval.__file__).parent / "data"
AST = ("simple_python", "multiple", "parallel", "parallel_multiple")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
NOT_PASSED = {
    *("live_simple_106-63-0", "live_simple_112-68-0", "live_multiple_862-181-3", "live_multiple_964-207-0"),
    "live_parallel_multiple_2-2-0",
    *("multi_turn_base_32", "multi_turn_base_49", "multi_turn_base_57", "multi_turn_base_59"),
}
"""Items that do not pass in any mode, by the form of this replay; another one is a failure.

In `record`, an argument is a list of texts in place of options. The possible answers of the two `live_multiple` name an
argument that the function does not have. The arguments of `live_parallel_multiple_2-2-0` do not fit the function's own
schema, so that its call does not run. Those of multi-turn return numbers of mpmath, which are
text in an agent's JSON.
"""
MODES = ("native", "text", "wave")
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
_NOT_IN_ALIAS = re.compile(r"[^a-zA-Z0-9_-]")

Wave = Sequence[tuple[str, dict[str, Any]]]
"""Name and arguments of each call."""


@dataclass
class Counts:
    """What the items of one mode came to."""

    items: int = 0
    passed: int = 0
    calls: int = 0
    failed: list[str] = field(default_factory=list)


def lines(name: str, only: int | None) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield items of a category with their gold calls."""
    items, gold = (
        (DATA / folder / f"BFCL_v4_{name}.json").read_text().splitlines() for folder in ("", "possible_answer")
    )
    for item, answer in list(zip(items, gold, strict=True))[:only]:
        yield json.loads(item), json.loads(answer)["ground_truth"]


def schema_of(parameters: Any) -> Any:
    """Return BFCL's description of parameters as JSON schema."""
    if isinstance(parameters, list):
        return [schema_of(each) for each in parameters]
    if not isinstance(parameters, dict):
        return parameters
    found = {key: schema_of(value) for key, value in parameters.items() if key not in ("default", "optional")}
    if isinstance(kind := parameters.get("type"), str) and kind in _TYPES:
        found["type"] = _TYPES[kind]
        if found["type"] is None:
            del found["type"]
    return found


def tool_of(description: Mapping[str, Any], run: Callable[..., Any]) -> BaseTool:
    """Return a tool for a function of BFCL."""

    async def call(**arguments: Any) -> Any:
        return run(**arguments)

    schema = schema_of(description["parameters"])
    return StructuredTool(
        name=description["name"], description=description["description"], args_schema=schema, coroutine=call
    )


def reply(wave: Wave, at: int, mode: str) -> AIMessage:
    """Return the reply of a model that makes the calls of a wave."""
    calls = [(f"call_{at}_{number}", name, arguments) for number, (name, arguments) in enumerate(wave)]
    if mode == "native":
        # A provider knows the aliases of names with dots.
        made = [{"id": id_, "name": _NOT_IN_ALIAS.sub("_", name), "args": given} for id_, name, given in calls]
        return AIMessage("", tool_calls=made)
    if mode == "text":
        return AIMessage(json.dumps({"tool_calls": [{"id": i, "name": n, "arguments": a} for i, n, a in calls]}))
    tools = [{"id": id_, "tool": name, "args": given} for id_, name, given in calls]
    return AIMessage(json.dumps({"status": "continue", "tools": tools}))


def session_of(waves: Sequence[Sequence[Wave]], tools: Sequence[BaseTool], mode: str) -> Session:
    """Return a session whose model makes the waves of each turn, and then answers it."""
    script = [
        each
        for turn, of_turn in enumerate(waves)
        for each in (*(reply(wave, turn * 100 + at, mode) for at, wave in enumerate(of_turn)), "Done.")
    ]
    config = LoopConfig(tool_calling=mode, max_steps=max(map(len, waves)) + 1)
    return Session(
        create_graph_agent(ScriptedChatModel(script), tools=tools, config=config, checkpointer=InMemorySaver()), "s1"
    )


def chosen(answer: Any, required: Collection[str] = ()) -> Any:
    """Return a value of a possible answer, in which each part is a list of options.

    Args:
        required: Names of the arguments that may not be left out.
    """
    if isinstance(answer, dict):
        found: dict[str, Any] = {}
        for name, options in answer.items():
            # Some parts of live items are values, not lists of them.
            given = options if isinstance(options, list) else [options]
            # An empty text is an argument that may lack.
            if name in required or (given and "" not in given):
                found[name] = chosen(next((each for each in given if each != ""), ""))
        return found
    if isinstance(answer, list) and any(isinstance(each, dict) for each in answer):
        return [chosen(each) for each in answer]
    return answer


async def check_ast(category: str, item: dict[str, Any], gold: list[Any], mode: str) -> tuple[bool, int]:
    """Return whether the calls of an item pass, and their number."""
    required = {each["name"]: each["parameters"].get("required", ()) for each in item["function"]}
    wave = [(name, chosen(answer, required.get(name, ()))) for call in gold for name, answer in call.items()]
    tools = [tool_of(each, lambda **_: "ok") for each in item["function"]]
    result = await session_of([[wave]], tools, mode).run(item["question"][0][-1]["content"])
    made = [{call.name: call.arguments} for call in result.calls if call.status == "success"]
    found = ast_checker(item["function"], made, gold, Language.PYTHON, category, "replay")
    return found["valid"], len(made)


async def check_turns(category: str, item: dict[str, Any], gold: list[list[str]], mode: str) -> tuple[bool, int]:
    """Return whether the state and the results after each turn of an item pass, and the number of calls."""
    long = "long_context" in category
    instances = {
        name: loaded_instance(name, item["initial_config"], long_context=long) for name in item["involved_classes"]
    }
    documents = [each for name in instances for each in functions_of(name)]
    methods = {
        name: method
        for each in instances.values()
        for name, method in inspect.getmembers(each, inspect.ismethod)
        if not name.startswith("_")
    }
    tools = [tool_of(each, methods[each["name"]]) for each in documents]
    waves = [[[parsed_call(call, methods)] for call in turn] for turn in gold]
    session = session_of(waves, tools, mode)
    results: list[str] = []
    count = 0
    for turn, calls in enumerate(gold):
        question = item["question"][turn] or [{"content": "Go on."}]
        result = await session.run(question[-1]["content"])
        values = [result.results[call.id] for call in result.calls]
        results += [json.dumps(value) if isinstance(value, dict) else str(value) for value in values]  # as BFCL does
        count += len(values)
        run = partial(execute_multi_turn_func_call, calls, item["initial_config"], item["involved_classes"])
        expected, references = run(f"gold_{mode}", item["id"], long_context=long)
        if not state_checker(instances, references)["valid"]:
            return False, count
        if not response_checker(results, expected, turn)["valid"]:
            return False, count
    return True, count


def loaded_instance(name: str, config: Mapping[str, Any], *, long_context: bool) -> Any:
    """Return an instance of one of BFCL's classes in the state of a scenario."""
    made = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
    if name not in STATELESS_CLASSES:
        made._load_scenario(copy.deepcopy(config.get(name, {})), long_context=long_context)
    return made


def functions_of(name: str) -> list[dict[str, Any]]:
    """Return the descriptions of the functions of one of BFCL's classes."""
    file = DATA / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]
    return [json.loads(line) for line in file.read_text().splitlines()]


def parsed_call(text: str, methods: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a call that is written in Python."""
    node: Any = ast.parse(text, mode="eval").body
    given = [ast.literal_eval(each) for each in node.args]
    named = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
    bound = inspect.signature(methods[node.func.id]).bind(*given, **named)
    return node.func.id, dict(bound.arguments)


SUITES: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "AST": ((*AST, *LIVE), check_ast),
    "multi-turn": (("multi_turn_base",), check_turns),
}


async def replay(suite: str, mode: str, only: int | None) -> Counts:
    """Replay a suite in one mode.

    Args:
        only: Items of each category; None for all.
    """
    categories, check = SUITES[suite]
    counts = Counts()
    for category in categories:
        for item, gold in lines(category, only):
            passed, calls = await check(category, item, gold, mode)
            counts.items, counts.passed, counts.calls = counts.items + 1, counts.passed + passed, counts.calls + calls
            if not passed:
                counts.failed.append(item["id"])
    return counts


def main() -> None:
    """Print the counts of each suite and mode; the status is 1 if another item fails, or if modes differ."""
    only = int(sys.argv[1]) if len(sys.argv) > 1 else None
    is_wrong = False
    for suite in SUITES:
        found = {mode: asyncio.run(replay(suite, mode, only)) for mode in MODES}
        for mode, counts in found.items():
            failed = f"; failed: {', '.join(counts.failed[:20])}" if counts.failed else ""
            print(f"BFCL v4 {suite}, {mode}: {counts.passed} of {counts.items} pass, with {counts.calls} calls{failed}")
        first, *others = found.values()
        is_wrong |= not NOT_PASSED.issuperset(first.failed) or any(counts != first for counts in others)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
