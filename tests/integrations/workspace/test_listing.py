"""Paths and patterns of a workspace: what git ignores is left out, and no pattern or folder takes long."""

from __future__ import annotations

import os
import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.types import Call
from graph_agent.core.extensions.allowed_tools import allows
from graph_agent.integrations.workspace.patterns import parse_rule
from graph_agent.workspace import workspace_tools
from tests.support.agents import asks, echo
from tests.support.regex_steps import slowest_text

STARS = "*a" * 12 + "*b"
LONG = "a" * 250


def use(folder: Path, name: str, **arguments: Any) -> str:
    [tool] = [tool for tool in workspace_tools(folder) if tool.name == name]
    return str(tool.invoke(arguments))


NAMES = ["a", "b", "ab", "a.b", "b a", "[a]", "a-b", "\\a", "!a", "#a", "abc", "a ", "A"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with files under names that patterns treat specially."""
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", root], check=True)
    for outer in NAMES:
        for inner in ("a", "b", "a.b", "!a", "A"):
            (root / outer / inner).mkdir(parents=True)
            (root / outer / inner / "ab").touch()
            (root / outer / inner / "b").touch()
        (root / outer / "a-b").touch()
    return root


PIECES = [*"aab*?/[]!-\\ .#", "/**/", "/**", "[!a]", "[a-b]", "[[:alpha:]]", "*", "*", "a", "b", "ab", "a/"]
LINE = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
# Git treats `a**/b` in a way that its own documentation does not have.
CLEAR = LINE.filter(lambda line: "**" not in line.replace("/**/", "/").removesuffix("/**"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(CLEAR, min_size=1, max_size=3))
def test_files_are_left_out_as_git_leaves_them_out(tree: Path, lines: list[str]) -> None:
    (tree / ".gitignore").write_text("\n".join(lines))
    command = ["git", "ls-files", "--others", "-z", "--exclude-from=.gitignore"]
    listed = subprocess.run(command, cwd=tree, capture_output=True, check=True, text=True).stdout.split("\0")[:-1]

    assert sorted(use(tree, "list_files").splitlines()) == sorted(listed or ["No file matches."])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.py", ["a.py", "src/a.py", "src/in/b.py"]),
        ("/*.py", ["a.py"]),
        ("src", ["src/a.py", "src/x.txt", "src/in/b.py"]),
        ("src/in/", ["src/in/b.py"]),
        ("src/**/*.py", ["src/a.py", "src/in/b.py"]),
        ("**/in/*", ["src/in/b.py"]),
        ("?.[!p]*", ["src/x.txt"]),
        ("\\a.py", ["a.py", "src/a.py"]),
        ("none", ["No file matches."]),
    ],
)
def test_a_pattern_selects_files_and_what_is_below_folders(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    (tmp_path / "src/in").mkdir(parents=True)
    for name in ("a.py", "src/a.py", "src/in/b.py", "src/x.txt"):
        (tmp_path / name).touch()

    assert use(tmp_path, "list_files", pattern=pattern).splitlines() == expected


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[a", "it has a bracket without an end"),
        ("a\\", "it ends with a backslash"),
        ("[[:none:]]", "it has the unknown class 'none'"),
        ("/", "it names no file"),
        ("!a", "is no pattern of files"),
        ("#a", "is no pattern of files"),
        ("*a" * 501, "it has 1002 characters; 1000 are permitted"),
    ],
)
def test_a_pattern_that_can_match_nothing_is_an_error(tmp_path: Path, pattern: str, message: str) -> None:
    for name, more in (("list_files", {}), ("search_files", {"expression": "a"})):
        with pytest.raises(ToolException, match=message):
            use(tmp_path, name, pattern=pattern, **more)


HOSTILE = [
    STARS,
    f"**/{STARS}/**/{STARS}/**/x",
    "**/a*" * 5,
    "*?" * 50,
    "*[a-z]" * 20 + "*[!a]/",
    "*[[:alpha:]]?" * 10 + "!",
    "/**/*/**/*/**/*/x",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_pattern_takes_linear_steps_on_every_path(pattern: str) -> None:
    rules = [parse_rule(pattern), parse_rule(pattern, below=True)]

    assert [rule and slowest_text(rule.matcher, "match") for rule in rules] == [None, None]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", HOSTILE)
def test_no_pattern_of_a_model_or_a_repository_takes_long(tmp_path: Path, pattern: str) -> None:
    below = tmp_path.joinpath(*["a" * 100] * 10)
    below.mkdir(parents=True)
    (below / LONG).write_text("a")
    path = (below / LONG).relative_to(tmp_path).as_posix()
    (tmp_path / ".gitignore").write_text(f"{pattern}\n" * 100)

    found = [
        use(tmp_path, "list_files"),
        use(tmp_path, "search_files", expression="a$", pattern="/a*"),
        use(tmp_path, "list_files", pattern=pattern),
        use(tmp_path, "search_files", expression="a", pattern=pattern),
    ]

    listed = f".gitignore\n{path}"
    ignored = [".gitignore", "No line matches.", "No file matches.", "No line matches."]
    assert found in ([listed, f"{path}:1: a", "No file matches.", "No line matches."], ignored)


@pytest.mark.timeout(60)
async def test_no_pattern_of_an_approval_rule_or_a_skill_takes_long() -> None:
    tool = echo.model_copy(update={"name": "a" * 64})
    model = ScriptedChatModel([asks(("1", LONG, {}), ("2", tool.name, {"text": "x"})), "Done."])
    config = LoopConfig(approve=[STARS, "[a-z]*?" * 20 + "!"])
    agent = create_graph_agent(model, tools=[tool], config=config, checkpointer=InMemorySaver())

    result = await Session(agent, "s").run("go")

    call: Call = {"id": "1", "name": LONG, "arguments": {}, "needs": []}
    assert (result.answer, allows(STARS, call), allows(f"{STARS}(git:*)", call)) == ("Done.", False, False)


def test_a_huge_ignore_file_applies_in_part(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n" + "*a*b\n" * 1_000_000)
    for name in ("x.log", "x.txt"):
        (tmp_path / name).touch()

    assert use(tmp_path, "list_files") == ".gitignore\nx.txt"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("expression", ["((a{1000}){1000}){10}", "(?:a{500}){500}", "(" * 3000 + ")" * 3000])
def test_an_expression_that_would_fill_the_memory_is_refused(tmp_path: Path, expression: str) -> None:
    with pytest.raises(ToolException, match=r"repeat less|too deeply"):
        use(tmp_path, "search_files", expression=expression)


@pytest.fixture
def nested(tmp_path: Path) -> Any:
    """A workspace with a file under 1,500 folders; they are removed at the end, which pytest cannot do."""
    (tmp_path / "a.txt").write_text("x")
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("deep.txt", os.O_CREAT, dir_fd=at))
    os.close(at)
    yield tmp_path
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_folders_below_a_hundred_others_are_left_out_and_not_created(nested: Path) -> None:
    deep = "/".join(["n"] * 101)

    assert [use(nested, "list_files"), use(nested, "search_files", expression="x")] == [
        "a.txt\n… folders below 100 others are left out.",
        "a.txt:1: x\n… folders below 100 others are left out.",
    ]
    for name, more in (("write_file", {"text": "x"}), ("read_file", {})):
        with pytest.raises(ToolException, match="is below more than 100 folders"):
            use(nested, name, path="d/" * 101 + "x", **more)
    with pytest.raises(ToolException, match="is below more than 100 folders"):
        use(nested, "write_file", path=f"{deep}/x", text="x")
    with pytest.raises(ToolException, match="it has 4098 characters"):
        use(nested, "write_file", path="./" * 2049, text="x")


def test_a_name_with_a_line_feed_is_one_line(tmp_path: Path) -> None:
    for name in ("a\nsecret.txt", "b\u2028c", '"d"', "e f"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("a\n")

    assert [use(tmp_path, "list_files"), use(tmp_path, "search_files", expression="x")] == [
        '"\\"d\\""\n.gitignore\n"a\\nsecret.txt"\n"b\\u2028c"\ne f',
        '"\\"d\\"":1: x\n"a\\nsecret.txt":1: x\n"b\\u2028c":1: x\ne f:1: x',
    ]
    assert use(tmp_path, "read_file", path="a\nsecret.txt") == "x"


def test_lines_are_counted_as_editors_count_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\u2028\x0c\x85still one\r\ntwo\nthree".encode())

    assert [
        use(tmp_path, "search_files", expression="^t.*[oe]$"),
        use(tmp_path, "read_file", path="a.txt", first_line=2, lines=1),
        use(tmp_path, "read_file", path="a.txt", first_line=9),
    ] == ["a.txt:2: two\na.txt:3: three", "two\n\n… 1 more lines", "a.txt has 3 lines."]


def test_an_edit_that_would_exceed_the_limit_of_a_file_does_not_build_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 5000)
    tracemalloc.start()
    try:
        with pytest.raises(ToolException, match=r"would have 1000000000 characters; a file may have 10000000\."):
            use(tmp_path, "edit_file", path="a.txt", old="a", new="b" * 200_000, replace_all=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (peak < 100_000_000, (tmp_path / "a.txt").read_text()) == (True, "a" * 5000)
