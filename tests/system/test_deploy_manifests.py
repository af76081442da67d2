"""The Kubernetes manifests and the compose file in `deploy/`: their schemas, and that their parts fit together."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from graph_agent.errors import ConfigError
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.interfaces.server.settings import settings_from
from graph_agent.server import ServerSettings, read_keys
from graph_agent.spec import load_spec
from scripts.reference.environment import names
from tests.support.doc_pages import read_blocks
from tests.support.image import read_stages
from tests.support.kustomize import Resource, containers_of, inputs_of, one, read_kustomization, render

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FOLDERS = [path.parent for path in sorted(KUBERNETES.rglob("kustomization.yaml"))]
WHOLE = ["base", "overlays/mock"]
UVICORN_S, CLOSING_S = 5, 10
"""Seconds that uvicorn waits after `drain_s`, and that MCP servers get to stop."""
OTHER_VARIABLES = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "PGDATA", "HOST", "PORT"}
"""Variables of the images of other programs."""
VERSION = "1.37"


@pytest.fixture(params=WHOLE)
def resources(request: pytest.FixtureRequest) -> list[Resource]:
    return render(KUBERNETES / request.param)


def folder_id(folder: Path) -> str:
    return str(folder.relative_to(KUBERNETES))


@pytest.mark.parametrize("folder", FOLDERS, ids=folder_id)
def test_every_file_of_a_kustomization_is_named_in_it(folder: Path) -> None:
    files = {path.name for path in folder.iterdir() if path.is_file()} - {"kustomization.yaml"}

    assert inputs_of(folder) == files


@pytest.mark.parametrize("folder", FOLDERS, ids=folder_id)
def test_kustomize_renders_the_same_resources(folder: Path) -> None:
    program = shutil.which("kustomize") or shutil.which("kubectl")
    if program is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    command = [program, "build" if Path(program).name == "kustomize" else "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    ours = render(folder)
    generated = [each["metadata"]["name"] for each in ours if each["kind"] == "ConfigMap"]
    text = re.sub(rf"\b({'|'.join(generated)})-[a-z0-9]{{10}}\b", r"\1", done.stdout)
    theirs = list(yaml.safe_load_all(text))

    def key(resource: Resource) -> tuple[str, str]:
        return resource["kind"], resource["metadata"]["name"]

    assert sorted(theirs, key=key) == sorted(ours, key=key)


def test_resources_fit_the_schemas_of_kubernetes(resources: list[Resource]) -> None:
    for resource in resources:
        kubernetes_validate.validate(resource, VERSION, strict=True)


def test_the_base_has_every_kind_of_a_production_deployment() -> None:
    assert sorted(each["kind"] for each in render(KUBERNETES / "base")) == [
        "ConfigMap",
        "ConfigMap",
        "Deployment",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Secret",
        "Service",
        "ServiceAccount",
    ]


def test_references_between_resources_have_a_target(resources: list[Resource]) -> None:
    assert list(dangling(resources)) == []


def dangling(resources: list[Resource]) -> Iterator[str]:
    """References without a target: names, keys, selectors, ports and volumes."""
    known = {(each["kind"], each["metadata"]["name"]): each for each in resources}
    pods = [each["spec"]["template"] for each in resources if containers_of(each)]
    for name, pod in [
        (each["metadata"]["name"], each["spec"]["template"]["spec"]) for each in resources if containers_of(each)
    ]:
        yield from (f"{name}: {what}" for what in _dangling_of_pod(pod, known))
    for (kind, name), each in known.items():
        spec = each.get("spec", {})
        if kind == "Service":
            found = [pod for pod in pods if _selects({"matchLabels": spec["selector"]}, pod["metadata"]["labels"])]
            ports = {port["name"] for pod in found for one in pod["spec"]["containers"] for port in one["ports"]}
            yield from (
                f"{name}: port {port['targetPort']}" for port in spec["ports"] if port["targetPort"] not in ports
            )
        elif kind in ("Deployment", "PodDisruptionBudget", "NetworkPolicy"):
            selector = spec.get("selector") or spec["podSelector"]
            if not any(_selects(selector, pod["metadata"]["labels"]) for pod in pods):
                yield f"{kind} {name}: {selector}"
        elif kind == "HorizontalPodAutoscaler":
            target = spec["scaleTargetRef"]
            if (target["kind"], target["name"]) not in known:
                yield f"{name}: {target}"


def _dangling_of_pod(pod: dict[str, Any], known: dict[tuple[str, str], Resource]) -> Iterator[str]:
    named = {volume["name"]: volume for volume in pod.get("volumes", ())}
    wanted = [("ConfigMap", volume["configMap"]["name"]) for volume in named.values() if "configMap" in volume]
    if "serviceAccountName" in pod:
        wanted.append(("ServiceAccount", pod["serviceAccountName"]))
    for container in pod["containers"]:
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        yield from (f"volume {name}" for name in mounted ^ named.keys())
        for source in container.get("envFrom", ()):
            wanted += [(_KIND[kind], source[kind]["name"]) for kind in source]
        for variable in container.get("env", ()):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                wanted.append(("Secret", reference["name"]))
                secret = known.get(("Secret", reference["name"]), {})
                if secret and reference["key"] not in secret["stringData"]:
                    yield f"key {reference['key']}"
        ports = {port["name"] for port in container["ports"]}
        probes = [container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in container]
        used = {(probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port") for probe in probes} - {None}
        yield from (f"port {port}" for port in used - ports)
    yield from (f"{kind} {name}" for kind, name in wanted if (kind, name) not in known)


_KIND = {"configMapRef": "ConfigMap", "secretRef": "Secret"}


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector matches; `In` is the only operator in use."""
    fits = selector.get("matchLabels", {}).items() <= labels.items()
    return fits and all(labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", ()))


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Service", ("spec", "selector", "app.kubernetes.io/name"), "other"),
        ("Service", ("spec", "ports", 0, "targetPort"), "other"),
        ("HorizontalPodAutoscaler", ("spec", "scaleTargetRef", "name"), "other"),
        ("PodDisruptionBudget", ("spec", "selector", "matchLabels", "app.kubernetes.io/name"), "other"),
        ("Deployment", ("spec", "selector", "matchLabels", "app.kubernetes.io/name"), "other"),
        ("Deployment", ("spec", "template", "spec", "serviceAccountName"), "other"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "envFrom", 0, "configMapRef", "name"), "other"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "volumeMounts", 0, "name"), "other"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "livenessProbe", "httpGet", "port"), "other"),
    ],
    ids=lambda each: str(each[-1]) if isinstance(each, tuple) else "",
)
def test_a_reference_without_a_target_is_found(kind: str, path: tuple[Any, ...], value: str) -> None:
    resources = render(KUBERNETES / "base")
    place: Any = one(resources, kind, "graph-agent")
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value

    assert list(dangling(resources)) != []


def test_every_variable_is_known(resources: list[Resource]) -> None:
    given = {
        *(name for each in resources if each["metadata"]["name"].endswith("-settings") for name in each["data"]),
        *(name for each in resources if each["kind"] == "Secret" for name in each["stringData"]),
        *(variable["name"] for each in resources for c in containers_of(each) for variable in c.get("env", ())),
    }
    agent = (KUBERNETES / "base/agent.yaml").read_text(encoding="utf-8")
    of_agent_file = set(re.findall(r"_env: (\w+)", agent))

    assert given - names() - of_agent_file - OTHER_VARIABLES == set()


def test_settings_of_the_config_map_are_valid() -> None:
    data = one(render(KUBERNETES / "base"), "ConfigMap", "graph-agent-settings")["data"]

    assert settings_from([], data) != ServerSettings()


def test_placeholder_keys_are_refused() -> None:
    [secret] = [each for each in render(KUBERNETES / "base") if each["kind"] == "Secret"]

    with pytest.raises(ConfigError, match="a key has 16 characters or more"):
        read_keys(environment=secret["stringData"])


def test_every_container_is_confined(resources: list[Resource]) -> None:
    for pod in (each["spec"]["template"]["spec"] for each in resources if containers_of(each)):
        of_pod = pod["securityContext"]
        assert (of_pod["runAsNonRoot"], of_pod["seccompProfile"], pod["automountServiceAccountToken"]) == (
            True,
            {"type": "RuntimeDefault"},
            False,
        )
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_a_pod_is_given_the_time_to_drain() -> None:
    resources = render(KUBERNETES / "base")
    drain_s = settings_from([], one(resources, "ConfigMap", "graph-agent-settings")["data"]).drain_s
    pod = one(resources, "Deployment", "graph-agent")["spec"]["template"]["spec"]
    before_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]

    assert before_s + drain_s + UVICORN_S + CLOSING_S <= pod["terminationGracePeriodSeconds"]


def test_the_autoscaler_uses_a_gauge_of_the_server() -> None:
    [metric] = one(render(KUBERNETES / "base"), "HorizontalPodAutoscaler", "graph-agent")["spec"]["metrics"]

    assert f"# TYPE {metric['pods']['metric']['name']} gauge" in Metrics().text().decode()


def test_probes_ask_the_routes_for_health_and_readiness(resources: list[Resource]) -> None:
    for container in (c for each in resources for c in containers_of(each) if c.get("args") == ["serve"]):
        probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
        assert probes == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}


def test_manifests_fit_the_image(resources: list[Resource]) -> None:
    image = read_stages(DEPLOY / "Dockerfile")[-1]
    user, _, group = image.last("USER").words[0].partition(":")
    config = Path(image.environment["GRAPH_AGENT_CONFIG"])
    pods = [each["spec"]["template"]["spec"] for each in resources if containers_of(each)]
    own = [pod for pod in pods if pod["containers"][0]["image"].startswith("graph-agent:")]

    assert {pod["containers"][0]["image"] for pod in own} == {f"graph-agent:{metadata.version('graph-agent')}"}
    for pod in own:
        [container] = pod["containers"]
        context = pod["securityContext"]
        assert (str(context["runAsUser"]), str(context["runAsGroup"])) == (user, group)
        assert [str(port["containerPort"]) for port in container["ports"]] == [image.environment["GRAPH_AGENT_PORT"]]
        if container.get("args") == ["serve"]:
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts == {str(config.parent), "/tmp", image.last("WORKDIR").words[0]}


def test_addresses_of_the_agent_file_are_services_that_its_pods_may_reach() -> None:
    resources = render(KUBERNETES / "overlays/mock")
    spec = load_spec(KUBERNETES / "base/agent.yaml")
    urls = [server["url"] for server in spec.mcp_servers.values()] + [each.url for each in spec.delegates]
    urls.append(one(resources, "ConfigMap", "graph-agent-settings")["data"]["GRAPH_AGENT_DB"])
    policy = one(resources, "NetworkPolicy", "graph-agent")["spec"]["egress"]
    reached = []
    for url in urls:
        host, port = re.search(r"//(?:\w+@)?(\w+):(\d+)", url).groups()  # type: ignore[union-attr] # fails if none
        service = one(resources, "Service", host)["spec"]
        assert [each["port"] for each in service["ports"]] == [int(port)]
        labels = one(resources, "Deployment", host)["spec"]["template"]["metadata"]["labels"]
        rules = [
            rule
            for rule in policy
            if any(_selects(to["podSelector"], labels) for to in rule["to"] if "podSelector" in to)
        ]
        reached.append((host, any(each["port"] == int(port) for rule in rules for each in rule["ports"])))

    assert reached == [("stock", True), ("researcher", True), ("postgres", True)]


def test_the_overlay_of_the_guide_can_be_rendered(tmp_path: Path) -> None:
    [block] = [each for each in read_blocks(ROOT / "docs/guides/deploy.md") if each.text.startswith("apiVersion: kust")]
    folder = tmp_path / "overlays/shop"
    folder.mkdir(parents=True)
    (tmp_path / "base").symlink_to(KUBERNETES / "base")
    (folder / "kustomization.yaml").write_text(block.text)
    (folder / "agent.yaml").write_text("name: shop\nmodel: openai:gpt-4o-mini\n")
    (folder / "secret.yaml").write_text((KUBERNETES / "base/secret.yaml").read_text())

    resources = render(folder)

    assert one(resources, "ConfigMap", "graph-agent")["data"] == {
        "agent.yaml": "name: shop\nmodel: openai:gpt-4o-mini\n"
    }
    assert one(resources, "ConfigMap", "graph-agent-settings")["data"]["GRAPH_AGENT_DB"].endswith(
        "@db.example:5432/agents"
    )
    assert list(dangling(resources)) == []


def test_the_guides_configuration_of_prometheus_is_that_of_the_autoscaler() -> None:
    blocks = [
        each
        for each in read_blocks(ROOT / "docs/guides/deploy.md")
        if "Prometheus" in each.directives.get("not run", "")
    ]
    scrape, adapter = (yaml.safe_load(each.text) for each in blocks)
    [metric] = one(render(KUBERNETES / "base"), "HorizontalPodAutoscaler", "graph-agent")["spec"]["metrics"]
    [rule] = adapter["rules"]["custom"]

    assert rule["seriesQuery"].partition("{")[0] == metric["pods"]["metric"]["name"]
    assert scrape["scrape_configs"][0]["relabel_configs"][0]["regex"] == "graph-agent"


def test_the_compose_file_fits_its_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*command, str(DEPLOY / "compose.yaml")], capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_services_of_the_compose_file_wait_for_healthy_ones() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    image = read_stages(DEPLOY / "Dockerfile")[-1]
    checked = {name for name, each in services.items() if "healthcheck" in each or "entrypoint" not in each}
    waited = services["server"]["depends_on"]
    files = [volume.split(":")[0] for each in services.values() for volume in each["volumes"] if volume[0] == "."]

    assert image.last("HEALTHCHECK").is_exec
    assert (waited.keys() - checked, {each["condition"] for each in waited.values()}) == (set(), {"service_healthy"})
    assert [name for name in files if not (DEPLOY / name).is_file()] == []


def test_variables_of_the_compose_file_are_known() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    given = {name for each in services.values() for name in each.get("environment", ())}

    assert given - names() - {"RESEARCHER_KEY"} - OTHER_VARIABLES == set()


def test_compose_leaves_the_server_the_time_to_drain() -> None:
    server = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["server"]
    drain_s = settings_from([], server["environment"]).drain_s

    assert drain_s + UVICORN_S + CLOSING_S <= int(server["stop_grace_period"].removesuffix("s"))


def test_a_key_that_this_renderer_does_not_know_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("replacements: []\n")

    with pytest.raises(AssertionError, match="replacements"):
        read_kustomization(tmp_path)
