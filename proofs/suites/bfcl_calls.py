"""Prints items of BFCL v4 with several gold calls as JSON lines: `python -m proofs.suites.bfcl_calls N`.

It runs in an environment that has BFCL, for `proofs.overlap`. The calls of a parallel item are independent. Those of a
turn of a multi-turn item are taken to need each the one before, because BFCL runs them one after the other; turns with
three calls or more are printed.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from itertools import islice
from keyword import iskeyword
from typing import Any

from proofs.suites.bfcl import chosen, execute_multi_turn_func_call, lines, loaded_instance, parsed_call

READING = ("get_", "check_", "find", "search", "list_", "display", "estimate_", "retrieve_", "view_", "compute_")
READING_NAMES = frozenset({"ls", "pwd", "cat", "grep", "tail", "sort", "wc", "du", "diff", "mean", "add", "subtract"})
ANSWER = "This is the answer, in a sentence or two that name what was found, as a model writes it."


def reads(name: str) -> bool:
    """Whether a function of BFCL only reads, by its name."""
    return name.startswith(READING) or name in READING_NAMES


def usable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with names that a field of pydantic may have: no keyword, and no underscore at the start."""
    stripped = {name.lstrip("_"): value for name, value in arguments.items()}
    return {f"{name}_" if iskeyword(name) else name: value for name, value in stripped.items()}


def parallel(category: str) -> Iterator[dict[str, Any]]:
    """Yield the items of a category of independent calls; all count as reading, because none is implemented."""
    for item, gold in lines(category, None):
        required = {each["name"]: each["parameters"].get("required", ()) for each in item["function"]}
        calls = [(name, chosen(answer, required.get(name, ()))) for call in gold for name, answer in call.items()]
        steps = [
            {"id": f"c{at}", "tool": name.replace(".", "_"), "args": usable(arguments), "result": {"ok": at}}
            for at, (name, arguments) in enumerate(calls)
        ]
        yield {"suite": f"BFCL {category}", "question": item["question"][0][-1]["content"], "steps": steps}


def turns() -> Iterator[dict[str, Any]]:
    """Yield the turns of multi-turn items with three calls or more, with the results of BFCL's own classes."""
    for item, gold in lines("multi_turn_base", None):
        state = item["initial_config"]
        instances = [loaded_instance(name, state, long_context=False) for name in item["involved_classes"]]
        methods = dict(pair for each in instances for pair in inspect.getmembers(each, inspect.ismethod))
        for turn, calls in enumerate(gold):
            given = (calls, state, item["involved_classes"])
            results, _ = execute_multi_turn_func_call(*given, "overlap", item["id"], long_context=False)
            parsed = [parsed_call(call, methods) for call in calls]
            steps = [
                {
                    "id": f"c{at}",
                    "tool": name,
                    "args": usable(arguments),
                    "result": result,
                    "after": [f"c{at - 1}"] if at else [],
                    "reads": reads(name),
                }
                for at, ((name, arguments), result) in enumerate(zip(parsed, results, strict=True))
            ]
            if len(steps) >= 3 and item["question"][turn]:
                question = item["question"][turn][-1]["content"]
                yield {"suite": "BFCL multi-turn", "question": question, "steps": steps}


def main() -> None:
    """Print the items."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else None
    for items in (parallel("parallel"), parallel("parallel_multiple"), turns()):
        for item in islice(items, most):
            print(json.dumps({**item, "answer": ANSWER}, default=str))


if __name__ == "__main__":
    main()
