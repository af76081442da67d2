"""The middleware of `deepagents`, run unchanged in each mode of tool calling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks

deepagents = pytest.importorskip("deepagents", reason="deepagents is not installed")
from deepagents.backends import FilesystemBackend, StateBackend  # noqa: E402 - after the check that it is installed
from deepagents.middleware import FilesystemMiddleware, SkillsMiddleware, SubAgentMiddleware  # noqa: E402 - as above

MODES = ["native", "text"]
SKILL = "---\nname: tea\ndescription: Brews tea.\n---\n\nBoil the water.\n"


def session_of(model: Any, mode: Any, *hooks: Any) -> Session:
    saver = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    config = LoopConfig(tool_calling=mode, model_retries=0)
    return Session(create_graph_agent(model, hooks=list(hooks), config=config, checkpointer=saver), "s1")


@pytest.mark.parametrize("mode", MODES)
async def test_files_of_the_filesystem_middleware_are_state(mode: str) -> None:
    model = ScriptedChatModel(
        [
            asks(("a", "write_file", {"file_path": "/tea.txt", "content": "green"})),
            asks(("b", "read_file", {"file_path": "/tea.txt"})),
            "Done.",
            asks(("c", "edit_file", {"file_path": "/tea.txt", "old_string": "green", "new_string": "black"})),
            "Done again.",
        ]
    )
    session = session_of(model, mode, FilesystemMiddleware(backend=StateBackend()))
    first = await session.run("go")

    second = await session.run("change it")

    files = second.state["files"]
    assert (first.answer, "green" in str(first.results["b"]), second.answer, "black" in str(files["/tea.txt"])) == (
        "Done.",
        True,
        "Done again.",
        True,
    )


@pytest.mark.parametrize("mode", MODES)
async def test_a_large_result_is_evicted_to_a_file(mode: Any) -> None:
    def dump() -> str:
        """Return a lot."""
        return "line of text\n" * 2_000

    model = ScriptedChatModel([asks(("a", "dump", {})), "Done."])
    hook = FilesystemMiddleware(backend=StateBackend(), tool_token_limit_before_evict=100)
    graph = create_graph_agent(
        model,
        tools=[dump],
        hooks=[hook],
        config=LoopConfig(tool_calling=mode),
        checkpointer=InMemorySaver(),
    )

    ran = await Session(graph, "s1").run("go")

    assert (ran.answer, len(ran.state["files"]), len(str(ran.results["a"])) < 5_000) == ("Done.", 1, True)


@pytest.mark.parametrize("mode", MODES)
async def test_a_subagent_answers_its_task(mode: str) -> None:
    helper = create_graph_agent(ScriptedChatModel(["It is four."]), name="helper")
    inner: Any = {"name": "helper", "description": "Computes.", "runnable": helper}
    made: Any = {
        "name": "maker",
        "description": "Makes.",
        "system_prompt": "Make it.",
        "model": ScriptedChatModel(["Made."]),
        "tools": [],
    }
    calls = [
        ("a", "task", {"description": "2 + 2", "subagent_type": "helper"}),
        ("b", "task", {"description": "a cake", "subagent_type": "maker"}),
    ]
    model = ScriptedChatModel([asks(*calls), "Done."])
    session = session_of(model, mode, SubAgentMiddleware(backend=StateBackend(), subagents=[inner, made]))

    ran = await session.run("go")

    assert (ran.answer, ran.results) == ("Done.", {"a": "It is four.", "b": "Made."})


@pytest.mark.parametrize("mode", MODES)
async def test_skills_are_in_the_prompt_and_can_be_read(mode: str, tmp_path: Path) -> None:
    (tmp_path / "skills" / "tea").mkdir(parents=True)
    (tmp_path / "skills" / "tea" / "SKILL.md").write_text(SKILL)
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    model = ScriptedChatModel([asks(("a", "read_file", {"file_path": "/skills/tea/SKILL.md"})), "Done."])
    hooks = [SkillsMiddleware(backend=backend, sources=["/skills/"]), FilesystemMiddleware(backend=backend)]

    ran = await session_of(model, mode, *hooks).run("go")

    assert (ran.answer, "Brews tea." in model.requests[0].messages[0].text, "Boil" in str(ran.results["a"])) == (
        "Done.",
        True,
        True,
    )
