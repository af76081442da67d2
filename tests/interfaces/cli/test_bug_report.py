"""`graph-agent doctor --report`: what a bug report has, and what it never has."""

from __future__ import annotations

import asyncio
import json
import platform
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.cli import run_cli

# Of every form: with the form of a key and without, in upper case, with special characters, as a sentence.
ENVIRONMENT: dict[str, Any] = {
    "OPENAI_API_KEY": "sk-proj-4f9a8b7c6d5e",
    "MY_KEY": "plain+value/99",
    "PLAIN": "correct horse battery",
    "SHORT_PIN": "7731",
    "HTTPS_PROXY": "http://proxyuser:proxypass@127.0.0.1:1",
    "GRAPH_AGENT_API_KEYS": "ana:ABCDEFGHIJKLMNOP",
}
IN_FILE = ("headersecret", "hookuser", "hookpass", "queryvalue", "T0000B0000abcdef12", "argsecret", "envsecret")
AGENT: dict[str, Any] = {
    "name": "guide",
    "model": {
        "model": "openai:gpt-4o-mini",
        "base_url": "http://127.0.0.1:1/hooks/T0000B0000abcdef12?apikey=queryvalue",
        "api_key_env": "MY_KEY",
    },
    "system_prompt": "A secret recipe.",
    "mcp_servers": {
        "web": {
            "transport": "streamable_http",
            "url": "http://hookuser:hookpass@127.0.0.1:1/",
            "headers": {"X-Team": "headersecret"},
        },
        "local": {
            "transport": "stdio",
            "command": "not-there",
            "args": ["--pin", "argsecret"],
            "env": {"PIN": "envsecret"},
        },
    },
    "config": {"max_steps": 3, "max_tokens_total": 9000, "model_rules": {"gpt-4o-mini": {"system_role": False}}},
    "db": "sqlite:///guide.db",
}


class _Failing(ScriptedChatModel):
    """A model whose error repeats all secrets."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(" ".join(["The server refused", *ENVIRONMENT.values(), *IN_FILE]))


async def _failed_session(folder: Path) -> None:
    async with open_saver("sqlite:///guide.db", folder) as saver:
        config = LoopConfig(model_retries=0)
        await Session(
            create_graph_agent(_Failing(responses=[]), config=config, checkpointer=saver), "ana@example.com"
        ).run("hi")


def test_a_report_has_versions_settings_rules_and_errors_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(AGENT))
    asyncio.run(_failed_session(tmp_path))

    done = run_cli(tmp_path, "doctor", "--report", **ENVIRONMENT)

    (file,) = tmp_path.glob("graph-agent-report-*.json")
    text = file.read_text()
    report = json.loads(text)
    secrets = [*ENVIRONMENT.values(), *IN_FILE, "proxypass", "ABCDEFGHIJKLMNOP", "secret recipe", "ana@example.com"]
    assert [secret for secret in secrets if secret in text] == []
    assert f"The report is in {file}; read it before you send it." in done.stderr
    assert (report["versions"]["python"], report["versions"]["sqlite"], report["versions"]["os"]) == (
        f"{platform.python_implementation()} {platform.python_version()}",
        sqlite3.sqlite_version,
        platform.platform(),
    )
    assert {"graph-agent", "langgraph", "langchain-core"} <= report["versions"].keys()
    settings = report["agent_file"]
    assert (settings["config"]["max_steps"], settings["config"]["max_tokens_total"]) == (3, 9000)
    assert settings["mcp_servers"]["local"] == {"transport": "stdio", "command": "not-there"}
    (rules,) = report["model_rules"].values()
    assert rules["system_role"] is False
    (failure,) = report["last_errors"]
    assert (failure["type"], failure["session"], "The model call failed" in failure["message"]) == ("error", 1, True)
    assert {"OPENAI_API_KEY", "HTTPS_PROXY"} <= {*report["environment"]}
    assert {each["check"] for each in report["checks"]} >= {"versions", "agent file", "keys", "model", "MCP"}


@pytest.mark.parametrize("fault", [{"unknown": 1}, {"model": AGENT["model"] | {"base_url": "no url"}}])
def test_a_report_on_an_invalid_agent_file_has_no_secret(tmp_path: Path, fault: dict[str, Any]) -> None:
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(AGENT | fault))

    run_cli(tmp_path, "doctor", "--report", **ENVIRONMENT)

    (file,) = tmp_path.glob("graph-agent-report-*.json")
    text = file.read_text()
    assert ("error" in json.loads(text)["agent_file"], [each for each in IN_FILE if each in text]) == (True, [])


def test_a_report_on_a_database_that_cannot_be_read_has_the_error(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(AGENT))
    (tmp_path / "guide.db").write_text("no database" * 100)

    run_cli(tmp_path, "doctor", "--report")

    (file,) = tmp_path.glob("graph-agent-report-*.json")
    assert [*json.loads(file.read_text())["last_errors"]] == ["error"]


def test_a_report_is_written_without_an_agent_file(tmp_path: Path) -> None:
    run_cli(tmp_path, "doctor", "--report")

    (file,) = tmp_path.glob("graph-agent-report-*.json")
    report = json.loads(file.read_text())
    assert ("error" in report["agent_file"], "langgraph" in report["versions"]) == (True, True)


def test_without_the_option_no_report_is_written(tmp_path: Path) -> None:
    run_cli(tmp_path, "doctor")

    assert [*tmp_path.iterdir()] == []
