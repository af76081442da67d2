"""Reads and validates a Kubernetes resource of the kind `Agent`, in the form that users of agent operators write.

The fields are those of the `Agent` of KAOS (`kaos.tools/v1alpha1`), whose files are accepted as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graph_agent.base._internal.validation_text import describe_fields, explain
from graph_agent.base._internal.yaml_files import parse_yaml
from graph_agent.base.errors import ConfigError

GROUP, VERSION = "graph-agent.dev", "v1alpha1"
API_VERSIONS = (f"{GROUP}/{VERSION}", "kaos.tools/v1alpha1", "ethical.institute/v1alpha1")
"""Accepted values of `apiVersion`: the shipped definition's, and those of KAOS."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""Name of a resource: lower case letters, digits and `-`, at most 63."""
_CONFIG = ConfigDict(extra="forbid", frozen=True, defer_build=True, json_schema_extra=describe_fields)


class EnvVariable(BaseModel):
    """A variable of the container, as in a Pod."""

    model_config = _CONFIG

    name: str = Field(min_length=1)
    """Name of the variable."""
    value: str | None = None
    """Its value."""
    valueFrom: dict[str, dict[str, Any]] | None = None
    """Source of its value, such as `secretKeyRef`."""


class StoredSessions(BaseModel):
    """Settings of an operator's store of sessions; the database of this package has its own."""

    model_config = _CONFIG

    enabled: bool = True
    """Whether sessions are stored: without them, each request stands alone."""
    type: str = "local"
    """Kind of the store; without effect here."""
    contextLimit: int | None = Field(default=None, ge=1)
    """Number of the conversation's last messages that a delegate gets with its task."""
    maxSessions: int | None = Field(default=None, ge=1)
    """Without effect here: `graph-agent prune` deletes old sessions."""
    maxSessionEvents: int | None = Field(default=None, ge=1)
    """Without effect here: sessions keep their whole history."""


class AgentConfig(BaseModel):
    """What the agent does."""

    model_config = _CONFIG

    description: str = ""
    """Purpose of the agent, in one sentence; part of its A2A card."""
    instructions: str | None = None
    """The system prompt."""
    reasoningLoopMaxSteps: int | None = Field(default=None, ge=1, le=100)
    """Maximum plans of the model for one message; 5 by default."""
    memory: StoredSessions | None = None
    """Settings of stored sessions."""
    env: list[EnvVariable] = []
    """Further variables of the container, in older files."""


class AgentNetwork(BaseModel):
    """Who reaches the agent, and whom it reaches."""

    model_config = _CONFIG

    expose: bool = True
    """Whether a Service exposes the agent in the cluster."""
    access: list[Name] = []
    """Names of agents in the same namespace, to which this one may delegate tasks."""


class AgentContainer(BaseModel):
    """Settings of the agent's container."""

    model_config = _CONFIG

    image: str | None = None
    """The image, which `deploy/Dockerfile` builds; `graph-agent` with this version by default."""
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled, as in a Pod."""
    env: list[EnvVariable] = []
    """Further variables."""
    resources: dict[str, Any] | None = None
    """Requests and limits, as in a Pod."""


class AgentResourceSpec(BaseModel):
    """The content of `spec`."""

    model_config = _CONFIG

    model: str | None = Field(default=None, min_length=1)
    """The model: its name at the `modelAPI`, or `provider:name` without one."""
    modelAPI: Name | None = None
    """Name of a Service with OpenAI's API in the same namespace, on port 8000."""
    mcpServers: list[Name] = []
    """Names of Services of MCP servers in the same namespace, at `/mcp` on port 8000."""
    waitForDependencies: bool = True
    """Without effect here: `/ready` fails while a dependency is down, so that no requests arrive."""
    config: AgentConfig = AgentConfig()
    """What the agent does."""
    agentNetwork: AgentNetwork = AgentNetwork()
    """Who reaches the agent, and whom it reaches."""
    container: AgentContainer = AgentContainer()
    """Settings of the container."""
    podSpec: dict[str, Any] = {}
    """Fields that are merged into the Pod's `spec`; items of lists are matched by their `name`."""
    replicas: int | None = Field(default=None, ge=0)
    """Number of pods; 1 by default."""
    resources: dict[str, Any] | None = None
    """Requests and limits, in older files."""


class ResourceNames(BaseModel):
    """The names of a resource."""

    model_config = _CONFIG

    name: Name = "agent"
    """Name of the agent, and of the resources that are made."""
    namespace: Name | None = None
    """Namespace of the resources; None for the current one of `kubectl`."""
    labels: dict[str, str] = {}
    """Labels of the resources."""
    annotations: dict[str, str] = {}
    """Annotations of the resources."""


class AgentResource(BaseModel):
    """A resource of the kind `Agent`. Unknown fields are errors."""

    model_config = _CONFIG

    apiVersion: str = API_VERSIONS[0]
    """Group and version."""
    kind: Literal["Agent"] = "Agent"
    """The kind."""
    metadata: ResourceNames = ResourceNames()
    """The names."""
    spec: AgentResourceSpec
    """The agent."""
    status: dict[str, Any] | None = Field(default=None, exclude=True)
    """What an operator has added, ignored."""


def read_agent_resource(file: Path) -> AgentResource:
    """Read a resource from a YAML file; without `metadata.name`, it has the name of the file.

    Raises:
        ConfigError: The file is missing, is not YAML, has several documents, another `kind` or `apiVersion`, or an
            unknown field or invalid value; the message names the nearest field.
    """
    where = f"Agent resource {file}"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}.") from None
    content = parse_yaml(text, where)
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: expected fields such as 'kind' and 'spec', got {content!r}.")
    if "spec" not in content and "model" in content:
        raise ConfigError(
            f"{where}: this is an agent file, and 'graph-agent kube' reads a resource of the kind Agent (the guide "
            "'Agent resources', docs/guides/agent-resources.md). To deploy the agent file itself, see "
            "docs/guides/deploy.md."
        )
    if content.get("kind", "Agent") != "Agent":
        raise ConfigError(f"{where}: kind={content['kind']!r}; this command reads the kind 'Agent'.")
    if (version := content.get("apiVersion", API_VERSIONS[0])) not in API_VERSIONS:
        raise ConfigError(f"{where}: apiVersion={version!r}; known: {', '.join(API_VERSIONS)}.")
    metadata = content.get("metadata") or {}
    if isinstance(metadata, dict) and "name" not in metadata:
        # A file written by hand often has no name, and Kubernetes accepts only some characters in it.
        name = re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")[:63].strip("-")
        content = {**content, "metadata": {**metadata, "name": name or "agent"}}
    try:
        return AgentResource(**content)
    except ValidationError as error:
        raise ConfigError(explain(error, where, AgentResource)) from None


def definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition of the kind `Agent`, with its schema."""
    schema = AgentResource.model_json_schema()
    properties = _inlined(schema, schema.get("$defs", {}))["properties"]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "description": properties["spec"].get("description", ""),
                "type": "object",
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": properties["spec"],
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        },
    }
    names = {"kind": "Agent", "listKind": "AgentList", "plural": "agents", "singular": "agent"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"agents.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a JSON schema in the structural form that Kubernetes accepts.

    References are replaced by the `definitions` that they name, and optional fields lose the alternative null. Titles,
    defaults and constants are left out. An object without listed properties accepts any fields, unless all its values
    are texts.
    """
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return _inlined({**target, **{key: value for key, value in schema.items() if key != "$ref"}}, definitions)
    if "anyOf" in schema:
        # Pydantic writes an optional field as a union with null, which a structural schema must not have.
        [given] = [each for each in schema["anyOf"] if each.get("type") != "null"]
        return _inlined({**given, **{key: value for key, value in schema.items() if key != "anyOf"}}, definitions)
    # Kubernetes refuses some of these, and would write a default into each stored resource.
    left_out = {"title", "$defs", "default", "additionalProperties", "const"}
    made = {key: value for key, value in schema.items() if key not in left_out}
    if "properties" in made:
        made["properties"] = {name: _inlined(each, definitions) for name, each in made["properties"].items()}
    elif made.get("type") == "object":
        values = schema.get("additionalProperties")
        if isinstance(values, dict) and values.get("type") == "string":
            made["additionalProperties"] = {"type": "string"}
        else:
            made["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in made:
        made["items"] = _inlined(made["items"], definitions)
    return made
