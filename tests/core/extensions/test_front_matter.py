"""The front matter of a skill: its values, and what is refused with which text."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.skills import Skill, read_skill


def skill(tmp_path: Path, text: str | bytes, name: str = "tea") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "SKILL.md").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_every_field_is_read_and_stays_text(tmp_path: Path) -> None:
    text = """---
name: tea
description: >
  Makes tea,
  hot.
license: 1.0
compatibility: yes
metadata:
  version: 1.10
  null: ~
allowed-tools: brew, shell(git log:*)  files_*
---

# Tea

---
Boil.
"""
    folder = skill(tmp_path, text)

    read = read_skill(folder)

    assert read == Skill(
        name="tea",
        description="Makes tea, hot.",
        folder=folder,
        body="# Tea\n\n---\nBoil.",
        digest=read.digest,
        license="1.0",
        compatibility="yes",
        metadata={"version": "1.10", "null": "~"},
        allowed_tools=("brew", "shell(git log:*)", "files_*"),
    )


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_a_byte_order_mark_and_any_line_ends_are_accepted(start: bytes, newline: bytes, tmp_path: Path) -> None:
    lines = [b"---", b"name: tea", b"description: Makes tea.", b"---", b"One.", b"Two."]

    read = read_skill(skill(tmp_path, start + newline.join(lines)))

    assert (read.description, read.body) == ("Makes tea.", "One.\nTwo.")


FRONT = "---\nname: tea\ndescription: Makes tea.\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the first line is ''; begin the file with the line '---'."),
        ("# Tea\n", "the first line is '# Tea'; begin the file with the line '---'."),
        (FRONT, "the front matter has no end; close it with the line '---'."),
        ("---\n- a\n---\n", "front matter: expected keys such as 'name' and 'description', got ['a']."),
        ("---\n---\n", "front matter: expected keys such as 'name' and 'description', got None."),
        (FRONT + "name: tea\n---\n", "front matter, line 3, column 1: not valid YAML: the key 'name' is given twice."),
        ("---\nname: tea\n---\n", "the field 'description' is missing; add it to the front matter."),
        ("---\ndescription: a\n---\n", "the field 'name' is missing; add it to the front matter."),
        (
            FRONT + "versoin: 1\n---\n",
            "unknown field 'versoin'; known: allowed-tools, compatibility, description, license, metadata, name. "
            "Own fields belong under 'metadata'.",
        ),
        (FRONT + "metadata: a\n---\n", "metadata='a': write keys with texts, such as {author: 'ana'}."),
        (FRONT + "license: [a]\n---\n", "license=['a']: write a text."),
        (
            FRONT + "allowed-tools: {a: b}\n---\n",
            "allowed-tools={'a': 'b'}: write names of tools, separated by spaces, such as 'read_file search'.",
        ),
        (
            FRONT + f"compatibility: {'x' * 501}\n---\n",
            f"compatibility='{'x' * 79}…: it has 501 characters; write 500 at most.",
        ),
        (b"---\nname: t\xe4a\n---\n", "not UTF-8: byte 11 is 0xe4."),
    ],
)
def test_a_fault_is_reported_with_its_fix(text: str | bytes, fault: str, tmp_path: Path) -> None:
    folder = skill(tmp_path, text)

    with pytest.raises(ConfigError) as raised:
        read_skill(folder)

    assert str(raised.value) == f"Skill {folder}/SKILL.md: {fault}".replace(": front matter: ", ": front matter: ")


@pytest.mark.parametrize("name", ["Tea", "tea_pot", "-tea", "tea-", "tea--pot", "a" * 65, "t.a", "tea pot"])
def test_an_invalid_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name="):
        read_skill(skill(tmp_path, f"---\nname: {name}\ndescription: a\n---\n", name))


def test_a_name_that_differs_from_its_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name='tea': its folder is 'pot'; give both the same name"):
        read_skill(skill(tmp_path, FRONT + "---\n", "pot"))


def test_the_fault_of_a_skill_that_prevents_an_agent_is_not_logged_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = skill(tmp_path, FRONT + "metadata: a\n---\n")

    with pytest.raises(ConfigError, match="metadata='a'"):
        create_graph_agent(ScriptedChatModel([]), skills=[folder])

    assert caplog.messages == []
