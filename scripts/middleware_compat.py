"""Runs langchain's own middleware tests against this package's graph, and reports how many pass.

Usage: `python -m scripts.middleware_compat PATH [--json OUTCOMES]`, where PATH is a checkout of langchain's
`libs/langchain_v1`, or its unpacked source distribution, of the installed version. `scripts.middleware_table` writes
the outcomes into the documentation. The tests need `pytest-mock`, `pytest-socket`, `syrupy` and `blockbuster`.

The module is also the pytest plugin that replaces `create_agent` by an adapter onto `create_graph_agent`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPORT, ADAPT = "MIDDLEWARE_COMPAT_REPORT", "MIDDLEWARE_COMPAT_ADAPT"
TESTS = "tests/unit_tests/agents/middleware"
_MODULE_S = 300
"""Seconds that the tests of one module may take."""
_ROOT = Path(__file__).parent.parent
_built = 0
_outcomes: dict[str, dict[str, Any]] = {}


def pytest_configure(config: Any) -> None:
    """Replace langchain's `create_agent` before any test module imports it."""
    import blockbuster
    import langchain.agents
    import langchain.agents.factory

    # It refuses locks in event loops, which the bridge for blocking entry points needs.
    vars(blockbuster)["BlockBuster"].activate = lambda self: None
    make = _adapted if os.environ.get(ADAPT) else _counted(langchain.agents.create_agent)
    langchain.agents.create_agent = langchain.agents.factory.create_agent = make


def pytest_runtest_setup(item: Any) -> None:
    """Count the agents of each test."""
    global _built  # noqa: PLW0603 - a pytest plugin is a module
    _built = 0


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    """Record the outcome of a test, and whether it built an agent."""
    entry = _outcomes.setdefault(item.nodeid, {"outcome": "passed", "reason": "", "agent": False})
    entry["agent"] |= _built > 0
    if call.excinfo is not None:
        skipped = call.excinfo.typename == "Skipped"
        entry["outcome"] = "skipped" if skipped else "failed"
        if not skipped:
            entry["reason"] = f"{call.excinfo.typename}: {str(call.excinfo.value)[:600]}"


def pytest_runtest_logfinish(nodeid: str, location: Any) -> None:
    """Write the report after each test, so that a crash loses one test only."""
    Path(os.environ[REPORT]).write_text(json.dumps(_outcomes))


def _counted(create: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        global _built  # noqa: PLW0603 - as above
        _built += 1
        return create(*args, **kwargs)

    return make


def _adapted(
    model: Any,
    tools: Any = None,
    *,
    system_prompt: Any = None,
    middleware: Any = (),
    response_format: Any = None,
    state_schema: Any = None,
    context_schema: Any = None,
    checkpointer: Any = None,
    store: Any = None,
    interrupt_before: Any = None,
    interrupt_after: Any = None,
    debug: bool = False,
    name: str | None = None,
    cache: Any = None,
    transformers: Any = None,
) -> Any:
    """As langchain's `create_agent`.

    The loop's own instructions and its loop detection are off, failures are raised, and the step limit is 8.
    """
    global _built  # noqa: PLW0603 - as above
    _built += 1
    from langchain.chat_models import init_chat_model

    from graph_agent import LoopConfig, build_graph

    graph = build_graph(
        init_chat_model(model) if isinstance(model, str) else model,
        tools=list(tools or ()),
        hooks=list(middleware),
        system_prompt=getattr(system_prompt, "text", system_prompt) or "",
        prompts={"planner": "{# none #}"},
        response_format=getattr(response_format, "schema", response_format),
        state_schema=state_schema,
        config=LoopConfig(
            max_steps=8, on_failure="raise", tool_calling="native", loop_detection=False, model_retries=0
        ),
        resolve=lambda given: init_chat_model(given) if isinstance(given, str) else given,
    )
    compiled = graph.compile(
        checkpointer=checkpointer,
        store=store,
        cache=cache,
        name=name or "agent",
        interrupt_before=interrupt_before,
        interrupt_after=interrupt_after,
        transformers=transformers,
    )
    compiled.__class__ = _adapted_class(type(compiled), response_format)
    return compiled


def _adapted_class(kind: Any, response_format: Any) -> Any:
    from graph_agent.errors import HookError, RunFailedError

    def cause(error: BaseException) -> BaseException:
        while isinstance(error, RunFailedError | HookError) and error.__cause__ is not None:
            error = error.__cause__
        return error

    def without_own(value: Any) -> Any:
        if isinstance(value, dict):
            own = {"status", "stop_reason"}
            if response_format is None and value.get("structured_response") is None:
                own.add("structured_response")
            return {name: each for name, each in value.items() if name not in own}
        return value

    class Adapted(kind):  # type: ignore[misc]  # a class at run time
        def invoke(self, *args: Any, **kwargs: Any) -> Any:
            call = functools.partial(super().invoke, *args, **kwargs)
            try:
                # In a running event loop this package refuses the call; the tests block the loop.
                is_blocked = asyncio._get_running_loop() is not None
                return without_own(_in_thread(call) if is_blocked else call())
            except RunFailedError as error:
                raise cause(error) from None

        async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return without_own(await super().ainvoke(*args, **kwargs))
            except RunFailedError as error:
                raise cause(error) from None

    return Adapted


def _in_thread(call: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def run(folder: Path, *, adapt: bool) -> dict[str, dict[str, Any]]:
    """Run the tests and return the outcome of each, by its id."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "scripts"), str(_ROOT)])}
    env.pop(ADAPT, None)
    if adapt:
        env[ADAPT] = "1"
    options = ["-q", "-p", "no:cacheprovider", "-p", "middleware_compat", "-W", "ignore", "-o", "addopts=", "--tb=no"]
    found: dict[str, dict[str, Any]] = {}
    modules = sorted(str(path.relative_to(folder)) for path in (folder / TESTS).rglob("test_*.py"))
    # A process for each module with agents, and one for all others.
    agents = [module for module in modules if "create_agent" in (folder / module).read_text()]
    for group in [*([module] for module in agents), sorted({*modules} - {*agents})]:
        with tempfile.TemporaryDirectory() as scratch:
            report = env[REPORT] = str(Path(scratch) / "report.json")
            command = [sys.executable, "-m", "pytest", *options, "--timeout=60", *group]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, cwd=folder, env=env, check=False, stdout=subprocess.DEVNULL, timeout=_MODULE_S)
            if Path(report).exists():
                found |= json.loads(Path(report).read_text())
    return found


def reason_of(text: str) -> str:
    """Return a failure's reason in one short line, without values."""
    line = text.splitlines()[0] if text else ""
    return re.sub(r"'[^']*'|\d+|0x[0-9a-f]+", "…", line)[:160]


def main() -> None:
    """Run the tests twice, with langchain's `create_agent` and with the adapter, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="where to store the outcomes")
    options = parser.parse_args()
    ours, theirs = run(options.folder, adapt=True), run(options.folder, adapt=False)
    for id_, entry in theirs.items():
        ours.setdefault(id_, {**entry, "outcome": "failed", "reason": "The test did not end."})
    if options.json:
        options.json.write_text(json.dumps({"theirs": theirs, "ours": ours}, indent=1))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: Counter[str] = Counter()
    for id_, entry in ours.items():
        module = Path(id_.split("::")[0]).stem
        known = theirs.get(id_, entry)
        counts[module]["all"] += 1
        counts[module]["passed"] += entry["outcome"] == "passed"
        counts[module]["agent"] += bool(known["agent"])
        counts[module]["agent passed"] += bool(known["agent"]) and entry["outcome"] == "passed"
        if entry["outcome"] == "failed":
            reasons[
                ("(also with create_agent) " if known["outcome"] == "failed" else "") + reason_of(entry["reason"])
            ] += 1
    for module, found in sorted(counts.items()):
        print(module, dict(found))
    total: Counter[str] = sum(counts.values(), Counter())
    print("total", dict(total), "with create_agent:", Counter(entry["outcome"] for entry in theirs.values()))
    for reason, count in reasons.most_common():
        print(count, reason)


if __name__ == "__main__":
    main()
