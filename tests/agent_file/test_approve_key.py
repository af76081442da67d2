"""The key `approve` of an agent file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from graph_agent import Session
from graph_agent.errors import ConfigError
from graph_agent.spec import load_spec, open_agent
from tests.support.approvals import asked

MODULE = """
from graph_agent import ScriptedChatModel

NUMBER = 5

def write(path: str) -> str:
    'Write a file.'
    return f"wrote {path}"

def read(path: str) -> str:
    'Read a file.'
    return f"read {path}"

def in_etc(call):
    return call["arguments"]["path"].startswith("/etc")

def nothing():
    return True

def make():
    calls = [("1", "write", "a"), ("2", "read", "b"), ("3", "read", "/etc/c")]
    listed = [{"id": id_, "name": name, "args": {"path": path}, "type": "tool_call"} for id_, name, path in calls]
    from langchain_core.messages import AIMessage
    return ScriptedChatModel([AIMessage("", tool_calls=listed), "Done."])
"""


def agent_file(folder: Path, **fields: Any) -> Path:
    (folder / "parts.py").write_text(MODULE)
    file = folder / "agent.yaml"
    content = {"name": "a", "model": "parts:make", "tools": ["parts:write", "parts:read"], "db": "memory:", **fields}
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({"approve": ["wr*"]}, ["a"]),
        ({"approve": "write"}, ["a"]),
        ({"approve": ["parts:in_etc"]}, ["/etc/c"]),
        ({"approve": ["parts:in_etc"], "config": {"approve": ["write"]}}, ["a", "/etc/c"]),
        ({"config": {"approve": ["read"]}}, ["b", "/etc/c"]),
        ({"config": {"approve": "*"}}, ["a", "b", "/etc/c"]),
        ({"approve": []}, []),
    ],
)
async def test_patterns_and_functions_of_the_file_select_calls(fields: Any, paths: list[str], tmp_path: Path) -> None:
    async with open_agent(load_spec(agent_file(tmp_path, **fields))) as graph:
        waiting = await Session(graph, "s1").run("go")

    assert [action[1]["path"] for actions in asked(waiting.interrupts) for action in actions] == paths


async def test_an_empty_list_lets_a_run_add_patterns(tmp_path: Path) -> None:
    async with open_agent(load_spec(agent_file(tmp_path, approve=[]))) as graph:
        waiting = await Session(graph, "s1").run("go", context={"approve": ["write"]})

    assert asked(waiting.interrupts) == [[("write", {"path": "a"})]]


@pytest.mark.parametrize(
    ("approve", "message"),
    [
        (["parts:nothing_here"], "approve.0: .*nothing_here"),
        (["parts:nothing"], r"approve.0: 'parts:nothing': an approval function takes one argument, the call"),
        (["parts:NUMBER"], "approve.0: 'parts:NUMBER' is no function of a call, but 5"),
        (["wirte"], "no tool or delegate is named 'wirte'"),
        (5, r"approve=5: list patterns of names such as 'write_\*', and functions as 'module:function'\.$"),
        ([5], r"approve=\[5\]: list patterns[^\n]*$"),
        (None, r"approve=None: list patterns[^\n]*\. Leave it out, or give it a value\.$"),
    ],
)
async def test_an_invalid_rule_is_refused_with_its_place(approve: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        async with open_agent(load_spec(agent_file(tmp_path, approve=approve))):
            pass


async def test_an_invalid_rule_of_the_configuration_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.yaml: config\.approve: no tool or delegate is named 'wirte'"):
        async with open_agent(load_spec(agent_file(tmp_path, approve=["read"], config={"approve": ["wirte"]}))):
            pass
