"""`graph-agent kube`: the manifests of a resource of the kind `Agent`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from graph_agent.spec import load_spec
from tests.support.cli import run_cli
from tests.support.containers import of_deployment, started, wait_until_ready
from tests.support.kustomize import one

ROOT = Path(__file__).parents[2]
FRAGMENT = r"""
spec:
  container:
    env:
    - name: DEBUG_MOCK_RESPONSES
      value: '["{\"tool_calls\": [{\"id\": \"call_1\", \"name\": \"delegate_to_worker\", \"arguments\": {\"task\": \"process data\"}}]}", "No more actions.", "Done."]'
"""  # noqa: E501 - verbatim, as users of an operator write it
RESOURCE = """
apiVersion: kaos.tools/v1alpha1
kind: Agent
metadata:
  name: coordinator
  namespace: shop
  labels: {team: shop}
spec:
  modelAPI: models
  model: openai/gpt-4o
  mcpServers: [stock-tools]
  waitForDependencies: true
  config:
    description: Coordinates workers.
    instructions: |
      You coordinate.
    reasoningLoopMaxSteps: 7
    memory: {enabled: true, type: local, contextLimit: 4, maxSessions: 1000}
  agentNetwork:
    expose: true
    access: [worker-1]
  container:
    env:
    - {name: GRAPH_AGENT_LOG_LEVEL, value: info}
    - {name: API_KEY, valueFrom: {secretKeyRef: {name: models, key: key}}}
  podSpec:
    nodeSelector: {disk: ssd}
    containers:
    - name: agent
      resources: {limits: {memory: 2Gi}}
    - {name: sidecar, image: sidecar}
status: {phase: Ready}
"""
KEY = "a-key-of-16-characters"


def made(folder: Path, text: str, name: str = "coordinator.yaml") -> list[dict[str, Any]]:
    (folder / name).write_text(text)
    done = run_cli(folder, "kube", name)
    assert done.returncode == 0, done.stderr
    resources = list(yaml.safe_load_all(done.stdout))
    for resource in resources:
        kubernetes_validate.validate(resource, "1.37", strict=True)
    return resources


def with_secret(resources: list[dict[str, Any]], **values: str) -> list[dict[str, Any]]:
    name = one_name(resources)
    return [*resources, {"kind": "Secret", "metadata": {"name": name}, "stringData": values}]


def one_name(resources: list[dict[str, Any]]) -> str:
    [name] = {resource["metadata"]["name"] for resource in resources}
    return str(name)


def test_a_resource_of_an_operator_becomes_an_agent_file_a_service_and_a_deployment(tmp_path: Path) -> None:
    resources = made(tmp_path, RESOURCE)
    (tmp_path / "agent.yaml").write_text(one(resources, "ConfigMap", "coordinator")["data"]["agent.yaml"])
    spec = load_spec(tmp_path / "agent.yaml").model_dump(exclude_unset=True, mode="json")
    pod = one(resources, "Deployment", "coordinator")["spec"]["template"]["spec"]

    assert [resource["kind"] for resource in resources] == ["ConfigMap", "Service", "Deployment"]
    assert {resource["metadata"]["namespace"] for resource in resources} == {"shop"}
    assert {key: value for key, value in spec.items() if key != "path"} == {
        "name": "coordinator",
        "model": {"model": "openai:openai/gpt-4o", "base_url": "${MODEL_API_URL:-http://models:8000/v1}"},
        "description": "Coordinates workers.",
        "system_prompt": "You coordinate.\n",
        "mcp_servers": {
            "stock-tools": {
                "transport": "http",
                "url": "${MCP_SERVER_STOCK_TOOLS_URL:-http://stock-tools:8000/mcp}",
            }
        },
        "delegates": [
            {
                "name": "worker-1",
                "url": "${PEER_AGENT_WORKER_1_CARD_URL:-http://worker-1:8000}",
                "auth": {"bearer_env": "PEER_AGENT_WORKER_1_KEY"},
            }
        ],
        "config": {"max_steps": 7, "context_messages": 4},
    }
    assert [each["name"] for each in pod["containers"]] == ["agent", "sidecar"]
    assert (pod["nodeSelector"], pod["containers"][0]["resources"]["limits"]) == ({"disk": "ssd"}, {"memory": "2Gi"})


def test_the_fragment_alone_is_an_agent_whose_script_runs_to_its_end(tmp_path: Path) -> None:
    keys = {"GRAPH_AGENT_API_KEYS": f"client:{KEY}", "PEER_AGENT_WORKER_KEY": KEY}
    resources = with_secret(made(tmp_path, FRAGMENT), **keys)
    body = {"model": "coordinator", "messages": [{"role": "user", "content": "Process the data."}]}
    # No such agent runs: the delegation fails, and the script goes on.
    container = of_deployment(resources, "coordinator")
    lost = {"PEER_AGENT_WORKER_CARD_URL": "http://127.0.0.1:9"}
    with started(container, tmp_path, **lost) as server, server.http(KEY) as http:
        wait_until_ready(server)
        answer = http.post("/v1/chat/completions", json=body).json()

    assert answer["choices"][0]["message"]["content"] == "Done."


def test_the_scripted_agent_delegates_to_a_worker_of_the_same_kind(tmp_path: Path) -> None:
    worker = "spec: {container: {env: [{name: DEBUG_MOCK_RESPONSES, value: '[\"Processed.\"]'}]}}"
    workers = with_secret(made(tmp_path, worker, "worker.yaml"), GRAPH_AGENT_API_KEYS=f"client:{KEY}")
    keys = {"GRAPH_AGENT_API_KEYS": f"client:{KEY}", "PEER_AGENT_WORKER_KEY": KEY}
    resources = with_secret(made(tmp_path, FRAGMENT), **keys)
    body = {
        "model": "coordinator",
        "messages": [{"role": "user", "content": "Process the data."}],
        "metadata": {"session_id": "s"},
    }
    with started(of_deployment(workers, "worker"), tmp_path) as peer:
        wait_until_ready(peer)
        container = of_deployment(resources, "coordinator")
        with started(container, tmp_path, PEER_AGENT_WORKER_CARD_URL=peer.url) as server, server.http(KEY) as http:
            wait_until_ready(server)
            answer = http.post("/v1/chat/completions", json=body).json()
            events = http.get("/memory/sessions/s/events", params={"type": "delegation_response"}).json()["events"]

    assert answer["choices"][0]["message"]["content"] == "Done."
    assert [(each["target"], each["status"], each["content"]) for each in events] == [
        ("worker", "success", "Processed.")
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("mcpServers", "mcpServer"), "unknown field 'spec.mcpServer'; did you mean 'mcpServers'?"),
        (("reasoningLoopMaxSteps", "reasoningLoopMaxStep"), "did you mean 'reasoningLoopMaxSteps'?"),
        (("kind: Agent", "kind: ModelAPI"), "kind='ModelAPI'; this command reads the kind 'Agent'"),
        (("kaos.tools/v1alpha1", "kaos.tools/v2"), "apiVersion='kaos.tools/v2'; known: graph-agent.dev/v1alpha1"),
        (("  modelAPI: models\n  model: openai/gpt-4o\n", ""), "spec.model is missing"),
    ],
)
def test_a_wrong_field_is_refused_with_the_nearest_name(tmp_path: Path, changed: tuple[str, str], message: str) -> None:
    (tmp_path / "agent.yaml").write_text(RESOURCE.replace(*changed))
    done = run_cli(tmp_path, "kube", "agent.yaml")

    assert (done.returncode, done.stdout) == (2, "")
    assert message.casefold() in " ".join(done.stderr.split()).casefold()


def test_an_agent_file_is_refused_with_the_guide(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: helper\nmodel: openai:gpt-4o-mini\n")

    done = run_cli(tmp_path, "kube", "agent.yaml")

    lines = done.stderr.splitlines()
    named = ["this is an agent file" in done.stderr, "agent-resources.md" in done.stderr, "deploy.md" in done.stderr]
    assert (done.returncode, done.stdout, len(lines), named) == (2, "", 1, [True] * 3)


def test_the_manifests_are_written_for_people(tmp_path: Path) -> None:
    (tmp_path / "coordinator.yaml").write_text(RESOURCE)

    printed = run_cli(tmp_path, "kube", "coordinator.yaml").stdout

    assert ("  agent.yaml: |\n    name: coordinator\n" in printed, "&id" in printed) == (True, False)


def test_the_shipped_definition_is_current_and_accepts_the_resource(tmp_path: Path) -> None:
    printed = yaml.safe_load(run_cli(tmp_path, "kube", "--crd").stdout)
    kubernetes_validate.validate(printed, "1.37", strict=True)
    schema = printed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    wrong = yaml.safe_load(RESOURCE.replace("access: [worker-1]", "access: worker-1"))

    assert printed == yaml.safe_load((ROOT / "deploy/crd/agents.yaml").read_text())
    faults = [[*Draft202012Validator(schema).iter_errors(each)] for each in (yaml.safe_load(RESOURCE), wrong)]
    assert [len(each) for each in faults] == [0, 1]
