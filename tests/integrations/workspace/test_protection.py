"""What a workspace does not write without a person: files that git would run, and the parts of the agent itself."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import ToolException

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from graph_agent.server import read_keys
from graph_agent.spec import load_spec, open_agent
from graph_agent.workspace import Shell, workspace_tools
from tests.support.agents import asks
from tests.support.sandbox import in_sandbox


def use(folder: Path, name: str, **arguments: Any) -> str:
    [tool] = [tool for tool in workspace_tools(folder) if tool.name == name]
    return str(tool.invoke(arguments))


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repositories(tmp_path: Path) -> Path:
    """A workspace with repositories of every kind below it."""
    root = tmp_path / "work"
    (root / "nested/deep").mkdir(parents=True)
    git(root / "nested/deep", "init")
    git(root, "init", "--bare", "store")
    (root / "apart").mkdir()
    git(root / "apart", "init", "--separate-git-dir", "../apart-files")
    git(root / "apart", "commit", "--allow-empty", "-m", "one")
    git(root / "apart", "worktree", "add", "../tree")
    (root / "to-store").symlink_to("store")
    (root / "plain").mkdir()
    return root


GIT_PATHS = [
    *(".git", ".git/config", ".git/hooks/pre-commit", "plain/.git", "plain/.git/config", "plain/a/b/.git/config"),
    *("nested/deep/.git/config", "nested/deep/.git/hooks/post-checkout", "nested/deep/.GIT/config"),
    *("plain/.g\u200cit/config", "plain/git~1/config", "plain/x/../.git/config"),
    *(
        "store/config",
        "store/HEAD",
        "store/hooks/update",
        "store/new",
        "to-store/config",
        "store/objects/info/alternates",
    ),
    *("apart/.git", "tree/.git", "apart-files/config", "apart-files/hooks/pre-commit"),
    "apart-files/worktrees/tree/commondir",
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("path", GIT_PATHS)
def test_no_file_of_git_is_written_at_any_depth(repositories: Path, path: str) -> None:
    def content() -> dict[str, bytes]:
        return {str(each): each.read_bytes() for each in repositories.rglob("*") if each.is_file()}

    before = content()

    with pytest.raises(ToolException, match="is protected: git would run programs that it names"):
        use(repositories, "write_file", path=path, text="x")
    if (repositories / path).is_file():
        with pytest.raises(ToolException, match="is protected: git would run programs that it names"):
            use(repositories, "edit_file", path=path, old="a", new="b", replace_all=True)
    assert content() == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "names",
    [
        ["config", "HEAD", "objects/a", "refs/a"],
        ["refs/a", "objects/a", "config", "HEAD"],
        ["config", "HEAD", "refs/heads/a", "objects/a"],
        ["config", "commondir", "HEAD"],
        ["HEAD", "config", "commondir"],
    ],
)
@pytest.mark.parametrize("below", ["", "store/", "a/b/"])
def test_no_repository_is_made_of_single_files(tmp_path: Path, names: list[str], below: str) -> None:
    *first, last = names
    for name in first:
        use(tmp_path, "write_file", path=below + name, text="x")

    with pytest.raises(ToolException, match="is protected: git would run programs that it names"):
        use(tmp_path, "write_file", path=below + last, text="x")
    assert not os.path.lexists(tmp_path / below / last.split("/")[0])


def test_names_that_only_resemble_git_are_written(tmp_path: Path) -> None:
    names = [".gitignore", ".github/x.yml", "a.git/x", "git/config", "HEAD", "refs/x", "x/config", ".gitattributes"]

    assert [use(tmp_path, "write_file", path=name, text="x") for name in names] == [
        f"Created {name}." for name in names
    ]


TAG = sys.implementation.cache_tag
# The parts of an agent whose folder is its workspace; some do not exist.
PARTS = [
    *("agent.yaml", "other.yaml", ".env", "prompts/system.yaml", "own_tools.py", "own_helper.py", "own_server.py"),
    *(f"__pycache__/own_tools.{TAG}.pyc", f"__pycache__/own_helper.{TAG}.pyc", "yaml.py", "httpx/__init__.py"),
    *("skills/forms/SKILL.md", "skills/forms/new.md", "skills/new/SKILL.md", "answer.json", "keys.txt"),
    *("sessions.db", "sessions.db-wal", "sessions.db-shm", "sessions.db-journal", "sessions.db.sessions-lock"),
]
AGENT = """
name: own
model: openai:gpt-4o-mini
system_prompt: prompts/system.yaml
tools: ["own_tools:look"]
skills: [skills]
response_format: answer.json
delegates: [{name: other, agent: other.yaml}]
mcp_servers: {own: {transport: stdio, command: PYTHON, args: [own_server.py]}}
db: sqlite:///sessions.db
workspace: WORKSPACE
"""
TOOLS = '"""Tools."""\nimport own_helper\ndef look() -> str:\n    """Look."""\n    return own_helper.TEXT\n'


@asynccontextmanager
async def own_agent(
    folder: Path, calls: list[tuple[str, str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, workspace: str
) -> AsyncIterator[Session]:
    """A session with an agent that stands in its own workspace."""
    server = Path(__file__).parents[2] / "support" / "mcp_servers" / "values_server.py"
    for name, text in {
        "agent.yaml": AGENT.replace("WORKSPACE", workspace).replace("PYTHON", sys.executable),
        "other.yaml": "name: other\ndescription: Helps.\nmodel: openai:gpt-4o-mini\n",
        "prompts/system.yaml": "template: You are {{ name }}.\n",
        "own_tools.py": TOOLS,
        "own_helper.py": "TEXT = 'x'\n",
        "own_server.py": server.read_text(),
        "skills/forms/SKILL.md": "---\nname: forms\ndescription: Forms.\n---\nFill in.\n",
        "answer.json": '{"title": "Answer", "description": "x", "type": "object", "properties": {}}',
        "keys.txt": "ana:0123456789abcdef0123456789abcdef\n",
        "a.txt": "x",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps([asks(*calls), "No more actions.", "{}"]))
    read_keys(folder / "keys.txt", {})
    async with open_agent(load_spec(folder / "agent.yaml")) as agent:
        yield Session(agent, "s")


def files_of(folder: Path) -> set[str]:
    """The files below a folder, without those that an open database may make."""
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if "sessions.db" not in each.name}


async def test_the_parts_of_an_agent_are_not_written_without_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = [(f"c{at}", "write_file", {"path": path, "text": "x"}) for at, path in enumerate(PARTS)]
    edit = ("edit", "edit_file", {"path": "agent.yaml", "old": "name: own", "new": "name: other"})
    other = [
        ("ok", "write_file", {"path": "src/agent.py", "text": "x"}),
        ("ok2", "write_file", {"path": "a.txt", "text": "y"}),
    ]
    async with own_agent(tmp_path, [*writes, edit, *other], monkeypatch, "{folder: .}") as session:
        before = files_of(tmp_path)
        result = await session.run("go")

    found = {call.id: str(call.result) for call in result.calls}
    assert [path for at, path in enumerate(PARTS) if "A person may approve this" not in found[f"c{at}"]] == []
    assert ("it is the file of this agent" in found["edit"], found["ok"], found["ok2"]) == (
        True,
        "Created src/agent.py.",
        "Replaced a.txt.",
    )
    assert files_of(tmp_path) - before == {"src", "src/agent.py"}


async def test_a_person_may_approve_a_part_of_the_agent_and_never_a_file_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("a", "write_file", {"path": "prompts/system.yaml", "text": "template: New.\n"}),
        ("b", "write_file", {"path": "own_tools.py", "text": "x = 1\n"}),
        ("c", "edit_file", {"path": "agent.yaml", "old": "name: own", "new": "name: new"}),
        ("d", "write_file", {"path": "src/.git/config", "text": "x"}),
    ]
    decisions: list[dict[str, Any]] = [
        {"type": "approve"},
        {"type": "edit", "edited_action": {"name": "write_file", "args": {"path": "own_tools.py", "text": "y = 1\n"}}},
        {"type": "approve"},
        {"type": "approve"},
    ]
    async with own_agent(tmp_path, calls, monkeypatch, "{folder: ., approve_edits: true}") as session:
        await session.run("go")
        result = await session.resume({"decisions": decisions})

    assert [str(call.result).partition(":")[0] for call in result.calls] == [
        "Replaced prompts/system.yaml.",
        "Replaced own_tools.py.",
        "Replaced 1 occurrence in agent.yaml.",
        "{'error'",
    ]
    assert ((tmp_path / "own_tools.py").read_text(), (tmp_path / "src").exists()) == ("y = 1\n", False)


COMMANDS = [
    *(f"mkdir -p {shlex.quote(os.path.dirname(path) or '.')}; echo x >> {shlex.quote(path)}" for path in PARTS),
    "mv prompts old; mkdir prompts; echo x > prompts/system.yaml",
    "mv skills/forms other; cp -r other skills/forms; echo x >> skills/forms/SKILL.md",
    "rm -rf skills; mkdir skills",
    "ln -f own_tools.py l; echo x >> l",
    "ln -sf a.txt own_tools.py",
]


@in_sandbox
async def test_no_command_in_the_sandbox_changes_a_part_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [("a", "run_command", {"command": "\n".join(f"({each})" for each in COMMANDS) + "\necho x > b.txt"})]
    workspace = "{folder: ., shell: {sandbox: bubblewrap}}"
    async with own_agent(tmp_path, calls, monkeypatch, workspace) as session:
        names = [path for path in PARTS if "sessions.db" not in path]
        before = {path: (tmp_path / path).read_bytes() for path in names if (tmp_path / path).exists()}
        result = await session.run("go")
        after = {path: (tmp_path / path).read_bytes() for path in names if (tmp_path / path).exists()}
        assert await session.status() == "COMPLETED"

    output = str(result.calls[0].result)
    changed = [path for path in names if after.get(path) != before.get(path)]
    assert (changed, (tmp_path / "b.txt").read_text()) == ([], "x\n")
    assert set(re.findall(r"/([^/ ]+)\.refused-", output)) == {".env", "__init__.py", "yaml.py"}


@in_sandbox
async def test_a_command_that_a_person_approved_may_change_a_part_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [("a", "run_command", {"command": "echo template: New. > prompts/system.yaml; mkdir -p src/.git"})]
    workspace = "{folder: ., shell: {sandbox: bubblewrap, approve: true}}"
    async with own_agent(tmp_path, calls, monkeypatch, workspace) as session:
        await session.run("go")
        await session.resume({"decisions": [{"type": "approve"}]})

    assert ((tmp_path / "prompts/system.yaml").read_text(), os.listdir(tmp_path / "src")[0][:13]) == (
        "template: New.\n",
        ".git.refused-",
    )


async def run(folder: Path, command: str) -> str:
    [tool] = [tool for tool in workspace_tools(folder, shell=Shell(sandbox="bubblewrap")) if tool.name == "run_command"]
    return str(await tool.ainvoke({"command": command}))


@in_sandbox
async def test_no_command_in_the_sandbox_changes_an_existing_repository(repositories: Path) -> None:
    def content() -> dict[str, bytes]:
        return {str(each): each.read_bytes() for each in repositories.rglob("*") if each.is_file()}

    before = content()
    existing = [path for path in GIT_PATHS if (repositories / path).is_file()]

    await run(repositories, "\n".join(f"(echo x >> {path})" for path in existing))
    await run(
        repositories, "mv nested n; mv nested/deep/.git g; mv store s; rm -rf store; mv apart-files f; mv apart a"
    )

    after = content()
    assert ({path: after.get(path) for path in before}, len(existing) > 5) == (before, True)


MADE = {
    "git init -q": ["."],
    "git init -q plain": ["plain"],
    "git init -q --bare plain/x": ["plain/x"],
    "mkdir -p plain/y/z && git init -q plain/y/z": ["plain/y/z"],
    "git clone -q store plain/copy": ["plain/copy"],
    "git init -q --separate-git-dir x.files plain": ["plain", "x.files"],
    "ln -s store plain/.git": ["plain"],
    "cp -r nested/deep/.git plain/.GIT; mv plain/.GIT plain/.git": ["plain"],
}


@in_sandbox
@pytest.mark.parametrize("command", MADE)
async def test_a_repository_that_a_command_makes_is_set_aside(repositories: Path, tmp_path: Path, command: str) -> None:
    marker = tmp_path / "marker"
    evil = f"touch {marker}; false"
    config = " && ".join(
        f"git -C {each} config core.fsmonitor {shlex.quote(evil)}" for each in MADE[command] if "ln -s" not in command
    )

    output = await run(repositories, f"{command}; {config}")
    for each in MADE[command]:
        await (await asyncio.create_subprocess_exec("git", "status", cwd=repositories / each)).wait()

    assert ("renamed to: " in output, marker.exists()) == (True, False)


@in_sandbox
async def test_commands_near_repositories_of_a_person_rename_nothing(repositories: Path) -> None:
    output = await run(
        repositories, "cd nested/deep && git status --short && echo x > new && mkdir -p ../a && mv new ../a"
    )

    assert (output, (repositories / "nested/a/new").read_text()) == ("exit status 0", "x\n")


async def test_the_parts_of_an_agent_in_python_are_its_database_and_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module_of_python.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_module_of_python")
    calls = [
        ("a", "write_file", {"path": "s.db", "text": "x"}),
        ("b", "write_file", {"path": "s.db-journal", "text": "x"}),
        ("c", "write_file", {"path": "own_module_of_python.py", "text": "x"}),
        ("d", "write_file", {"path": "t.db", "text": "x"}),
    ]
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        model = ScriptedChatModel([asks(*calls), "No more actions.", "Done."])
        agent = create_graph_agent(model, tools=workspace_tools(tmp_path), checkpointer=saver, config=LoopConfig())
        result = await Session(agent, "s").run("go")

    assert ["it is " in str(call.result) for call in result.calls] == [True, True, True, False]
