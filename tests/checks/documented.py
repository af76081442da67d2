"""Fail when the documentation runs too little of the code.

Runs the tests of README, docs, notebooks, recipes and examples under coverage, in every process that they start, and
counts the statements in function bodies that none of them ran. A high share means features that a reader cannot see at
work, or code that nobody needs. `-v` lists the share of each folder, and the functions that miss most; further
arguments are those of pytest.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from coverage import Coverage

ROOT = Path(__file__).parents[2]
CEILING = 34.0
"""Greatest accepted percentage of statements that no documentation test runs, which only sinks."""
TESTS = (
    *("tests/system/test_docs.py", "tests/system/test_notebooks.py", "tests/system/test_recipes.py"),
    *("tests/system/test_repo_assistant.py", "tests/system/test_research_team.py"),
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/system/test_hotel*.py"))),
)
_SETTINGS = """
[run]
source =
    {root}/graph_agent
    {root}/nodes
parallel = True
data_file = {folder}/data/coverage
sigterm = True
concurrency = thread,multiprocessing
disable_warnings =
    already-imported,couldnt-parse,module-not-imported,module-not-measured,module-not-python,no-data-collected
"""
_START = """
import os

if "DOCUMENTED_BY" in os.environ:
    import contextlib

    import coverage

    end = coverage.Coverage._atexit

    def save(self, event="atexit"):
        # A forked process has the exit functions of the one it was forked from, whose collector is not its own.
        with contextlib.suppress(AssertionError):
            end(self, event)

    coverage.Coverage._atexit = save
    # Only now: a hook of the package would start it before, with the function that is replaced here.
    os.environ["COVERAGE_PROCESS_START"] = os.environ["DOCUMENTED_BY"]
    coverage.process_startup()
    del os.environ["COVERAGE_PROCESS_START"]
"""
"""The code that each interpreter runs at its start, as `sitecustomize`."""


def run_tests(folder: Path, arguments: Sequence[str]) -> int:
    """Run the tests under coverage, with the data in a folder; return pytest's exit status."""
    (folder / "data").mkdir()
    (folder / "settings").write_text(_SETTINGS.format(root=ROOT, folder=folder), encoding="utf-8")
    (folder / "sitecustomize.py").write_text(_START, encoding="utf-8")
    paths = [str(ROOT), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "DOCUMENTED_BY": str(folder / "settings"),
    }
    command = [sys.executable, "-m", "pytest", "-q", *TESTS, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def lines_run(folder: Path) -> dict[Path, set[int]]:
    """Return the lines that the processes ran, by file."""
    # `combine` reads the files whose names begin with that of its own.
    found = Coverage(data_file=str(folder / "coverage"), config_file=str(folder / "settings"))
    found.combine([str(folder / "data")])
    # The data are in a file of the folder, too.
    data = found.get_data()
    return {Path(file): set(data.lines(file) or ()) for file in data.measured_files()}


def statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[range]:
    """Yield the lines of each statement of a body: of a compound statement, the first line.

    Nested functions and classes are counted by themselves; docstrings are not.
    """
    pending: list[ast.AST] = [*function.body]
    while pending:
        each = pending.pop()
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(each, ast.stmt) and not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
            is_compound = hasattr(each, "body") or isinstance(each, ast.Match)
            yield range(each.lineno, (each.lineno if is_compound else each.end_lineno or each.lineno) + 1)
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            nested = getattr(each, name, ())
            pending += nested if isinstance(nested, list) else ()


def main(arguments: Sequence[str]) -> int:
    """Run the tests, count, and return the exit status."""
    verbose = "-v" in arguments
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # processes may still write their data
        folder = Path(name)
        status = run_tests(folder, [each for each in arguments if each != "-v"])
        ran_in = lines_run(folder)
    folders, functions = defaultdict[str, list[bool]](list), []
    for path in sorted([*ROOT.glob("graph_agent/**/*.py"), *ROOT.glob("nodes/**/*.py")]):
        lines = ran_in.get(path, set())
        shown = path.relative_to(ROOT)
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                ran = [not lines.isdisjoint(span) for span in statements(each)]
                folders[str(shown.parent)] += ran
                functions.append((ran.count(False), f"{shown}:{each.lineno} {each.name}"))
    if verbose:
        for place, ran in sorted(folders.items(), key=lambda item: item[1].count(True) - len(item[1])):
            print(f"{ran.count(False):5} of {len(ran):5} {place}")
        for missed, function in sorted(functions, reverse=True)[:60]:
            print(f"{missed:5} {function}")
    every = [each for ran in folders.values() for each in ran]
    share = 100 * every.count(False) / len(every)
    print(f"{share:.1f}% of {len(every)} statements are run by no documentation test; at most {CEILING}% are accepted.")
    # Failed tests ran less than they would, but the share is worth reading.
    return status or int(share > CEILING)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
