"""The page of log records: its table has each record that the code can log, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.doc_pages import ROOT

PAGE = ROOT / "docs/reference/log-records.md"
LEVELS = ("debug", "info", "warning", "error")
HELPERS = {
    "log_failure": ("ERROR", 1, ""),
    "log_traceback": ("DEBUG", 1, "with the traceback"),
    "log_user_error": ("ERROR", 1, "with the traceback"),
    "poll_forever": ("ERROR", 3, ""),
    "polling": ("ERROR", 3, ""),
}
"""Functions that log a failure for their caller: the level, the index of the subject, and the remark on the text."""
THEIR_MODULES = ("base._internal.failure_log", "base._internal.polling")
ROW = re.compile(
    r"^\| `(\S+)` \| (\w+) \| `([^`]+)`(?:, (with the traceback)|, [^|]+)? \| (?:developer|operator|none) \|$",
    re.MULTILINE,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Record(NamedTuple):
    """A logger, a level, the first sentence of a text with `…` for its variable parts, and a remark on it."""

    logger: str
    level: str
    text: str
    remark: str


def pattern(node: ast.expr, function: Function | None) -> str:
    """The text of an argument; `…` for what is known only when it is logged."""
    match node:
        case ast.Constant(str(text)):
            return re.sub(r"%[-\d.]*[a-z]", "…", text)
        case ast.JoinedStr():
            return "".join(pattern(value, None) for value in node.values)
        case ast.Name() if function is not None:
            given = [
                each.value
                for each in ast.walk(function)
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == node.id
            ]
            return pattern(given[0], None) if len(given) == 1 else "…"
        case _:
            return "…"


def records_of(module: str, source: str) -> Iterator[Record]:
    """The records that the functions of a module log."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    named = re.search(r'^logger = (?:logging\.getLogger|get_logger)\("(\S+)"\)$', source, re.MULTILINE)
    name = named[1] if named else f"graph_agent.{module}"
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        around = [one for one in functions if one.lineno <= call.lineno <= (one.end_lineno or 0)]
        function = max(around, key=lambda one: one.lineno, default=None)
        match call.func:
            case ast.Attribute(ast.Name("logger"), level) if level in LEVELS:
                text = pattern(call.args[0], function)
                if text == "…":
                    text = pattern(call.args[1], function)
                yield Record(name, level.upper(), re.split(r"(?<=\.) ", text)[0], "")
            case ast.Name(helper) if helper in HELPERS:
                level, at, remark = HELPERS[helper]
                given = [ast.unparse(one.value).removeprefix("logging.") for one in call.keywords if one.arg == "level"]
                text = f"{pattern(call.args[at], function)} failed: …"
                yield Record(name, given[0] if given else level, text, remark)


def records() -> set[Record]:
    """The records of the whole package; `nodes` is a link in it, which `rglob` does not follow."""
    folders = {"": ROOT / "graph_agent", "nodes.": ROOT / "nodes"}
    found = set[Record]()
    for prefix, folder in folders.items():
        for file in folder.rglob("*.py"):
            module = prefix + ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            if module not in THEIR_MODULES and "skeleton" not in module:
                found |= set(records_of(module, file.read_text(encoding="utf-8")))
    return found


def test_the_table_has_each_record_that_the_code_can_log() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = [Record(*found) for found in ROW.findall(page)]
    rows = [line for line in page.splitlines() if line.startswith("| `")]

    # The difference is what to write on the page, or to remove from it.
    assert (set(shown), len(shown), shown) == (records(), len(rows), sorted(shown))


def test_no_module_logs_in_a_way_that_the_table_does_not_cover() -> None:
    other = re.compile(r"logger\.(?:log|critical|exception)\(|getLogger\([^)]*\)\.(?!setLevel)\w+\(|warnings\.warn\(")
    sources = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "graph_agent").rglob("*.py")}

    assert {name for name, source in sources.items() if other.search(source)} == {"failure_log"}


def test_the_words_of_a_record_are_found_in_the_code() -> None:
    source = """
logger = logging.getLogger("graph_agent.x")
async def work(name):
    what = f"The job {name!r}"
    logger.warning("%s: %d left. Wait.", name, 3)
    log_failure(logger, what, error, level=logging.WARNING)
    log_user_error(logger, f"The part {name}", error)
    logger.info("%s", what)
"""

    assert set(records_of("x", source)) == {
        Record("graph_agent.x", "WARNING", "…: … left.", ""),
        Record("graph_agent.x", "WARNING", "The job … failed: …", ""),
        Record("graph_agent.x", "ERROR", "The part … failed: …", "with the traceback"),
        Record("graph_agent.x", "INFO", "The job …", ""),
    }
