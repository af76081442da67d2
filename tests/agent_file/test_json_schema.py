"""The JSON schema of the agent file, which editors check files with."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.protocols import Validator

from graph_agent.errors import ConfigError
from graph_agent.spec import AgentSpec, load_spec, open_agent
from tests.support.cli import run_cli

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    file for file in (ROOT / "examples").rglob("*.yaml") if "model" in yaml.safe_load(file.read_text(encoding="utf-8"))
)
TEXT = (resources.files("graph_agent.spec") / "agent.schema.json").read_text(encoding="utf-8")
SCHEMA: dict[str, Any] = json.loads(TEXT)

FULL: dict[str, Any] = {
    "name": "a",
    "model": [
        "openai:gpt-4o-mini",
        "offline_model:make_model",
        {"model": "openai:qwen3", "base_url": "http://h/v1", "headers": {"A": "${B}"}, "api_key_env": "KEY"},
        "openai:qwen3@http://h/v1",
    ],
    "description": "Finds rooms.",
    "system_prompt": "prompts/system.yaml",
    "prompts": {"planner": "prompts/planner.yaml"},
    "workspace": {"folder": "."},
    "memory": True,
    "tools": ["my_tools:search", "my_package.tools:Box.search", "my_tools.search"],
    "mcp_servers": {
        "one": {"transport": "stdio", "command": "python", "args": ["server.py"], "env": {"HOME": None, "A": "b"}},
        "two": {"transport": "http", "url": "http://127.0.0.1:1/mcp", "headers": {"A": "b"}, "tool_prefix": True},
        "three": {"transport": "sse", "url": "https://127.0.0.1:1/sse", "timeout": 2.5},
    },
    "delegates": [
        {"agent": "other.yaml"},
        {"agent": "other.yaml", "name": "other", "description": "Another."},
        {"name": "near", "graph": "my_graphs:make"},
        {"name": "far", "url": "${FAR:-http://127.0.0.1:1}", "auth": {"bearer_env": "TOKEN"}, "timeout_s": 3},
        {"name": "keyed", "url": "http://127.0.0.1:1", "auth": {"api_key_env": "KEY", "header": "X"}},
    ],
    "skills": [{"id": "s", "description": "Finds."}],
    "push_notifications": True,
    "hooks": ["my_module.MyHook", {"use": "my_module:MyHook", "with": {"limit": 3}}, "history_compression"],
    "middleware": ["TodoListMiddleware", "my_module.My", {"use": "ModelRetryMiddleware", "with": {"max_retries": 2}}],
    "approve": ["write_*", "policies:needs_approval"],
    "response_format": {"type": "object"},
    "config": {
        "max_steps": 8,
        "deadline_s": 1.5,
        "max_cost": 1,
        "prices": {"gpt": {"input": 1, "output": 2}},
        "fallback_models": ["openai:gpt-4o", {"model": "openai:qwen3", "base_url": "http://h/v1"}],
    },
    "credentials": {"token": {"env": "TOKEN"}},
    "credential_headers": {"token": "X-User-Token"},
    "db": "sqlite:///a.db",
    "cache": "memory",
}

FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("a misspelt key", {"sytem_prompt": "Hello."}),
    ("a misspelt setting", {"config": {"max_step": 8}}),
    ("a misspelt key of a price", {"config": {"prices": {"gpt": {"input": 1, "ouput": 2}}}}),
    ("a misspelt key of a connection", {"mcp_servers": {"one": {"transport": "stdio", "command": "x", "arg": []}}}),
    ("a misspelt transport", {"mcp_servers": {"one": {"transport": "studio", "command": "x"}}}),
    ("a connection without its command", {"mcp_servers": {"one": {"transport": "stdio"}}}),
    ("a key of another transport", {"mcp_servers": {"one": {"transport": "sse", "url": "http://a", "cwd": "."}}}),
    ("a misspelt key of a delegate", {"delegates": [{"name": "a", "graph": "m:a", "descripton": ""}]}),
    ("a delegate of two kinds", {"delegates": [{"name": "a", "graph": "m:a", "url": "http://a"}]}),
    ("a delegate of no kind", {"delegates": [{"name": "a"}]}),
    ("a graph without a name", {"delegates": [{"graph": "m:a"}]}),
    ("a misspelt key of an authentication", {"delegates": [{"name": "a", "url": "http://a", "auth": {"bearer": "T"}}]}),
    ("a misspelt key of a hook", {"hooks": [{"use": "m.A", "wiht": {}}]}),
    ("a hook that is no dotted name", {"hooks": ["MyHook"]}),
    ("a tool that is no dotted name", {"tools": ["search"]}),
    ("a misspelt key of a skill", {"skills": [{"id": "a", "description": "", "tag": []}]}),
    ("a secret in place of its variable", {"credentials": {"token": "secret"}}),
    ("an unknown prompt", {"prompts": {"plannner": "a.yaml"}}),
    ("an unknown cache", {"cache": "redis://a"}),
    ("a text for a number", {"config": {"max_steps": "many"}}),
    ("a number out of range", {"config": {"max_steps": 0}}),
    ("a limit of cost without prices", {"config": {"max_cost": 1}}),
    ("two names of one setting", {"config": {"max_steps": 1, "max_rounds": 1}}),
    ("no model in a list", {"model": []}),
    ("an empty approval pattern", {"approve": [""]}),
    ("the path, which the loader sets", {"path": "a.yaml"}),
]


UNUSABLE: list[tuple[str, dict[str, Any]]] = [
    ("a database that is no URL", {"db": "foo"}),
    ("a database of another kind", {"db": "mysql://a"}),
    ("a database without its file", {"db": "sqlite:///"}),
    ("a model without a provider", {"model": "gpt"}),
    ("a model with a dot and without a provider", {"model": "gpt-4.1"}),
    ("a provider without a model", {"model": "openai:"}),
    ("models without a provider", {"model": ["gpt", "phi3"]}),
]
"""Values that are refused when the agent is opened, unless a test replaces its model or its database."""

USABLE: list[dict[str, Any]] = [
    {"db": "memory:"},
    {"db": "sqlite:////tmp/a b.db"},
    {"db": "postgresql://me@db.example/agents?sslmode=require"},
    {"db": "postgres://"},
    {"model": "ollama:llama3.1:8b"},
    {"model": "bedrock_converse:anthropic.claude-3-5-sonnet-20240620-v1:0"},
    {"model": "openai:ft:gpt-4o-mini:acme::id"},
    {"model": "my_package.models:make_model"},
    {"model": "my_package.models.make_model"},
]


@pytest.fixture(params=[Draft202012Validator, Draft7Validator], ids=["2020-12", "draft-07"])
def validator(request: pytest.FixtureRequest) -> Validator:
    """A validator of the schema's own draft, and one of the draft that older editors have."""
    request.param.check_schema(SCHEMA)
    made: Validator = request.param(SCHEMA)
    return made


def faults(validator: Validator, content: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_example_is_valid_and_names_the_schema(validator: Validator, file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    [named] = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", text, re.MULTILINE)

    assert faults(validator, yaml.safe_load(text)) == []
    assert (file.parent / named).resolve() == ROOT / "graph_agent/spec/agent.schema.json"


def test_every_agent_file_on_a_page_is_valid(validator: Validator) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    blocks = [
        (page.name, yaml.safe_load(block))
        for page in pages
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    own = AgentSpec.model_fields.keys()
    # A compose file has a name, too.
    shown = [
        (name, block)
        for name, block in blocks
        if isinstance(block, dict) and own & block.keys() and "services" not in block
    ]

    found = [
        f"{name}: {fault}"
        for name, block in shown
        for fault in faults(validator, {"name": "a", "model": "m:a", **block})
    ]

    assert (len(shown) > 5, found) == (True, [])


def test_a_file_with_every_key_is_valid(validator: Validator) -> None:
    assert faults(validator, FULL) == []
    assert FULL.keys() == AgentSpec.model_fields.keys() - {"path"}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("given", USABLE, ids=str)
def test_a_model_or_database_that_the_loader_accepts_is_valid(validator: Validator, given: dict[str, Any]) -> None:
    assert faults(validator, {"name": "a", "model": "openai:gpt-4o-mini", **given}) == []


@pytest.mark.parametrize("given", [fault for _, fault in UNUSABLE], ids=[name for name, _ in UNUSABLE])
async def test_an_unusable_model_or_database_is_found_and_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    content = {"name": "a", "model": "openai:gpt-4o-mini", "db": "memory:", **given}
    file = tmp_path / "agent.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")

    assert faults(Draft202012Validator(SCHEMA), content) != []
    with pytest.raises(ConfigError):
        async with open_agent(load_spec(file)):
            pass


@pytest.mark.parametrize("given", [fault for _, fault in FAULTS], ids=[name for name, _ in FAULTS])
def test_a_fault_is_found(given: dict[str, Any]) -> None:
    content = {"name": "a", "model": "openai:gpt-4o-mini", **given}

    assert faults(Draft202012Validator(SCHEMA), content) != []


async def opens(folder: Path, **given: Any) -> bool:
    """Whether an agent file with some keys can be opened, with a scripted model."""
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump({"name": "a", "model": "scripted", **given}), encoding="utf-8")
    try:
        async with open_agent(load_spec(file), db=""):
            return True
    except ConfigError:
        return False


@pytest.mark.parametrize("given", [fault for _, fault in FAULTS], ids=[name for name, _ in FAULTS])
async def test_the_loader_refuses_the_same_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", '["Yes."]')

    assert (await opens(tmp_path), await opens(tmp_path, **given)) == (True, False)


def test_every_object_refuses_unknown_keys_and_every_key_is_described() -> None:
    found: list[str] = []

    def walk(schema: Any, path: str) -> None:
        if isinstance(schema, dict):
            properties = schema.get("properties", {})
            if schema.get("type") == "object" and properties and schema.get("additionalProperties") is not False:
                found.append(f"{path} is open")
            if schema.get("additionalProperties") is False:
                found.extend(f"{path}.{name} is not described" for name in properties if not _text(properties[name]))
            for name, value in schema.items():
                walk(value, f"{path}.{name}")
        elif isinstance(schema, list):
            for at, value in enumerate(schema):
                walk(value, f"{path}.{at}")

    walk(SCHEMA, "")
    assert found == []


def _text(schema: dict[str, Any]) -> str:
    return str(schema.get("description", ""))


def test_the_command_prints_the_schema(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "schema")

    assert (done.returncode, done.stdout, done.stderr) == (0, TEXT, "")
