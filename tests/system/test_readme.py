"""The examples of README and of the guides in `docs/`, run as they are printed."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.spec.agent_file import AgentSpec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def block(language: str, holding: str) -> str:
    """The first fenced block of a language that contains a text."""
    return next(text for page in PAGES for text in blocks(page, language) if holding in text)


def test_the_embedding_example_runs_with_its_script(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text(block("python", "create_graph_agent"), encoding="utf-8")
    command = f"{block('console', 'DEBUG_MOCK_RESPONSES')}\n{sys.executable} {example}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}

    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "Take one: it rains in Bergen.\n", "")


def test_the_agent_file_is_valid() -> None:
    shown = AgentSpec(**yaml.safe_load(block("yaml", "name: hotel")))

    assert (shown.name, shown.loop_config().max_steps) == ("hotel", 8)


async def test_the_structured_answer_example_prints_its_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = '{"tool_calls": [{"id": "call_1", "name": "count", "arguments": {"city": "Bergen"}}]}'
    script = [call, "No more actions.", '{"name": "Bergen", "people": 291000}']
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps(script))
    shown: dict[str, Any] = {"__name__": "readme"}

    exec(block("python", "response_format=City"), shown)
    await shown["ask"]("How many people live in Bergen?")

    assert capsys.readouterr().out.splitlines() == [
        "name='Bergen' people=291000",
        "{'call_1': {'name': 'Bergen', 'people': 291000}}",
    ]


def test_the_response_formats_are_valid() -> None:
    shown = block("yaml", "response_format: my_answers").replace("# response_format", "response_format")
    lines = [line.split("#")[0] for line in shown.splitlines()]

    given = [AgentSpec(name="a", model="m", **yaml.safe_load(line)).response_format for line in lines]

    assert given == [
        "my_answers:City",
        {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    ]


def test_the_hooks_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "DEBUG_MOCK_RESPONSES",
        '["{\\"tool_calls\\": [{\\"name\\": \\"web_search\\", \\"arguments\\": '
        '{\\"query\\": \\"tides\\"}}]}", "No more actions.", "No page knows."]',
    )
    shown: dict[str, Any] = {}

    exec(block("python", "hooks.web_search"), shown)

    answered = shown["agent"].invoke({"messages": [("user", "When does the tide turn?")]})
    assert answered["messages"][-1].text == "No page knows."


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_compiles_and_its_imports_exist(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


async def test_the_streaming_example_prints_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(create_graph_agent(ScriptedChatModel(["Take one."]), checkpointer=InMemorySaver()), "s1")
    shown: dict[str, Any] = {"Session": Session}

    exec("from __future__ import annotations\n" + block("python", "async def follow"), shown)
    await shown["follow"](session)

    assert capsys.readouterr().out.startswith("Take one.{'input_tokens'")


async def test_the_control_example_runs() -> None:
    agent = create_graph_agent(ScriptedChatModel(["Done."], cycle=True), checkpointer=InMemorySaver())
    code = compile(
        block("python", "session.configure(reasoning_effort"),
        "docs/tour.md",
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    shown: dict[str, Any] = {"Session": Session, "agent": agent}

    await eval(code, shown)

    assert await shown["session"].status() == "COMPLETED"


def test_the_guides_agent_files_are_valid() -> None:
    shown = AgentSpec(**yaml.safe_load(block("yaml", "cache: memory")))
    keys = [yaml.safe_load(block("yaml", key)) for key in ("credential_headers:", "- {name: bank")]

    assert (shown.loop_config().plan_cache_ttl_s, [AgentSpec(name="a", model="m", **each).name for each in keys]) == (
        600,
        ["a", "a"],
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_files_and_headings_exist(page: Path) -> None:
    linked = re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8"))
    missing = []
    for link in linked:
        name, _, heading = link.partition("#")
        target = page.parent / name
        if not target.exists() or (heading and heading not in headings(target)):
            missing.append(link)

    assert missing == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-") for text in found}


def test_every_guide_is_linked_from_the_readme() -> None:
    readme = PAGES[0].read_text(encoding="utf-8")

    assert [page.name for page in PAGES[1:] if f"(docs/{page.name}" not in readme] == []


def test_named_make_commands_are_targets() -> None:
    named = {name for page in PAGES for name in re.findall(r"\bmake ([\w-]+)", page.read_text(encoding="utf-8"))}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    assert (named - targets, {"demo", "demo-waves", "demo-team", "test"} <= named) == (set(), True)
