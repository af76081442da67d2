"""The file tools of a workspace: what they return, and that no path leads out of the folder."""

from __future__ import annotations

import os
import shutil
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.tools import BaseTool, ToolException

from graph_agent.workspace import workspace_tools

SECRET = "the secret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace, and outside of it a file that must not be read."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    inside = tmp_path / "inside"
    (inside / "src").mkdir(parents=True)
    (inside / "src" / "a.py").write_text("one = 1\ntwo = 2\n")
    (inside / "b.txt").write_text("plain\n")
    return inside


@cache
def tools_of(folder: Path) -> dict[str, BaseTool]:
    return {tool.name: tool for tool in workspace_tools(folder)}


def use(folder: Path, name: str, **arguments: Any) -> str:
    return str(tools_of(folder)[name].invoke(arguments))


def test_files_are_listed_searched_and_read(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    (folder / "x.log").write_text("two")
    (folder / "build").mkdir()
    (folder / "build" / "two.py").write_text("two")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("two")
    (folder / "image.png").write_bytes(b"\x89PNG\0two")

    assert [
        use(folder, "list_files"),
        use(folder, "list_files", pattern="src/**/*.py"),
        use(folder, "list_files", pattern="*.rs"),
        use(folder, "search_files", expression=r"tw\w"),
        use(folder, "search_files", expression="nothing"),
        use(folder, "read_file", path="src/a.py"),
        use(folder, "read_file", path=str(folder / "src" / "a.py"), lines=1),
        use(folder, "read_file", path="src/a.py", first_line=2),
        use(folder, "read_file", path="src/a.py", first_line=9),
    ] == [
        ".gitignore\nb.txt\nimage.png\nsrc/a.py",
        "src/a.py",
        "No file matches.",
        "src/a.py:2: two = 2",
        "No line matches.",
        "one = 1\ntwo = 2\n",
        "one = 1\n\n… 1 more lines",
        "two = 2\n",
        "src/a.py has 2 lines.",
    ]


def test_files_are_written_and_edited_with_their_permissions_and_line_ends(folder: Path) -> None:
    script = folder / "run.sh"
    script.write_bytes(b"echo one\r\necho one\r\n")
    script.chmod(0o755)

    replies = [
        use(folder, "write_file", path="new/deep/c.txt", text="c"),
        use(folder, "write_file", path="b.txt", text="other\n"),
        use(folder, "edit_file", path="run.sh", old="one\necho one\n", new="two\necho two\n"),
        use(folder, "edit_file", path="run.sh", old="two", new="2", replace_all=True),
    ]

    assert (replies, (folder / "new/deep/c.txt").read_text(), (folder / "b.txt").read_text()) == (
        [
            "Created new/deep/c.txt.",
            "Replaced b.txt.",
            "Replaced 1 occurrence in run.sh.",
            "Replaced 2 occurrences in run.sh.",
        ],
        "c",
        "other\n",
    )
    assert (script.read_bytes(), script.stat().st_mode & 0o777) == (b"echo 2\r\necho 2\r\n", 0o755)
    assert sorted(path.name for path in folder.iterdir()) == ["b.txt", "new", "run.sh", "src"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"old": "three", "new": ""}, "The old text occurs 0 times in src/a.py; read the file again."),
        ({"old": "", "new": "x"}, "The old text occurs 0 times in src/a.py; read the file again."),
        ({"old": " = ", "new": "="}, "The old text occurs 2 times in src/a.py; give more lines around it"),
    ],
)
def test_an_edit_without_exactly_one_place_changes_nothing(
    folder: Path, arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(ToolException, match=message):
        use(folder, "edit_file", path="src/a.py", **arguments)

    assert (folder / "src/a.py").read_text() == "one = 1\ntwo = 2\n"


def links(folder: Path) -> None:
    (folder / "file").symlink_to("../outside/secret.txt")
    (folder / "absolute").symlink_to(folder.parent / "outside" / "secret.txt")
    (folder / "up").symlink_to("..")
    (folder / "src" / "chain").symlink_to("../up")
    (folder / "dangling").symlink_to("../outside/new.txt")
    (folder / "sibling").symlink_to(f"{folder}-other/x")
    (folder / "process").symlink_to(f"/proc/{os.getpid()}/root")
    (folder / "loop").symlink_to("loop")


ESCAPES = [
    *("..", "../outside/secret.txt", "src/../../outside/secret.txt", "./.././outside/secret.txt", "src/.././.."),
    *("/etc/passwd", "//etc/passwd", "/", "/proc/self/environ"),
    *("file", "absolute", "up/outside/secret.txt", "src/chain/outside/secret.txt", "dangling", "sibling"),
    "process/etc/passwd",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_a_path_out_of_the_folder_is_refused_for_every_tool(folder: Path, path: str) -> None:
    links(folder)

    for name, more in (("read_file", {}), ("write_file", {"text": "x"}), ("edit_file", {"old": "the", "new": "x"})):
        with pytest.raises(ToolException, match="is outside of the folder"):
            use(folder, name, path=path, **more)

    outside = folder.parent / "outside"
    assert ([each.name for each in outside.iterdir()], (outside / "secret.txt").read_text()) == (["secret.txt"], SECRET)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a\0b", "it has a NUL character"),
        ("loop", "over 40 links"),
        ("pipe", "pipe is no regular file"),
        ("src", "src is a folder"),
        (".", "is a folder"),
        ("none/x", "No such file or directory"),
        ("b.txt/x", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("large", "large has over 10000000 bytes"),
        ("binary", "binary is a binary file of 5 bytes"),
        ("latin", "latin is not UTF-8 text"),
        ("~/x", "No such file or directory"),
    ],
)
def test_what_is_no_text_file_is_refused_with_its_reason(folder: Path, path: str, message: str) -> None:
    links(folder)
    os.mkfifo(folder / "pipe")
    with (folder / "large").open("wb") as file:
        file.truncate(10_000_001)
    (folder / "binary").write_bytes(b"ab\0cd")
    (folder / "latin").write_bytes(b"caf\xe9")

    with pytest.raises(ToolException, match=message):
        use(folder, "read_file", path=path)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {"path": "b.txt"}),
        ("write_file", {"path": "b.txt", "text": "new"}),
        ("edit_file", {"path": "b.txt", "old": "plain", "new": "new"}),
        ("list_files", {}),
        ("search_files", {"expression": "plain"}),
    ],
)
def test_a_removed_workspace_is_an_error_for_the_model(folder: Path, name: str, arguments: dict[str, str]) -> None:
    tools = tools_of(folder)
    shutil.rmtree(folder)

    with pytest.raises(ToolException, match="No such file or directory"):
        tools[name].invoke(arguments)


GIT = [".git", ".git/hooks/pre-commit", ".GIT/config", "src/../.git/config", "to-git/config"]


@pytest.mark.parametrize("path", GIT)
def test_files_that_git_would_run_are_not_written(folder: Path, path: str) -> None:
    (folder / ".git").mkdir()
    (folder / "to-git").symlink_to(".git")

    with pytest.raises(ToolException, match=r"protected|is a folder"):
        use(folder, "write_file", path=path, text="[core]\nfsmonitor = touch /tmp/owned\n")

    assert ([*(folder / ".git").iterdir()], (folder / ".GIT").exists()) == ([], False)


def test_a_link_within_the_folder_is_followed_and_kept(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "src" / "a.py")

    use(folder, "edit_file", path="link", old="one = 1", new="one = 0")

    assert ((folder / "link").is_symlink(), (folder / "src/a.py").read_text()) == (True, "one = 0\ntwo = 2\n")


def test_a_write_does_not_change_a_file_that_a_hard_link_shares(folder: Path) -> None:
    outside = folder.parent / "outside" / "secret.txt"
    os.link(outside, folder / "hard")

    use(folder, "write_file", path="hard", text="mine")

    assert (outside.read_text(), (folder / "hard").read_text()) == (SECRET, "mine")


def test_a_link_that_changes_while_it_is_read_leads_nowhere(folder: Path) -> None:
    target = folder / "flips"
    (folder / "real").mkdir()
    (folder / "real" / "secret.txt").write_text("inside")
    ended = threading.Event()

    def flip() -> None:
        at = 0
        while not ended.is_set():
            at += 1
            (folder / "next").symlink_to("real" if at % 2 else "../outside")
            os.replace(folder / "next", target)

    thread = threading.Thread(target=flip)
    thread.start()
    found: set[str] = set()
    try:
        for _ in range(500):
            try:
                found.add(use(folder, "read_file", path="flips/secret.txt"))
            except ToolException as error:
                found.add("outside" if "outside of the folder" in str(error) else str(error))
    finally:
        ended.set()
        thread.join()

    assert found - {"flips/secret.txt cannot be used: No such file or directory."} == {"inside", "outside"}


@settings(max_examples=100, deadline=None)
@given(path=st.text(st.sampled_from("./abu\0é~"), max_size=30))
def test_no_path_reads_what_is_outside(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    base = tmp_path_factory.getbasetemp() / "paths"
    inside = base / "a"
    if not base.exists():
        inside.mkdir(parents=True)
        (base / "b").write_text(SECRET)
        (inside / "u").symlink_to("..")
        (inside / "b").write_text("inside")

    try:
        read = use(inside, "read_file", path=path)
    except ToolException:
        read = "inside"

    assert read == "inside"


def test_an_expression_that_never_ends_is_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph_agent.integrations.workspace.tools._SEARCH_S", 0.2)
    (folder / "evil.txt").write_text("a" * 40 + "!")

    assert use(folder, "search_files", expression=r"^(a|a|a)*$") == "… stopped after 0 s; give a simpler expression."


def test_a_wrong_expression_or_pattern_is_an_error_for_the_model(folder: Path) -> None:
    with pytest.raises(ToolException, match=r"'\(' is no regular expression: missing \)"):
        use(folder, "search_files", expression="(")
