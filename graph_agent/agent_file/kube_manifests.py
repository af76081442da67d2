"""Makes the Deployment, Service and ConfigMap of a Kubernetes resource of the kind `Agent`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import yaml

from graph_agent.agent_file.kube_agent import AgentResource
from graph_agent.base.errors import ConfigError

PORT = 8000
_KEYS = "GRAPH_AGENT_API_KEYS"
_MOCK = "DEBUG_MOCK_RESPONSES"
_FILE = "agent.yaml"
_DELEGATION = re.compile(r"\bdelegate_to_([a-z0-9](?:[-a-z0-9]*[a-z0-9])?)")


def agent_file_of(resource: AgentResource) -> dict[str, Any]:
    """Return the content of the agent file of a resource: the keys `name`, `model`, and those that the resource sets.

    Addresses of other Services can be replaced by the variables that KAOS sets, such as `MODEL_API_URL`. With the
    memory disabled, sessions are stored in memory only (`db: memory:`).

    Raises:
        ConfigError: The resource names no model, and its container has no scripted replies.
    """
    spec = resource.spec
    content: dict[str, Any] = {"name": resource.metadata.name, "model": _model(resource)}
    if spec.config.description:
        content["description"] = spec.config.description
    if spec.config.instructions is not None:
        content["system_prompt"] = spec.config.instructions
    if spec.mcpServers:
        content["mcp_servers"] = {
            name: {"transport": "http", "url": f"${{MCP_SERVER_{_variable(name)}_URL:-http://{name}:{PORT}/mcp}}"}
            for name in spec.mcpServers
        }
    if peers := _peers(resource):
        content["delegates"] = [
            {
                "name": name,
                "url": f"${{PEER_AGENT_{_variable(name)}_CARD_URL:-http://{name}:{PORT}}}",
                "auth": {"bearer_env": f"PEER_AGENT_{_variable(name)}_KEY"},
            }
            for name in peers
        ]
    config: dict[str, Any] = {}
    if spec.config.reasoningLoopMaxSteps is not None:
        config["max_steps"] = spec.config.reasoningLoopMaxSteps
    memory = spec.config.memory
    if memory is not None and memory.contextLimit is not None:
        config["context_messages"] = memory.contextLimit
    if config:
        content["config"] = config
    if memory is not None and not memory.enabled:
        content["db"] = "memory:"
    return content


def manifests(resource: AgentResource) -> list[dict[str, Any]]:
    """Return the ConfigMap, the Service unless the agent is not exposed, and the Deployment of a resource.

    The API keys of the agent, and those of its delegates, are in a Secret with the agent's name, which is not made.

    Raises:
        ConfigError: The resource names no model, and its container has no scripted replies.
    """
    name = resource.metadata.name
    text = yaml.safe_dump(agent_file_of(resource), sort_keys=False, allow_unicode=True)
    made = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(resource), "data": {_FILE: text}}]
    if resource.spec.agentNetwork.expose:
        ports = [{"name": "http", "port": PORT, "targetPort": "http"}]
        service = {"selector": _selector(name), "ports": ports}
        made.append({"apiVersion": "v1", "kind": "Service", "metadata": _metadata(resource), "spec": service})
    labels = {**resource.metadata.labels, **_selector(name)}
    # A change of the agent file starts new pods.
    digest = {"graph-agent.dev/agent-file": hashlib.sha256(text.encode()).hexdigest()[:16]}
    pod = {"metadata": {"labels": labels, "annotations": digest}, "spec": _pod(resource)}
    deployment: dict[str, Any] = {"selector": {"matchLabels": _selector(name)}, "template": pod}
    if resource.spec.replicas is not None:
        deployment = {"replicas": resource.spec.replicas, **deployment}
    made.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(resource), "spec": deployment})
    return made


def notes(resource: AgentResource) -> Iterator[str]:
    """Yield sentences about actions and limits for the user: the Secret to create, and fields without effect."""
    name, spec = resource.metadata.name, resource.spec
    keys = [f"--from-literal={_KEYS}=client:A-KEY-OF-16-CHARACTERS-OR-MORE"]
    keys += [f"--from-literal=PEER_AGENT_{_variable(peer)}_KEY=…" for peer in _peers(resource)]
    yield f"Create the Secret {name!r} with the agent's keys: kubectl create secret generic {name} {' '.join(keys)}"
    memory = spec.config.memory
    ignored = [] if memory is None else sorted(memory.model_fields_set & {"type", "maxSessions", "maxSessionEvents"})
    for field in ignored:
        yield f"spec.config.memory.{field} has no effect: sessions are kept until `graph-agent prune` deletes them."
    if (spec.replicas or 0) > 1 and not _has(resource, "GRAPH_AGENT_DB"):
        yield "Several pods share no sessions without a PostgreSQL database: set GRAPH_AGENT_DB in spec.container.env."


def _model(resource: AgentResource) -> str | dict[str, Any]:
    """Return the model of an agent file: `provider:name`, or a mapping with the address of the resource's `modelAPI`.

    `provider/name` is rewritten. Without a model, an agent with scripted replies gets a name that is never asked; any
    other raises `ConfigError`.
    """
    spec = resource.spec
    if spec.modelAPI is not None:
        name = spec.model or "default"
        return {"model": f"openai:{name}", "base_url": f"${{MODEL_API_URL:-http://{spec.modelAPI}:{PORT}/v1}}"}
    if spec.model is not None:
        # LiteLLM, and so KAOS, writes provider/name.
        return spec.model if ":" in spec.model.partition("/")[0] else spec.model.replace("/", ":", 1)
    if _has(resource, _MOCK):
        return "openai:scripted"  # never asked
    raise ConfigError(
        "Agent resource: spec.model is missing; write e.g. 'model: openai:gpt-4o-mini', or with 'modelAPI' the name of "
        f"a model there. An agent with {_MOCK} in spec.container.env needs none."
    )


def _peers(resource: AgentResource) -> list[str]:
    """Return the agents to which this one may delegate: those of `agentNetwork.access`, if it is given.

    Otherwise those that the script of a scripted agent calls; empty without a script.
    """
    if "access" in resource.spec.agentNetwork.model_fields_set:
        return resource.spec.agentNetwork.access
    scripts = [each.get("value", "") for each in _environment(resource) if each["name"] == _MOCK]
    return list(dict.fromkeys(_DELEGATION.findall("".join(scripts))))


def _has(resource: AgentResource, variable: str) -> bool:
    """Whether the container has an environment variable with this name."""
    return any(each["name"] == variable for each in _environment(resource))


def _environment(resource: AgentResource) -> list[dict[str, Any]]:
    """Return the variables of the container as in a Pod, those of `config.env` first."""
    given = [*resource.spec.config.env, *resource.spec.container.env]
    return [each.model_dump(exclude_none=True) for each in given]


def _pod(resource: AgentResource) -> dict[str, Any]:
    """Return the `spec` of the Pod, with the fields of `podSpec` merged into it, as `_merged` does.

    The image is the container's, or that of this version. Resources are those of the container, else of the resource,
    else a default.
    """
    name, container = resource.metadata.name, resource.spec.container
    probe = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 5}
    ready = {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 6}
    made: dict[str, Any] = {
        "name": "agent",
        "image": container.image or f"graph-agent:{metadata.version('graph-agent')}",
        "args": ["serve"],
        "ports": [{"name": "http", "containerPort": PORT}],
        "envFrom": [{"secretRef": {"name": name}}],
        "env": _environment(resource),
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": ready,
        "resources": container.resources
        or resource.spec.resources
        or {"requests": {"cpu": "250m", "memory": "384Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "agent", "mountPath": "/etc/graph-agent", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "data", "mountPath": "/data"},
        ],
    }
    if container.imagePullPolicy is not None:
        made["imagePullPolicy"] = container.imagePullPolicy
    pod = {
        "automountServiceAccountToken": False,
        # Otherwise a Service named graph-agent sets GRAPH_AGENT_PORT to an address.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [made],
        "volumes": [
            {"name": "agent", "configMap": {"name": name}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "data", "emptyDir": {"sizeLimit": "256Mi"}},
        ],
    }
    merged: dict[str, Any] = _merged(pod, resource.spec.podSpec)
    return merged


def _merged(own: Any, given: Any) -> Any:
    """Return a value with another merged into it, as a strategic merge patch does.

    Mappings are merged key by key. Lists are merged by the `name` of their items, if all items have one, and items of
    `given` with new names are appended. In any other case `given` replaces `own`.
    """
    if isinstance(own, Mapping) and isinstance(given, Mapping):
        return {**own, **{key: _merged(own[key], value) if key in own else value for key, value in given.items()}}
    if not (isinstance(own, list) and isinstance(given, list) and all(_is_named(each) for each in [*own, *given])):
        return given
    added = {each["name"]: each for each in given}
    kept = [_merged(each, added.pop(each["name"], {})) for each in own]
    return [*kept, *added.values()]


def _is_named(item: Any) -> bool:
    """Whether an item of a list is a mapping with a `name`."""
    return isinstance(item, Mapping) and "name" in item


def _metadata(resource: AgentResource) -> dict[str, Any]:
    """Return the `metadata` of each resource that is made: name, labels, and, if given, namespace and annotations."""
    given = resource.metadata
    labels = {**given.labels, **_selector(given.name), "app.kubernetes.io/managed-by": "graph-agent"}
    made: dict[str, Any] = {"name": given.name, "labels": labels}
    if given.namespace is not None:
        made["namespace"] = given.namespace
    if given.annotations:
        made["annotations"] = dict(given.annotations)
    return made


def _selector(name: str) -> dict[str, str]:
    """Return the label by which the Service and the Deployment find the agent's pods."""
    return {"app.kubernetes.io/name": name}


def _variable(name: str) -> str:
    """Return the name of a Service as a part of a variable's name: in upper case, with `_` in place of `-`."""
    return name.upper().replace("-", "_")
