"""Which calls an entry of `allowed-tools` allows."""

from __future__ import annotations

from typing import Any

import pytest

from graph_agent.base.types import Call
from graph_agent.core.extensions.allowed_tools import allows


@pytest.mark.parametrize(
    ("entry", "name", "arguments", "allowed"),
    [
        ("search", "search", {"q": "a"}, True),
        ("search", "research", {"q": "a"}, False),
        ("Search", "search", {}, False),
        ("files_*", "files_read", {}, True),
        ("delegate_to_bank", "delegate_to_bank", {"task": "Pay."}, True),
        ("shell(*)", "shell", {"command": "rm -rf /"}, True),
        ("shell(git:*)", "shell", {"command": "git"}, True),
        ("shell(git:*)", "shell", {"command": " git log --oneline "}, True),
        ("shell(git:*)", "shell", {"command": "gitk"}, False),
        ("shell(git log:*)", "shell", {"command": "git log -3"}, True),
        ("shell(git log:*)", "shell", {"command": "git push"}, False),
        ("shell(git:*)", "shell", {"command": ["git", "log"]}, False),
        ("shell(git:*)", "shell", {"command": "git log", "cwd": "/"}, False),
        ("shell(git:*)", "shell", {}, False),
        ("shell(git:*)", "Bash", {"command": "git log"}, False),
        ("shell(git status)", "shell", {"command": "git status"}, True),
        ("shell(git status)", "shell", {"command": "git status -s"}, False),
        ("shell(:*)", "shell", {"command": "rm"}, False),
        ("shell()", "shell", {"command": "rm"}, False),
        ("Read(docs/**)", "Read", {"path": "docs/a"}, False),
        ("Read(docs/*)", "Read", {"path": "docs/*"}, False),
        ("shell(git", "shell", {"command": "git"}, False),
        ("(git:*)", "shell", {"command": "git"}, False),
        ("", "shell", {}, False),
    ],
)
def test_an_entry_allows_the_calls_that_it_names(
    entry: str, name: str, arguments: dict[str, Any], allowed: bool
) -> None:
    assert allows(entry, {"id": "a", "name": name, "arguments": arguments}) is allowed


@pytest.mark.parametrize("tail", [";rm", "&&rm", "|rm", "`rm`", "$(rm)", ">f", "<f", "\nrm", "\rrm", "\\\nrm", "{a,b}"])
def test_a_prefix_does_not_allow_further_commands(tail: str) -> None:
    assert not allows("shell(git:*)", {"id": "a", "name": "shell", "arguments": {"command": f"git log {tail}"}})


LINE_ENDS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1f", "\0"]
HIDDEN = ["\u202e", "\u200b", "\u2066", "\xa0", "\u3164", "\u2800", "\x1b[2K", "\ufeff"]


@pytest.mark.parametrize("mark", [*LINE_ENDS, *HIDDEN])
@pytest.mark.parametrize("command", ["git status {} rm", "{}git status", "git status{}"])
def test_no_entry_allows_other_line_ends_or_characters_that_no_screen_shows(mark: str, command: str) -> None:
    call: Call = {"id": "a", "name": "shell", "arguments": {"command": command.replace("{}", mark)}}

    assert [allows("shell(git:*)", call), allows("shell(git status)", call)] == [False, False]
