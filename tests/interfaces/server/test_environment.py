"""Environment variables of a server and of its agent file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from graph_agent import LoopConfig
from graph_agent.agent_file.credentials import loop_variable_of
from graph_agent.agent_file.mcp_connections import mcp_connections
from graph_agent.errors import ConfigError
from graph_agent.interfaces.cli.serving import a2a, serve
from graph_agent.interfaces.server.settings import settings_from, unknown_variables, variable_of
from graph_agent.server import ServerSettings
from graph_agent.spec import load_spec
from scripts.reference.environment import names, options_of
from tests.support.cli import run_cli

WITHOUT_VARIABLE = {"settings", "list_settings", "verbose", "url", "push_notifications", "drain_s", "record"}
"""Options with a variable of a setting or key (`--set`, `--url`, `--drain-s`, `--push-notifications`, `--record`), and
those that only report."""
VALUES: dict[str, Any] = {"public_url": "https://a.example", "cors_origins": ["https://b.example"]} | {
    "credential_headers": {"token": "X-User-Token"},
    "session_header": "X-Conversation",
    "unsupported_tools": "refuse",
}
"""Values for the settings that are neither numbers nor flags."""


def agent_file(folder: Path, **keys: Any) -> Path:
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump({"name": "a", "model": "openai:m", **keys}))
    return file


@pytest.mark.parametrize("command", [serve, a2a])
def test_every_option_of_a_server_has_a_variable(command: Callable[..., object]) -> None:
    options = options_of(command)

    assert {name for name, info in options.items() if info.envvar is None} == WITHOUT_VARIABLE & options.keys()


@pytest.mark.parametrize("name", sorted(ServerSettings.model_fields.keys() - {"keys"}))
def test_every_setting_is_read_from_its_variable(name: str) -> None:
    default = ServerSettings.model_fields[name].default
    value = VALUES.get(name, not default if isinstance(default, bool) else 77)
    variables = {variable_of(name): value if isinstance(value, str) else yaml.safe_dump(value)}

    assert settings_from([], variables) == ServerSettings.model_validate({name: value})


def test_a_setting_of_the_command_line_replaces_a_variable() -> None:
    variables = {"GRAPH_AGENT_DRAIN_S": "5", "GRAPH_AGENT_MAX_TOOLS": "6", "GRAPH_AGENT_MAX_MESSAGES": " "}

    assert settings_from(["drain_s=9"], variables) == ServerSettings(drain_s=9, max_tools=6)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("-1", "GRAPH_AGENT_DRAIN_S=-1: ServerSettings: drain_s=-1: Input should be greater than or equal to 0."),
        (
            "[",
            "GRAPH_AGENT_DRAIN_S=[: the value is no YAML; write e.g. 'GRAPH_AGENT_CORS_ORIGINS=[\"https://my.page\"]'.",
        ),
    ],
)
def test_an_invalid_setting_is_refused_with_its_variable(value: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from([], {"GRAPH_AGENT_DRAIN_S": value})

    assert str(caught.value) == fault


def test_variables_replace_keys_of_an_agent_file(tmp_path: Path) -> None:
    variables = {
        "GRAPH_AGENT_MODEL": "[openai:b, openai:c]",
        "GRAPH_AGENT_PUSH_NOTIFICATIONS": "true",
        "GRAPH_AGENT_LOOP_MAX_STEPS": "9",
        "GRAPH_AGENT_LOOP_DEADLINE_S": "null",
        "GRAPH_AGENT_LOOP_STOP": "[END]",
        "GRAPH_AGENT_LOOP_MAX_TURNS": "",
    }

    spec = load_spec(agent_file(tmp_path, config={"max_steps": 3, "deadline_s": 60, "max_turns": 4}), variables)

    expected = LoopConfig(max_steps=9, deadline_s=None, stop=("END",), max_turns=4)
    assert (spec.model, spec.push_notifications, spec.loop_config()) == (["openai:b", "openai:c"], True, expected)


@pytest.mark.parametrize("name", LoopConfig.model_fields)
def test_every_field_of_the_loop_has_a_variable(name: str, tmp_path: Path) -> None:
    default = LoopConfig().model_dump(mode="json")[name]

    spec = load_spec(agent_file(tmp_path), {loop_variable_of(name): yaml.safe_dump(default)})

    assert spec.config.keys() == {name}


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("GRAPH_AGENT_LOOP_MAX_STEP", "3", "there is no such setting; "),
        ("GRAPH_AGENT_LOOP_MAX_STEPS", "none", "GRAPH_AGENT_LOOP_MAX_STEPS=none: LoopConfig: max_steps='none': "),
        ("GRAPH_AGENT_MODEL", "[", "GRAPH_AGENT_MODEL, line 1, column 2: not valid YAML: "),
    ],
    ids=["unknown", "invalid", "no YAML"],
)
def test_an_invalid_variable_of_an_agent_file_is_refused(tmp_path: Path, variable: str, value: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_spec(agent_file(tmp_path), {variable: value})

    assert (variable in str(caught.value), fault in str(caught.value)) == (True, True)


def test_a_delegates_agent_file_keeps_its_own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_AGENT_LOOP_MAX_STEPS", "9")

    outer, inner = load_spec(agent_file(tmp_path)), load_spec(agent_file(tmp_path), {})

    assert (outer.config, inner.config) == ({"max_steps": 9}, {})


def test_addresses_of_mcp_servers_refer_to_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCK_HOST", "stock.shop")
    monkeypatch.setenv("STOCK_TOKEN", "s3cret")
    http = {"transport": "http", "url": "http://${STOCK_HOST}:${STOCK_PORT:-8000}/mcp"}
    headers = {"Authorization": "Bearer ${STOCK_TOKEN}"}
    stdio = {"transport": "stdio", "command": "cat", "env": {"AT": "${STOCK_HOST:-here}", "BY": "${NOBODY:-me}"}}

    spec = load_spec(agent_file(tmp_path, mcp_servers={"stock": {**http, "headers": headers}, "local": stdio}))
    connections = mcp_connections(spec, {})

    assert connections["stock"] == {
        "transport": "http",
        "url": "http://stock.shop:8000/mcp",
        "headers": {"Authorization": "Bearer s3cret"},
    }


@pytest.mark.parametrize(("given", "folder"), [({}, ""), ({"cwd": None}, ""), ({"cwd": "sub"}, "sub")])
def test_a_stdio_server_starts_in_the_folder_of_its_agent_file(
    tmp_path: Path, given: dict[str, Any], folder: str
) -> None:
    spec = load_spec(agent_file(tmp_path, mcp_servers={"s": {"transport": "stdio", "command": "cat", **given}}))

    assert mcp_connections(spec, {})["s"]["cwd"] == str(tmp_path / folder)


def test_an_address_with_an_unset_variable_is_refused(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer sk-secret ${NOT_SET}"}
    spec = load_spec(
        agent_file(tmp_path, mcp_servers={"s": {"transport": "http", "url": "http://s", "headers": headers}})
    )

    with pytest.raises(ConfigError) as caught:
        mcp_connections(spec, {})

    assert str(caught.value) == (
        "MCP server 's': the environment variable NOT_SET in '${NOT_SET}' is not set; set it, or write a default: "
        "'${NAME:-default}'."
    )


def test_a_service_link_of_kubernetes_is_no_port(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "serve", GRAPH_AGENT_PORT="tcp://10.0.0.7:8000")

    assert (done.returncode, "enableServiceLinks: false" in done.stderr) == (2, True)


def test_the_doctor_reports_an_address_with_an_unset_variable(tmp_path: Path) -> None:
    server = {"transport": "http", "url": "${NOT_SET}/mcp"}
    agent_file(tmp_path, mcp_servers={"s": server})

    done = run_cli(tmp_path, "doctor", script=["Hello."])

    assert "problem  MCP: s: MCP server 's': the environment variable NOT_SET in '${NOT_SET}' is not set" in done.stdout


@pytest.mark.parametrize(("former", "name"), [("park_s", "pending_ttl_s"), ("parked_requests", "pending_requests")])
def test_a_former_setting_is_refused_with_its_new_name_wherever_it_is_set(former: str, name: str) -> None:
    variable = variable_of(former)

    with pytest.raises(ConfigError) as in_environment:
        settings_from([], {variable: "7"})
    with pytest.raises(ConfigError) as on_command_line:
        settings_from([f"{former}=7"], {})

    refused = f"ServerSettings: the field '{former}' was removed: its name is '{name}'."
    assert (str(in_environment.value), str(on_command_line.value)) == (f"{variable}=7: {refused}", refused)


def test_only_variables_that_nothing_reads_are_unknown() -> None:
    misspelt = {"GRAPH_AGENT_DRAIN": "1", "GRAPH_AGENT_API_KEY": "k", "GRAPH_AGENT_DATABASE": "d"}

    found = unknown_variables(dict.fromkeys([*names(), "GRAPH_AGENT_HISTORY"], "x") | misspelt | {"OTHER": "x"})

    start = "The environment variable GRAPH_AGENT"
    assert list(found.values()) == [
        f"{start}_API_KEY is no setting of graph-agent. Did you mean GRAPH_AGENT_API_KEYS?",
        f"{start}_DATABASE is no setting of graph-agent.",
        f"{start}_DRAIN is no setting of graph-agent. Did you mean GRAPH_AGENT_DRAIN_S?",
    ]


def test_the_doctor_reports_a_misspelt_variable_that_the_agent_file_does_not_name(tmp_path: Path) -> None:
    agent_file(tmp_path, credentials={"crm": {"env": "GRAPH_AGENT_CRM"}})

    done = run_cli(tmp_path, "doctor", "--json", script=["Hello."], GRAPH_AGENT_CRM="c", GRAPH_AGENT_DRAIN="1")

    checks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["fix"] for each in checks if each["check"] == "environment"] == ["unset GRAPH_AGENT_DRAIN"]


@pytest.mark.parametrize(
    ("variable", "fault"),
    [
        ("GRAPH_AGENT_OTEL", "GRAPH_AGENT_OTEL='on': write 'true' or 'false', or unset it."),
        ("GRAPH_AGENT_LOG_FORMAT", "GRAPH_AGENT_LOG_FORMAT='on': write 'json' or 'text', or unset it."),
    ],
)
def test_a_command_refuses_a_value_that_a_variable_does_not_have(variable: str, fault: str, tmp_path: Path) -> None:
    agent_file(tmp_path)

    done = [run_cli(tmp_path, *command, script=["Hi."], **{variable: "on"}) for command in (["run", "hi"], ["serve"])]

    assert [(each.returncode, each.stderr) for each in done] == [(2, f"error: {fault}\n")] * 2


def test_a_server_that_refuses_to_start_without_keys_reports_the_misspelt_variable(tmp_path: Path) -> None:
    agent_file(tmp_path)

    done = run_cli(tmp_path, "serve", "--host", "0.0.0.0", GRAPH_AGENT_API_KEY="me:a-key-of-16-letters")

    lines = [line.partition("The environment")[2] or line[:21] for line in done.stderr.splitlines()]
    assert lines == [
        " variable GRAPH_AGENT_API_KEY is no setting of graph-agent. Did you mean GRAPH_AGENT_API_KEYS?",
        "error: host='0.0.0.0'",
    ]


@pytest.mark.parametrize("entry", ["public_url=my.host", "cors_origins=[https://my.page/]"])
def test_an_address_that_no_client_can_have_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=entry.partition("=")[0]):
        settings_from([entry], {})
