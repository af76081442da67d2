"""Reads and validates the agent file: an agent declared in YAML.

```yaml
name: hotel
model: openai:gpt-4o-mini
tools: ["my_tools:search"]
```
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError, field_validator
from pydantic.json_schema import SkipJsonSchema

from graph_agent.agent_file.credentials import CredentialSource, check_sources, keys_from, loop_fields_from
from graph_agent.agent_file.delegates import DelegateSpec, SkillSpec
from graph_agent.agent_file.imports import HookSpec, MiddlewareSpec
from graph_agent.base._internal.credential_headers import check_headers
from graph_agent.base._internal.own_files import record_file, record_import_folder
from graph_agent.base._internal.validation_text import describe_fields, explain
from graph_agent.base._internal.yaml_files import parse_yaml
from graph_agent.base.database_urls import check_cache
from graph_agent.base.errors import ConfigError, did_you_mean, located
from graph_agent.base.settings.config import LoopConfig
from graph_agent.integrations.workspace.shell import Shell
from graph_agent.models.endpoints import ModelEndpoint, read_endpoint

DEFAULT_DB = "sqlite:///graph_agent.db"
TODAY_VARIABLE = "GRAPH_AGENT_TODAY"
"""Environment variable with the ISO date that a stdio MCP server uses as today; not set for the real date."""
CONFIG_ALIASES = {"max_rounds": "max_steps"}
"""Alias in an agent file → field of `LoopConfig`."""
SYSTEM_VARIABLES = frozenset({"name", "description", "today"})
"""Variables that a system prompt's template may use; `today` is an ISO date."""


_Rule = Annotated[str, Field(min_length=1)]
_Folder = Annotated[str, Field(min_length=1)]


class WorkspaceSpec(BaseModel):
    """A folder whose files the agent reads and writes, and in which it runs commands; see `workspace_tools`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, json_schema_extra=describe_fields)

    folder: str = "."
    """The folder, relative to the file."""
    write: bool = True
    """Whether the tools `write_file` and `edit_file` are offered."""
    shell: bool | Shell = False
    """Whether the tool `run_command` is offered, and how it runs commands."""
    approve_edits: bool = False
    """Whether a person must approve each call of `write_file` and `edit_file`."""
    protected: list[str] = [".git"]
    """Paths below the folder that are never written, each with all that is below it."""


class MemorySpec(BaseModel):
    """Facts of users across sessions; see `open_memory`. They are kept in the database of the sessions."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, json_schema_extra=describe_fields)

    embedding: str | None = Field(default=None, min_length=1)
    """Embedding model by whose vectors facts are found: `provider:name`, or `module:attribute` with an `Embeddings`
    object or a function that returns one; none to find them by their words."""
    dims: PositiveInt | None = None
    """Length of the model's vectors; asked of the model if absent."""
    recall: int = Field(default=5, ge=0, le=100)
    """Maximum number of facts that are added to the requests of each message; 0 for none."""
    extract: bool = False
    """Whether the agent's model extracts facts from each message after its answer, by a further request."""


def _memory_settings(given: Any) -> Any:
    """Convert the key `memory`: `true` to a mapping without settings, `false` to None; anything else is returned
    unchanged.
    """
    return ({} if given else None) if isinstance(given, bool) else given


class AgentSpec(BaseModel):
    """The validated content of an agent file. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, json_schema_extra=describe_fields)

    name: str = Field(min_length=1)
    """The agent's name, also its model name in the chat APIs of `graph-agent serve`."""
    model: str | ModelEndpoint | list[str | ModelEndpoint]
    """`provider:name`, `module:factory`, or a mapping of a `provider:name` and its server: `model`, `base_url`,
    `headers`, `api_key_env`; in a list, the first one that can be built is used."""
    description: str = ""
    """Purpose of the agent, in one sentence; part of its A2A card."""
    system_prompt: str = "You are a helpful assistant."
    """Inline text, or a prompt file ending in `.yaml` or `.yml`; a Jinja template may use `name`, `description`
    and `today`, an ISO date."""
    prompts: dict[str, str] = {}
    """Name of a built-in prompt → prompt file that replaces it."""
    tools: list[str | dict[str, Any]] = []
    """Tools, each `module:attribute`: a LangChain tool, or a function with type hints and a docstring. A mapping is a
    tool that the model's provider runs, in the form of its API, e.g. `{type: web_search}`."""
    workspace: WorkspaceSpec | None = None
    """Folder for the tools of `graph_agent.workspace`; none by default. Its commands need the extra `workspace`."""
    memory: Annotated[
        MemorySpec | None, BeforeValidator(_memory_settings, json_schema_input_type=MemorySpec | bool | None)
    ] = None
    """Facts of users across sessions, with the tools `manage_memory` and `search_memory`; `true` for the defaults, none
    by default. It needs the extra `memory`."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    """Server name → connection in the form of `open_mcp_tools`, e.g. `{transport: sse, url: …}`.

    A null variable in a stdio connection's `env` is inherited from this process's environment, if set there.
    """
    delegates: list[DelegateSpec] = []
    """Agents that receive tasks: graphs of this process, or remote agents."""
    skills: list[_Folder | SkillSpec] = []
    """Folders of Agent Skills, each a skill or a folder that holds skills, relative to the file; and skills that only
    the agent's A2A card lists, in addition to its tools, each a mapping."""
    push_notifications: bool = False
    """Whether A2A clients may subscribe to changes of their tasks, which are sent to a public URL that they name."""
    hooks: list[HookSpec] = []
    """Loop hooks, each `module.Class`, or `{use: module.Class, with: {argument: value}}`; `history_compression` and
    `web_search` are hooks of this package."""
    middleware: list[MiddlewareSpec] = []
    """LangChain middleware, outermost first: a name of `langchain.agents.middleware`, or in the form of `hooks`."""
    response_format: str | dict[str, Any] | None = None
    """Schema of the answer: `module:Class`, a file with a JSON schema (`.json`, `.yaml` or `.yml`), or the schema."""
    approve: _Rule | list[_Rule] | SkipJsonSchema[None] = None
    """Calls that a person must approve: patterns of names such as `write_*` or `delegate_to_bank`, and functions of a
    call, each `module:function`. One item needs no list; patterns of `config.approve` count too."""
    config: dict[str, Any] = {}
    """Fields of `LoopConfig`; `max_rounds` is an alias of `max_steps`."""
    credentials: dict[str, CredentialSource] = {}
    """Credential name → `{env: NAME}`: secrets for tools, read when the agent is opened."""
    credential_headers: dict[str, str] = {}
    """Credential name → the HTTP header in which a client of a served agent may send its own for one request."""
    db: str = Field(DEFAULT_DB, min_length=1)
    """Database of the sessions: `sqlite:///FILE`, relative to the current folder, `postgresql://…`, or `memory:`,
    which ends with the process."""
    cache: str | None = None
    """Cache of plans, reused for identical requests for `config.plan_cache_ttl_s` seconds: `memory`, for the lifetime
    of the process, or `sqlite:///FILE`, relative to the current folder."""
    path: Path = Field(default=Path(), exclude=True)
    """The path of the file; set by `load_spec`, never in the file."""

    @field_validator("response_format", mode="before")
    @classmethod
    def _check_response_format(cls, given: Any) -> Any:
        """Return the response format unchanged; raise `ValueError` if it is neither a text, nor a mapping, nor None."""
        if given is not None and not isinstance(given, str | dict):
            raise ValueError(
                "name a class as 'module:Class' or a schema file ending in .json, .yaml or .yml, or write the JSON "
                "schema itself"
            )
        return given

    @field_validator("approve", mode="before")
    @classmethod
    def _check_approve(cls, given: Any) -> Any:
        """Return the key unchanged; raise `ValueError` unless it is a text, or a list of texts that are not empty."""
        # Also for an empty value: a file whose items are commented out would silently have no approvals.
        rules = [given] if isinstance(given, str) else given
        if not isinstance(rules, list) or not all(isinstance(rule, str) and rule for rule in rules):
            raise ValueError("list patterns of names such as 'write_*', and functions as 'module:function'")
        return given

    @field_validator("model", mode="before")
    @classmethod
    def _check_model(cls, given: Any) -> Any:
        """Return the model, or the list of models, with mappings converted to endpoints.

        Raises `ValueError` if there is no model, or one is neither a name nor an endpoint.
        """
        models = [_read_model(each) for each in (given if isinstance(given, list) else [given])]
        if not models or None in models:
            raise ValueError("name a model as 'provider:name' or 'module:factory', or give a list of these")
        return models if isinstance(given, list) else models[0]

    @field_validator("cache")
    @classmethod
    def _check_cache(cls, url: str | None) -> str | None:
        """Raise `ValueError` if the URL is none of a plan cache; None is accepted."""
        return url if url is None else check_cache(url)

    @field_validator("config")
    @classmethod
    def _resolve_aliases(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Rename aliases of fields; raise `ValueError` if a field is given under both of its names."""
        for alias, name in CONFIG_ALIASES.items():
            if alias in config and name in config:
                raise ValueError(f"{alias} and {name} are two names of one field; give one of them")
        return {CONFIG_ALIASES.get(name, name): value for name, value in config.items()}

    @field_validator("config")
    @classmethod
    def _check_fallback_models(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Return the config unchanged; raise `ValueError` if a mapping in `fallback_models` is no valid endpoint."""
        given = config.get("fallback_models")
        for at, each in enumerate(given if isinstance(given, list | tuple) else ()):
            if isinstance(each, dict):
                try:
                    read_endpoint(each)
                except ValueError as error:
                    raise ValueError(f"fallback_models.{at}: {error}") from None
        return config

    @property
    def folder(self) -> Path:
        """The folder to which the file's names are relative."""
        return self.path.parent

    @property
    def models(self) -> list[str | ModelEndpoint]:
        """The models of the key `model`, in order; at least one."""
        return self.model if isinstance(self.model, list) else [self.model]

    @property
    def fallback_models(self) -> list[Any]:
        """The models of `config.fallback_models`, in order; empty if there are none."""
        given = self.config.get("fallback_models") or ()
        return [read_endpoint(each) if isinstance(each, dict) else each for each in given]

    def endpoint_of(self, name: str) -> ModelEndpoint | None:
        """Return the endpoint in the file whose `model` is `name`; None if there is none."""
        endpoints = [each for each in (*self.models, *self.fallback_models) if isinstance(each, ModelEndpoint)]
        return next((each for each in endpoints if each.model == name), None)

    def loop_config(self) -> LoopConfig:
        """Return the file's `config` as `LoopConfig`, with mappings of models as `ModelEndpoint`s.

        A function in `choose` is left out; see `choosing_function`. Raises `ConfigError` if the config is invalid.
        """
        config = self.config
        if any(isinstance(each, dict) for each in config.get("fallback_models") or ()):
            config = {**config, "fallback_models": self.fallback_models}
        if self.choosing_function is not None:
            config = {name: value for name, value in config.items() if name != "choose"}
        return LoopConfig(**config)

    @property
    def choosing_function(self) -> str | None:
        """The function in `config.choose`, as `module:function`; None if it names none."""
        given = self.config.get("choose")
        return given if isinstance(given, str) and ":" in given else None


def _read_model(given: Any) -> str | ModelEndpoint | None:
    """Return a model's name or endpoint; None if `given` is neither, or an empty text.

    Raises `ValueError` for an invalid endpoint.
    """
    if isinstance(given, ModelEndpoint) or (
        isinstance(given, dict) and given.keys() & ModelEndpoint.model_fields.keys()
    ):
        return read_endpoint(given)
    return given if isinstance(given, str) and given else None


def load_spec(path: str | Path, environment: Mapping[str, str] = os.environ) -> AgentSpec:
    """Read and validate an agent file.

    Also records the file, the `.env` next to it and the modules of its folder as files that the agent's tools must not
    change.

    Args:
        path: The file.
        environment: Environment variables, of which `GRAPH_AGENT_MODEL`, `GRAPH_AGENT_LOOP_MAX_STEPS` and similar ones
            replace keys of the file; see `graph_agent.agent_file.credentials`.

    Raises:
        ConfigError: The file is missing, is not YAML, or has an invalid key or value, or a `cache` without
            `plan_cache_ttl_s` or the reverse; the message names the file, the location and the fix.
    """
    path = Path(path).resolve()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise ConfigError(
            f"Agent file {path}: it {what}; name a YAML file (on the command line with --config FILE), or make "
            "an agent with `graph-agent new NAME`."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Agent file {path}: {error}.") from None
    record_file(path, "the file of this agent")
    # The next start of the agent reads it, so that a tool could change the agent by it.
    record_file(path.parent / ".env", "the environment of this agent")
    # Modules in this folder take precedence over installed ones.
    record_import_folder(path.parent)
    content = parse_yaml(text, f"Agent file {path}")
    if not isinstance(content, dict):
        raise ConfigError(f"Agent file {path}: expected keys such as 'name' and 'model' at the top, got {content!r}.")
    # It is a field of the model, which would accept it.
    if "path" in content:
        known = did_you_mean("path", AgentSpec.model_fields.keys() - {"path"})
        raise ConfigError(f"Agent file {path}: unknown field 'path'; {known}")
    # Checked first, because the errors of the validation below would show a secret written here.
    check_sources(content.get("credentials") or {}, f"Agent file {path}")
    # Before the validation, so that a wrong value in a variable is an error as in the file.
    content = {**content, **keys_from(environment)}
    of_loop = loop_fields_from(environment)
    try:
        spec = AgentSpec(**content, path=path)
    except ValidationError as error:
        raise ConfigError(explain(error, f"Agent file {path}", AgentSpec, hidden={"path"})) from None
    # After the validation: each variable was checked on its own, and its error names the variable.
    spec = spec.model_copy(update={"config": {**spec.config, **of_loop}})
    config = _checked_config(spec, f"Agent file {path}")
    with located(f"Agent file {path}"):
        check_headers(spec.credential_headers)
    if spec.cache is None and config.plan_cache_ttl_s is not None:
        raise ConfigError(f"Agent file {path}: config.plan_cache_ttl_s needs a cache; write e.g. 'cache: memory'.")
    if spec.cache is not None and config.plan_cache_ttl_s is None:
        fix = "write for how many seconds a plan may be used again, e.g. 'config: {plan_cache_ttl_s: 600}'"
        raise ConfigError(
            f"Agent file {path}: cache={spec.cache!r} is never used without config.plan_cache_ttl_s; {fix}."
        )
    return spec


def _checked_config(spec: AgentSpec, where: str) -> LoopConfig:
    """Return the `LoopConfig` of an agent file; each line of a `ConfigError` begins with `where` and `config`."""
    try:
        return spec.loop_config()
    except ConfigError as error:
        faults = str(error).splitlines()
        lines = [f"{where}: config: {fault.removeprefix('LoopConfig: ')}" for fault in faults]
        raise ConfigError("\n".join(lines)) from None


def with_keys(spec: AgentSpec, keys: Mapping[str, str], where: str) -> AgentSpec:
    """Return an agent file's content with other values for some keys; it is validated again.

    It is not checked again that `cache` and `plan_cache_ttl_s` are given together.

    Args:
        spec: The agent file.
        keys: Key → value as YAML text. A field of `config` may be given with or without that prefix: `config.max_steps`
            or `max_steps`. For `model`, a name that belongs to an endpoint of the file selects this endpoint.
        where: Where the keys come from, such as an option's name, for errors.

    Raises:
        ConfigError: A key is unknown, or a value is no YAML or is invalid.
    """
    # Only the keys that the file has, so that defaults stay defaults.
    content = spec.model_dump(exclude_unset=True)
    known = {*AgentSpec.model_fields, *LoopConfig.model_fields} - {"path"}
    for name, text in keys.items():
        first, _, field = name.partition(".")
        if first not in known:
            raise ConfigError(f"{where} {name}: there is no such key; {did_you_mean(name, known)}")
        if first not in AgentSpec.model_fields:
            first, field = "config", name
        value = parse_yaml(text, f"{where} {name}")
        if name == "model" and isinstance(value, str) and (endpoint := spec.endpoint_of(value)) is not None:
            value = endpoint.model_dump(exclude_unset=True)
        if field and isinstance(content.setdefault(first, {}), dict):
            content[first][field] = value
        else:
            content[name] = value
    try:
        changed = AgentSpec(**content, path=spec.path)
    except ValidationError as error:
        raise ConfigError(explain(error, where, AgentSpec, hidden={"path"})) from None
    _checked_config(changed, where)
    return changed


def with_sources(spec: AgentSpec, sources: Mapping[str, CredentialSource]) -> AgentSpec:
    """Return an agent file's content with further credentials, which replace those of the same names."""
    return spec.model_copy(update={"credentials": {**spec.credentials, **sources}})


def recording(spec: AgentSpec) -> AgentSpec:
    """Return an agent file's content with `record_requests` set, so that runs record what models receive."""
    return spec.model_copy(update={"config": {**spec.config, "record_requests": True}})
