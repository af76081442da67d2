"""`response_format` in an agent file: a class, a schema file or a schema, and errors for other values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from graph_agent import Session
from graph_agent.errors import ConfigError
from graph_agent.spec import load_spec, open_agent
from tests.support.cli import run_cli

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
}
PARIS = {"name": "Paris", "people": 2_100_000}

ANSWERS = """
from __future__ import annotations

import dataclasses

from pydantic import BaseModel
from typing_extensions import TypedDict


class City(BaseModel):
    name: str
    people: int


@dataclasses.dataclass
class Town:
    name: str
    people: int


class Village(TypedDict):
    name: str
    people: int


class Unserializable:
    pass


@dataclasses.dataclass
class Odd:
    what: Unserializable


LARGE = {"type": "object", "properties": {"people": {"minimum": 5}}}
NUMBER = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps([json.dumps(PARIS)]))
    (tmp_path / "answers.py").write_text(ANSWERS, encoding="utf-8")
    (tmp_path / "city.json").write_text(json.dumps(SCHEMA, indent="\t"), encoding="utf-8")
    (tmp_path / "city.yaml").write_text(yaml.safe_dump(SCHEMA), encoding="utf-8")
    (tmp_path / "list.json").write_text("[1, 2]", encoding="utf-8")
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    return tmp_path


def agent_file(folder: Path, response_format: Any) -> Path:
    path = folder / "agent.yaml"
    content = {"name": "a", "model": "openai:gpt-4o-mini", "response_format": response_format}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("answers:City", "City(name='Paris', people=2100000)"),
        ("answers:Town", "Town(name='Paris', people=2100000)"),
        ("answers:Village", repr(PARIS)),
        ("answers:LARGE", repr(PARIS)),
        ("city.json", repr(PARIS)),
        ("city.yaml", repr(PARIS)),
        (SCHEMA, repr(PARIS)),
    ],
    ids=["pydantic", "dataclass", "TypedDict", "schema in a module", "JSON file", "YAML file", "inline"],
)
async def test_an_agent_file_gives_the_answer_its_shape(folder: Path, given: Any, made: str) -> None:
    async with open_agent(load_spec(agent_file(folder, given)), db=f"sqlite:///{folder}/sessions.db") as graph:
        result = await Session(graph, "s1").run("Where?")

    shown = repr(result.structured_response)
    assert (shown.rpartition(".")[2] if "." in shown else shown) == made


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (5, "response_format=5: name a class as 'module:Class' or a schema file ending in .json, .yaml or .yml"),
        ("answers:Cty", "response_format: 'answers:Cty': 'answers' has no 'Cty'; "),
        ("nowhere:City", "response_format: 'nowhere:City': there is no module 'nowhere'; looked in "),
        (
            "answers:NUMBER",
            "response_format takes a pydantic class, a dataclass, a TypedDict class, a Union of these or a",
        ),
        ("answers:Odd", "response_format: Odd has no JSON schema: "),
        ("absent.json", "absent.json is not there; name a file with a JSON schema, as JSON or YAML."),
        ("broken.json", "broken.json holds no JSON: "),
        ("list.json", "list.json holds no JSON schema but [1, 2]; a schema is an object"),
        ({"type": "nonsense"}, "response_format is no valid JSON schema: 'nonsense' is not valid under any"),
        ({"$ref": "#/$defs/none"}, "response_format refers to '#/$defs/none', which is not in it"),
    ],
)
async def test_an_invalid_response_format_is_refused_with_its_location(folder: Path, given: Any, fault: str) -> None:
    path = agent_file(folder, given)

    with pytest.raises(ConfigError) as refused:
        async with open_agent(load_spec(path), db=""):
            pass

    message = str(refused.value)
    assert (message.startswith(f"Agent file {path}: response_format"), fault in message) == (True, True), message


def test_the_command_line_prints_the_structure(folder: Path) -> None:
    path = agent_file(folder, "answers:City")

    done = run_cli(folder, "run", "--config", str(path), "Where?")

    assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, [json.dumps(PARIS)], "")
