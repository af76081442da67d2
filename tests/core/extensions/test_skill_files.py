"""Files of a skill: what the tool reads, and every way out of the folder, which it refuses."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from tests.support.agents import asks
from tests.support.skill_folders import write_skill


async def read(folder: Path, path: str, **arguments: int) -> tuple[str, str]:
    """The status and the text of one call of `read_skill_file`."""
    call = asks(("r", "read_skill_file", {"skill": folder.name, "path": path, **arguments}))
    model = ScriptedChatModel([call, "Done."])
    session = Session(create_graph_agent(model, skills=[folder], checkpointer=InMemorySaver()), "s1")
    await session.run("Read.")
    result = next(entry for entry in await session.events() if entry["type"] == "tool_result")
    return result["status"], str(result["content"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("SECRET")
    made = write_skill(tmp_path, "tea")
    (made / "docs").mkdir()
    (made / "docs" / "kinds.md").write_text("green\nblack\n")
    return made


async def test_a_file_is_read_whole_or_in_parts(folder: Path) -> None:
    (folder / "long.txt").write_text("ä" * 50_000)

    whole = await read(folder, "docs/kinds.md")
    dotted = await read(folder, "./docs/./kinds.md")
    part = await read(folder, "long.txt", offset=49_999, length=5)

    assert (whole, dotted, part) == (
        ("success", "green\nblack\n"),
        ("success", "green\nblack\n"),
        ("success", "[Characters 49999 to 50000 of 50000; this is the end]\nä"),
    )


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "docs/../../secret.txt",
        "docs/../docs/kinds.md",
        "..",
        "/etc/passwd",
        "//etc/passwd",
        "~/.ssh/id_rsa",
        "C:\\secret.txt",
        "C:/secret.txt",
        "..\\secret.txt",
        "docs\\kinds.md",
        "docs/kinds.md\0.png",
        "",
        ".",
        "docs",
        "docs/kinds.md/more",
        "a" * 5_000,
        "/".join(["a"] * 5_000),
        "missing.md",
        "\ud800.md",
        "file:///etc/passwd",
        "SKILL.md/../../secret.txt",
    ],
)
async def test_a_path_that_is_no_file_of_the_skill_is_refused(path: str, folder: Path) -> None:
    status, text = await read(folder, path)

    assert (status, "SECRET" in text, "root:" in text) == ("error", False, False)


def link_to_file(folder: Path) -> str:
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    return "link.txt"


def link_to_folder(folder: Path) -> str:
    (folder / "up").symlink_to(folder.parent)
    return "up/secret.txt"


def link_inside(folder: Path) -> str:
    (folder / "same.md").symlink_to("docs/kinds.md")
    return "same.md"


def link_loop(folder: Path) -> str:
    (folder / "loop").symlink_to("loop")
    return "loop"


def fifo(folder: Path) -> str:
    os.mkfifo(folder / "fifo")
    return "fifo"


def unix_socket(folder: Path) -> str:
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # the path of a socket is short
        server.bind("socket")
    return "socket"


def device(folder: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    try:
        os.mknod(folder / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this container makes no devices")
    return "zero"


def huge(folder: Path) -> str:
    with (folder / "huge.txt").open("wb") as file:
        file.truncate(10**12)  # sparse
    return "huge.txt"


@pytest.mark.parametrize(
    "make", [link_to_file, link_to_folder, link_inside, link_loop, fifo, unix_socket, device, huge]
)
async def test_links_devices_and_huge_files_are_refused_at_once(make: Callable[[Path], str], folder: Path) -> None:
    path = make(folder)

    status, text = await read(folder, path)

    assert (status, "SECRET" in text) == ("error", False)


async def test_a_binary_file_is_named(folder: Path) -> None:
    (folder / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")

    result = await read(folder, "logo.png")

    assert result == (
        "error",
        "'logo.png' is a binary file (image/png, 10 bytes), which is not shown. The skill 'tea' has: SKILL.md, "
        "docs/kinds.md, logo.png.",
    )


async def test_a_skill_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tea"
    folder.mkdir()
    (tmp_path / "outside.md").write_text("---\nname: tea\ndescription: a\n---\nSECRET")
    (folder / "SKILL.md").symlink_to(tmp_path / "outside.md")

    with pytest.raises(ConfigError, match="is a link, which is not followed"):
        create_graph_agent(ScriptedChatModel([]), skills=[folder])
