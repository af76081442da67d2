"""The agent file: an agent declared in YAML, validated and opened.

```yaml
name: hotel
model: openai:gpt-4o-mini
tools: ["my_tools:search"]
```
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.cache.base import BaseCache
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from graph_agent._internal.attribute_docs import with_field_docs
from graph_agent._internal.credential_headers import check_headers
from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent._internal.validation_text import explain
from graph_agent._internal.yaml_files import parse_yaml
from graph_agent.agent import create_graph_agent
from graph_agent.compiled import AgentStateGraph, CompiledAgentGraph
from graph_agent.config import LoopConfig
from graph_agent.errors import ConfigError, did_you_mean, located
from graph_agent.hooks.registry import sort_hooks
from graph_agent.models.mock import mock_model_from_env
from graph_agent.models.resolve import resolve_model
from graph_agent.persistence.open import check_cache, open_cache, open_saver, open_store
from graph_agent.prompts import PromptTemplate, read_prompt_file
from graph_agent.spec.credentials import CredentialSource, check_sources, read_credentials
from graph_agent.spec.delegates import DelegateSpec, SkillSpec
from graph_agent.spec.hooks import HookSpec, load_hook
from graph_agent.spec.imports import load_attribute, make
from graph_agent.spec.response_format import load_response_format
from graph_agent.tools.argument_checks import checked_tool

T = TypeVar("T")

DEFAULT_DB = "sqlite:///graph_agent.db"
TODAY_VARIABLE = "GRAPH_AGENT_TODAY"
"""Environment variable with the ISO date that a stdio MCP server uses as today; unset for the real date."""
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""A `module:attribute`; names of tools have no colon."""
_TEMPLATE = re.compile(r"\{[{%#]")
CONFIG_ALIASES = {"max_rounds": "max_steps"}
"""Aliases of fields of `LoopConfig` in an agent file."""
SYSTEM_VARIABLES = frozenset({"name", "description", "today"})
"""Variables of a system prompt's template; `today` is an ISO date."""


@with_field_docs
class AgentSpec(BaseModel):
    """The validated content of an agent file. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: str = Field(min_length=1)
    """The agent's name, also its model name in the chat APIs of `graph-agent serve`."""
    model: str | list[str]
    """`provider:name` or `module:factory`; in a list, the first one that can be built is used."""
    description: str = ""
    """Purpose of the agent, in one sentence; part of its A2A card."""
    system_prompt: str = "You are a helpful assistant."
    """Inline text, or a prompt file ending in `.yaml` or `.yml`; a Jinja template may use `name`, `description`
    and `today`, an ISO date."""
    prompts: dict[str, str] = {}
    """Prompt name → prompt file, in place of the built-in prompt."""
    tools: list[str] = []
    """Tools, each `module:attribute`: a LangChain tool, or a function with type hints and a docstring."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    """Server name → connection, as for `open_mcp_tools`.

    A null variable in a stdio connection's `env` is inherited from this process's environment, if set there.
    """
    delegates: list[DelegateSpec] = []
    """Agents that receive tasks: graphs of this process, or remote agents."""
    skills: list[SkillSpec] = []
    """Skills in the agent's A2A card, in addition to its tools."""
    push_notifications: bool = False
    """Whether A2A clients may subscribe to changes of their tasks, sent to a URL of theirs on the public network."""
    hooks: list[HookSpec] = []
    """Loop hooks, each `module.Class`, or `{use: module.Class, with: {argument: value}}`."""
    response_format: str | dict[str, Any] | None = None
    """Schema of the answer: `module:Class`, a file with a JSON schema (`.json`, `.yaml` or `.yml`), or the schema."""
    approve: str | list[str] | None = None
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
        if given is not None and not isinstance(given, str | dict):
            raise ValueError(
                "name a class as 'module:Class' or a schema file ending in .json, .yaml or .yml, or write the JSON "
                "schema itself"
            )
        return given

    @field_validator("model", mode="before")
    @classmethod
    def _check_model(cls, given: Any) -> Any:
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError("name a model as 'provider:name' or 'module:factory', or give a list of these")
        return given

    @field_validator("cache")
    @classmethod
    def _check_cache(cls, url: str | None) -> str | None:
        return url if url is None else check_cache(url)

    @field_validator("config")
    @classmethod
    def _resolve_aliases(cls, config: dict[str, Any]) -> dict[str, Any]:
        for alias, name in CONFIG_ALIASES.items():
            if alias in config and name in config:
                raise ValueError(f"{alias} and {name} are two names of one field; give one of them")
        return {CONFIG_ALIASES.get(name, name): value for name, value in config.items()}

    @property
    def folder(self) -> Path:
        """The folder that the file's relative names start from."""
        return self.path.parent

    def loop_config(self) -> LoopConfig:
        """Return the file's `config` as a validated `LoopConfig`."""
        return LoopConfig(**self.config)


def load_spec(path: str | Path) -> AgentSpec:
    """Read and validate an agent file.

    Raises:
        ConfigError: If it is missing, is not YAML, or has an invalid key or value; the message names the file, the
            location and the fix.
    """
    path = Path(path).resolve()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise ConfigError(f"Agent file {path}: it {what}; name a YAML file (on the command line with --config FILE).")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Agent file {path}: {error}.") from None
    content = parse_yaml(text, f"Agent file {path}")
    if not isinstance(content, dict):
        raise ConfigError(f"Agent file {path}: expected keys such as 'name' and 'model' at the top, got {content!r}.")
    if "path" in content:
        known = did_you_mean("path", AgentSpec.model_fields.keys() - {"path"})
        raise ConfigError(f"Agent file {path}: unknown field 'path'; {known}")
    check_sources(content.get("credentials") or {}, f"Agent file {path}")
    try:
        spec = AgentSpec(**content, path=path)
    except ValidationError as error:
        raise ConfigError(explain(error, f"Agent file {path}", AgentSpec, hidden={"path"})) from None
    try:
        config = spec.loop_config()
    except ConfigError as error:
        faults = str(error).splitlines()
        lines = [f"Agent file {path}: config: {fault.removeprefix('LoopConfig: ')}" for fault in faults]
        raise ConfigError("\n".join(lines)) from None
    try:
        check_headers(spec.credential_headers)
    except ConfigError as error:
        raise ConfigError(f"Agent file {path}: {error}") from None
    if spec.cache is None and config.plan_cache_ttl_s is not None:
        raise ConfigError(f"Agent file {path}: config.plan_cache_ttl_s needs a cache; write e.g. 'cache: memory'.")
    if spec.cache is not None and config.plan_cache_ttl_s is None:
        fix = "write for how many seconds a plan may be used again, e.g. 'config: {plan_cache_ttl_s: 600}'"
        raise ConfigError(
            f"Agent file {path}: cache={spec.cache!r} is never used without config.plan_cache_ttl_s; {fix}."
        )
    return spec


def with_sources(spec: AgentSpec, sources: Mapping[str, CredentialSource]) -> AgentSpec:
    """Return an agent file's content with further credentials, which replace the file's own of the same names."""
    return spec.model_copy(update={"credentials": {**spec.credentials, **sources}})


@asynccontextmanager
async def open_agent(
    spec: AgentSpec,
    *,
    today: date | None = None,
    db: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[CompiledAgentGraph]:
    """Open the agent of a file: build its model, start its MCP servers, open its database; all are closed on exit.

    The sessions of one database can be steered and stopped from every process that opens it.

    Args:
        spec: The file's content.
        today: The date in the system prompt, and in `GRAPH_AGENT_TODAY` of every stdio MCP server; None for the real
            date, read at each request.
        db: A database URL that replaces the file's; `""` for no checkpointer and no store.
        environment: Variables for every stdio MCP server in addition to its own, which override them.

    Raises:
        ConfigError: If something that the file names cannot be built, or a credential has no value.
    """
    from graph_agent.mcp import McpTools, open_mcp_tools

    credentials = read_credentials(spec.credentials)
    given = {**({TODAY_VARIABLE: today.isoformat()} if today else {}), **(environment or {})}
    async with AsyncExitStack() as stack:
        tools = McpTools()
        if spec.mcp_servers:
            connections = {name: _located(raw, spec, given) for name, raw in spec.mcp_servers.items()}
            with located(f"Agent file {spec.path}: mcp_servers"):
                tools = await stack.enter_async_context(open_mcp_tools(connections))
        address = spec.db if db is None else db
        saver = await stack.enter_async_context(open_saver(address)) if address else None
        store = await stack.enter_async_context(open_store(address)) if address else None
        cache = await stack.enter_async_context(open_cache(spec.cache)) if spec.cache else None
        # In a thread: reading and importing the file's references must not block a server's event loop.
        graph = await call_in_thread(_build, spec, tools, today, saver, store, cache)
        assert isinstance(graph.builder, AgentStateGraph)
        graph.builder.credentials = credentials
        yield graph


def _build(
    spec: AgentSpec,
    tools: list[BaseTool],
    today: date | None,
    saver: Checkpointer,
    store: BaseStore | None,
    cache: BaseCache[Any] | None,
) -> CompiledAgentGraph:
    mocked = mock_model_from_env()
    with located(f"Agent file {spec.path}"):
        model = _model(spec) if mocked is None else mocked
        tools.extend(_each("tools", spec.tools, lambda name: _tool(name, spec)))
        return create_graph_agent(
            model,
            tools=tools,
            delegates=_each("delegates", spec.delegates, lambda delegate: delegate.build(spec.folder)),
            hooks=_each("hooks", spec.hooks, lambda hook: _hook(hook, spec)),
            system_prompt=_system_prompt(spec, today),
            prompts=_prompts(spec),
            response_format=_response_format(spec),
            config=_config(spec),
            checkpointer=saver,
            store=store,
            cache=cache,
            name=spec.name,
            resolve=_resolver(spec),
        )


def _each(field: str, given: Sequence[T], build: Callable[[T], Any]) -> list[Any]:
    built = []
    for at, one in enumerate(given):
        with located(f"{field}.{at}"):
            built.append(build(one))
    return built


def _tool(name: str, spec: AgentSpec) -> BaseTool:
    return checked_tool(load_attribute(name, spec.folder), repr(name))


def _config(spec: AgentSpec) -> LoopConfig:
    config = spec.loop_config()
    if spec.approve is None:
        return config
    rules = [spec.approve] if isinstance(spec.approve, str) else spec.approve
    own = _each("approve", rules, lambda rule: _approval_rule(rule, spec))
    return config.with_values({"approve": (*(config.approve or ()), *own)})


def _approval_rule(rule: str, spec: AgentSpec) -> Any:
    if not _REFERENCE.fullmatch(rule):
        return rule
    function = load_attribute(rule, spec.folder)
    if not callable(function):
        raise ConfigError(f"{rule!r} is no function of a call, but {function!r}.")
    return function


def _hook(given: HookSpec, spec: AgentSpec) -> Any:
    hook = load_hook(given, spec.folder)
    with located(repr(given.use)):
        sort_hooks([hook])
    return hook


def _prompts(spec: AgentSpec) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, file in spec.prompts.items():
        with located(f"prompts.{name}"):
            texts[name] = read_prompt_file(spec.folder / file)
    return texts


def _response_format(spec: AgentSpec) -> type[Any] | dict[str, Any] | None:
    if spec.response_format is None:
        return None
    with located("response_format"):
        return load_response_format(spec.response_format, spec.folder)


def _resolver(spec: AgentSpec) -> Callable[[Any], BaseChatModel]:
    """Return the resolver of model names; dotted names resolve only if the file has them, as a run's are untrusted."""
    config = spec.loop_config()
    own = [config.model, *config.fallback_models]
    return lambda given: _candidate(given, spec) if isinstance(given, str) and given in own else resolve_model(given)


def _model(spec: AgentSpec) -> BaseChatModel:
    candidates = [spec.model] if isinstance(spec.model, str) else spec.model
    refusals: list[str] = []
    for candidate in candidates:
        try:
            return _candidate(candidate, spec)
        except ConfigError as error:
            refusals.append(f"Agent file {spec.path}: model={candidate!r}: {error}")
    raise ConfigError("\n".join(refusals))


def _candidate(name: str, spec: AgentSpec) -> BaseChatModel:
    factory = load_attribute(name, spec.folder, missing_ok=True)
    if factory is None:
        return resolve_model(name)
    model = factory if isinstance(factory, BaseChatModel) else make(name, factory, "a chat model")
    if not isinstance(model, BaseChatModel):
        raise ConfigError(f"{name!r} gave {model!r}; a model factory returns a LangChain chat model.")
    return model


def _system_prompt(spec: AgentSpec, today: date | None) -> str | Callable[[], str]:
    text, where = spec.system_prompt, f"Agent file {spec.path}: system_prompt"
    if text.endswith((".yaml", ".yml")):
        file = spec.folder / text
        with located("system_prompt"):
            text, where = read_prompt_file(file), str(file)
    elif not _TEMPLATE.search(text):
        return text
    template = PromptTemplate(text, SYSTEM_VARIABLES, where)
    return lambda: template.render(
        name=spec.name, description=spec.description, today=(today or date.today()).isoformat()
    )


def _located(raw: Mapping[str, Any], spec: AgentSpec, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a connection whose process starts in the agent file's folder, so that relative arguments resolve there."""
    if raw.get("transport") != "stdio":
        return dict(raw)
    return {
        **raw,
        "cwd": str(spec.folder / cwd) if isinstance(cwd := raw.get("cwd", "."), str) else cwd,
        "env": _env(raw.get("env") or {}, environment),
    }


def _env(own: Any, given: Mapping[str, str]) -> Any:
    if not isinstance(own, Mapping):
        return own  # refused by the validation of the connection
    values = {name: os.environ.get(name) if value is None else value for name, value in own.items()}
    return {**given, **{name: value for name, value in values.items() if value is not None}}
