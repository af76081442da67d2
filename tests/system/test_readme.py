"""What the README shows a newcomer, run as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from graph_agent.spec.agent_file import AgentSpec

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, holding: str) -> str:
    """The fenced block of a language that holds a text."""
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return next(text for text in found if holding in text)


def test_the_embedding_example_runs_with_the_script_beside_it(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text(block("python", "create_graph_agent"), encoding="utf-8")
    command = f"{block('console', 'DEBUG_MOCK_RESPONSES')}\n{sys.executable} {example}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}

    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "Take one: it rains in Bergen.\n", "")


def test_the_agent_file_it_shows_is_one() -> None:
    shown = AgentSpec(**yaml.safe_load(block("yaml", "name: hotel")))

    assert (shown.name, shown.loop_config().max_steps) == ("hotel", 8)


async def test_the_values_it_shows_come_back(
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


def test_the_response_formats_it_shows_are_ones() -> None:
    shown = block("yaml", "response_format: my_answers").replace("# response_format", "response_format")
    lines = [line.split("#")[0] for line in shown.splitlines()]

    given = [AgentSpec(name="a", model="m", **yaml.safe_load(line)).response_format for line in lines]

    assert given == [
        "my_answers:City",
        {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    ]


def test_the_hooks_it_shows_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "DEBUG_MOCK_RESPONSES",
        '["{\\"tool_calls\\": [{\\"name\\": \\"web_search\\", \\"arguments\\": '
        '{\\"query\\": \\"tides\\"}}]}", "No more actions.", "Nobody knows."]',
    )
    shown: dict[str, Any] = {}

    exec(block("python", "hooks.web_search"), shown)

    answered = shown["agent"].invoke({"messages": [("user", "When does the tide turn?")]})
    assert answered["messages"][-1].text == "Nobody knows."


def test_the_files_it_links_to_are_there() -> None:
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)

    assert (len(linked) > 3, [name for name in linked if not (ROOT / name).exists()]) == (True, [])


def test_the_commands_it_names_are_targets() -> None:
    named = set(re.findall(r"\bmake ([\w-]+)", README))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    assert (named - targets, {"demo", "demo-waves", "demo-team", "test"} <= named) == (set(), True)
