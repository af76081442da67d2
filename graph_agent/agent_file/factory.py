"""Opens the agent of a file: its model, tools, MCP servers, delegates and database.

A server that requests a graph for each request, such as `langgraph dev`, opens it once per process:

```python
make_graph = served(Path(__file__).with_name("agent.yaml"))  # "graphs" in langgraph.json
app = Starlette(lifespan=make_graph.lifespan)  # "http": {"app": …} there
```
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.cache.base import BaseCache
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from graph_agent.agent_file.credentials import read_credentials
from graph_agent.agent_file.delegates import OpenedAgent
from graph_agent.agent_file.imports import HookSpec, load_attribute, load_hook, make
from graph_agent.agent_file.mcp_connections import mcp_connections
from graph_agent.agent_file.memory import open_memory_of
from graph_agent.agent_file.spec import SYSTEM_VARIABLES, TODAY_VARIABLE, AgentSpec, WorkspaceSpec, load_spec
from graph_agent.base._internal.own_files import record_file
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base._internal.yaml_files import parse_yaml
from graph_agent.base.database_urls import MEMORY
from graph_agent.base.errors import ConfigError, located
from graph_agent.base.settings.approval_rule import signature_fault
from graph_agent.base.settings.candidates import models_in
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.settings.response_format import ResponseSchema
from graph_agent.core.extensions.argument_checks import checked_tool
from graph_agent.core.extensions.loop_hooks import sort_hooks
from graph_agent.models.endpoints import ModelEndpoint, endpoint_in
from graph_agent.models.prompts import PromptTemplate, read_prompt_file
from graph_agent.models.resolve import resolve_model
from graph_agent.models.scripted import MockChatModel, mock_model_from_env
from graph_agent.session.agent import create_graph_agent
from graph_agent.session.graph_agent import GraphAgent
from graph_agent.storage.checkpoints.open import open_cache, open_saver, open_store

if TYPE_CHECKING:
    from graph_agent.integrations.memory.facts import Memory

SCHEMA_FILES = (".json", ".yaml", ".yml")


def load_response_format(given: str | dict[str, Any], folder: Path) -> type[Any] | dict[str, Any]:
    """Return the response format that an agent file names: a class, or a JSON schema.

    Args:
        given: `module:Class`, the name of a schema file, or the schema itself.
        folder: The agent file's folder, to which names are relative; modules are searched there first.

    Raises:
        ConfigError: There is no such class or file, or it is not a valid response format.
    """
    schema: Any = given
    if isinstance(given, str):
        schema = _read_schema(folder / given) if given.endswith(SCHEMA_FILES) else load_attribute(given, folder)
    if isinstance(schema, dict):
        # YAML may give dates, and keys that are not strings.
        schema = to_json_safe(schema)
    ResponseSchema(schema)
    return schema  # type: ignore[no-any-return]  # `ResponseSchema` has just checked it


def _read_schema(path: Path) -> dict[str, Any]:
    """Return the JSON schema in a file, and record the file as one that the agent's tools must not change.

    Raises `ConfigError` if the file is missing, cannot be read or parsed, or does not have an object at the top.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not there; name a file with a JSON schema, as JSON or YAML.")
    record_file(path, "the response format of this agent")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else parse_yaml(text, str(path))
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} holds no {'JSON' if path.suffix == '.json' else 'YAML'}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no JSON schema but {content!r}; a schema is an object, e.g. {{type: object}}.")
    return content


T = TypeVar("T")
Today: TypeAlias = date | Callable[[], date] | None
"""An agent's current date, or a function that returns it; None for the real date."""

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""Matches `module:attribute`; names of tools have no colon."""
_TEMPLATE = re.compile(r"\{[{%#]")


def load_tool(name: str, folder: Path) -> BaseTool:
    """Import a tool, or a function to convert to one, by its dotted name, from `folder` first. Raises `ConfigError` if
    it is missing or neither."""
    return checked_tool(load_attribute(name, folder), repr(name))


def silent_model() -> MockChatModel:
    """Return a model without replies, for `open_agent` if the agent's own model is neither needed nor built."""
    return MockChatModel(responses=[])


@asynccontextmanager
async def open_agent(
    spec: AgentSpec,
    *,
    today: Today = None,
    db: str | None = None,
    environment: Mapping[str, str] | None = None,
    model: BaseChatModel | None = None,
    memory_db: str | None = None,
    caller: str | None = None,
) -> AsyncIterator[GraphAgent]:
    """Open the agent of a file: build its model, start its MCP servers, open its database. All are closed on exit.

    The sessions of one database can be steered and stopped from every process that opens it.

    Args:
        spec: The agent file.
        today: The date in the system prompt, and in `GRAPH_AGENT_TODAY` of every stdio MCP server; None for the real
            date, read at each request. A function is called at each request; MCP servers then use the real date.
        db: A database URL that replaces the file's; `""` for no checkpointer and no store; None for the file's.
        environment: Variables for every stdio MCP server; its own variables override them.
        model: A model that replaces the file's, also for delegates, such as a `ScriptedChatModel` of a test; None for
            the file's.
        memory_db: A database URL of the memory; None or `""` for `db`, if that is neither, or else the file's.
        caller: The user of every run whose context names none, for the agent's memory; None for no such user.

    Raises:
        ConfigError: Something that the file names cannot be built, or a credential has no value.
        McpServerError: A `required` MCP server does not start.
    """
    given = {**({TODAY_VARIABLE: today.isoformat()} if isinstance(today, date) else {}), **(environment or {})}
    async with AsyncExitStack() as stack:
        shared = _Shared(stack, today, given, model, memory_db or db)
        graph = await _open(spec, spec.db if db is None else db, shared, [])
        graph.builder.caller = caller
        yield graph


@asynccontextmanager
async def open_parts(spec: AgentSpec, model: BaseChatModel | None = None) -> AsyncIterator[GraphAgent]:
    """Open the agent of a file without its database, MCP servers and credentials, to check its other parts.

    Args:
        spec: The agent file.
        model: Replaces the file's model, also for delegates; None for a model that answers "OK".

    Raises:
        ConfigError: One of the other parts cannot be built.
    """
    # Servers and secrets may be missing where a file is only checked.
    bare = spec.model_copy(update={"mcp_servers": {}, "credentials": {}})
    async with AsyncExitStack() as stack:
        mocked = model or MockChatModel(responses=["OK"])
        yield await _open(bare, "", _Shared(stack, None, {}, mocked, MEMORY, asks_embeddings=False), [])


@dataclass(frozen=True, slots=True)
class _Shared:
    """What an agent shares with those of its delegates that are agent files."""

    stack: AsyncExitStack
    today: Today
    environment: Mapping[str, str]
    mocked: BaseChatModel | None = None
    """The model of all these agents; None for the model of each file."""
    memory_db: str | None = None
    """Database URL of the memory of these agents; None or empty for that of each file."""
    asks_embeddings: bool = True
    """Whether a memory may ask an embedding model; without one it finds facts by their words."""


async def _open(spec: AgentSpec, db: str, shared: _Shared, above: Sequence[Path]) -> GraphAgent:
    """Open the agent of a file, with a database unless `db` is empty. What is opened is closed with `shared.stack`.

    `above` has the agent files that lead to this one as a delegate, outermost first, to detect a circle.
    """
    mocked = shared.mocked or mock_model_from_env()
    with located(f"Agent file {spec.path}: credentials"):
        credentials = read_credentials(spec.credentials)
    stack = shared.stack
    tools: list[Any] = []
    if spec.mcp_servers:
        # In a thread: an import reads files, which must not block a server's event loop.
        await call_in_thread(import_module, "graph_agent.integrations.mcp.manager")
        from graph_agent.integrations.mcp.manager import open_mcp_tools

        with located(f"Agent file {spec.path}: mcp_servers"):
            tools = await stack.enter_async_context(open_mcp_tools(mcp_connections(spec, shared.environment)))
    agents = await _open_delegates(spec, shared, [*above, spec.path])
    saver = await stack.enter_async_context(open_saver(db)) if db else None
    store = await stack.enter_async_context(open_store(db)) if db else None
    cache = await stack.enter_async_context(open_cache(spec.cache)) if spec.cache else None
    # In a thread: reading and importing the file's references must not block a server's event loop.
    memory = None
    if spec.memory is not None:
        opening = open_memory_of(spec, shared.memory_db or spec.db, asks_embeddings=shared.asks_embeddings)
        memory = await stack.enter_async_context(opening)
    graph = await call_in_thread(_build, spec, shared.today, mocked, tools, agents, saver, store, cache, memory)
    graph.builder.credentials = credentials
    return graph


async def _open_delegates(spec: AgentSpec, shared: _Shared, above: Sequence[Path]) -> dict[int, OpenedAgent]:
    """Open the delegates that are agent files; return index in `delegates` → agent.

    They have no databases of their own, and environment variables replace none of their keys. `above` has the agent
    files that lead to this one, it included. Raises `ConfigError` if agent files delegate to each other in a circle.
    """
    opened = {}
    for at, delegate in enumerate(spec.delegates):
        if delegate.agent is None:
            continue
        with located(f"Agent file {spec.path}: delegates.{at}"):
            # Without the environment, whose variables replace keys of the outer file only.
            other = load_spec(spec.folder / delegate.agent, environment={})
            if other.path in above:
                chain = " → ".join(path.name for path in [*above[above.index(other.path) :], other.path])
                raise ConfigError(
                    f"agent={delegate.agent!r}: agent files delegate to each other ({chain}); remove one."
                )
            graph = await _open(other, "", shared, above)
        opened[at] = OpenedAgent(other.name, other.description, graph)
    return opened


def _build(
    spec: AgentSpec,
    today: Today,
    mocked: BaseChatModel | None,
    tools: list[Any],
    agents: Mapping[int, OpenedAgent],
    saver: Checkpointer,
    store: BaseStore | None,
    cache: BaseCache[Any] | None,
    memory: Memory | None,
) -> GraphAgent:
    """Import what an agent file names, and build the agent's graph. Blocks, as imports read files.

    `mocked` is a model that replaces those of the file; `agents` is index in `delegates` → open agent. `tools` is the
    list of the MCP servers' tools, which changes in place; the tools of the file are appended to it. Raises
    `ConfigError` if a part cannot be built; the text begins with the file and the key.
    """
    with located(f"Agent file {spec.path}"), _approve_located(spec):
        model = _model(spec) if mocked is None else mocked
        tools.extend(_each("tools", spec.tools, lambda given: _tool(given, spec.folder)))
        if spec.workspace is not None:
            with located("workspace"):
                tools.extend(_workspace(spec.workspace, spec.folder))
        return create_graph_agent(
            model,
            tools=tools,
            delegates=_each(
                "delegates",
                range(len(spec.delegates)),
                lambda at: spec.delegates[at].build(spec.folder, agents.get(at)),
            ),
            hooks=[
                *_each("hooks", spec.hooks, lambda hook: _hook(hook, spec)),
                *_each("middleware", spec.middleware, lambda hook: _hook(hook, spec)),
            ],
            system_prompt=_system_prompt(spec, today),
            prompts=_prompts(spec),
            response_format=_response_format(spec),
            config=_config(spec),
            checkpointer=saver,
            store=store,
            cache=cache,
            name=spec.name,
            resolve=_resolver(spec) if mocked is None else lambda _: mocked,
            skills=[spec.folder / skill for skill in spec.skills if isinstance(skill, str)],
            memory=memory,
        )


@contextmanager
def _approve_located(spec: AgentSpec) -> Iterator[None]:
    """Prefix a `ConfigError` about an approval rule with `config`, if the rule does not stand in the key `approve`."""
    try:
        yield
    except ConfigError as error:
        # Both keys end in one setting, so that its error does not name the key.
        rules = [spec.approve] if isinstance(spec.approve, str) else spec.approve or []
        if not str(error).startswith("approve: ") or any(repr(rule) in str(error) for rule in rules):
            raise
        raise ConfigError(f"config.{error}") from error


def model_candidates(
    spec: AgentSpec, *, fallbacks: bool = False
) -> Iterator[tuple[str | ModelEndpoint, BaseChatModel | ConfigError]]:
    """Yield each model that a file names, in order, with the built model or the reason why it cannot be built.

    Args:
        spec: The agent file.
        fallbacks: Whether to yield the models of `config.fallback_models` instead of those of `model`.
    """
    for given in spec.fallback_models if fallbacks else spec.models:
        try:
            yield given, _candidate(given, spec)
        except ConfigError as error:
            yield given, error


def _tool(given: str | dict[str, Any], folder: Path) -> BaseTool | dict[str, Any]:
    """Return the tool with a dotted name; a mapping, which is a tool that the provider runs, is returned unchanged."""
    return load_tool(given, folder) if isinstance(given, str) else given


def _each(field: str, given: Sequence[T], build: Callable[[T], Any]) -> list[Any]:
    """Build each item of a list; a `ConfigError` gets the key `field` and the index of the item before its text."""
    built = []
    for at, one in enumerate(given):
        with located(f"{field}.{at}"):
            built.append(build(one))
    return built


def _workspace(given: WorkspaceSpec, folder: Path) -> list[BaseTool]:
    """Return the tools of a workspace, whose folder is relative to that of the agent file."""
    from graph_agent.integrations.workspace.tools import workspace_tools

    options = {name: getattr(given, name) for name in type(given).model_fields if name != "folder"}
    return workspace_tools(folder / given.folder, **options)


def _config(spec: AgentSpec) -> LoopConfig:
    """Return the `LoopConfig` of an agent file, with its choosing function and its approval rules imported.

    The rules are those of `config.approve`, then those of the key `approve`.
    """
    config = spec.loop_config()
    if (name := spec.choosing_function) is not None:
        with located("config.choose"):
            config = config.with_values({"choose": load_attribute(name, spec.folder)})
    if spec.approve is None:
        return config
    rules = [spec.approve] if isinstance(spec.approve, str) else spec.approve
    own = _each("approve", rules, lambda rule: _approval_rule(rule, spec))
    return config.with_values({"approve": (*config.approval_rules, *own)})


def _approval_rule(rule: str, spec: AgentSpec) -> Any:
    """Return an approval rule: the function that `module:function` names, any other text (a pattern of names)
    unchanged.

    Raises `ConfigError` if the function cannot be imported, or does not take one argument.
    """
    if not _REFERENCE.fullmatch(rule):
        return rule
    function = load_attribute(rule, spec.folder)
    if not callable(function):
        raise ConfigError(f"{rule!r} is no function of a call, but {function!r}.")
    if (fault := signature_fault(function)) is not None:
        raise ConfigError(f"{rule!r}: {fault}.")
    return function


def _hook(given: HookSpec, spec: AgentSpec) -> Any:
    """Import or create a hook of an agent file; raise `ConfigError` if it is no hook."""
    hook = load_hook(given, spec.folder)
    with located(repr(given.use)):
        sort_hooks([hook])
    return hook


def _prompts(spec: AgentSpec) -> dict[str, str]:
    """Return name of a built-in prompt → text of the file that replaces it.

    Raises `ConfigError` if a file cannot be read.
    """
    texts: dict[str, str] = {}
    for name, file in spec.prompts.items():
        with located(f"prompts.{name}"):
            texts[name] = read_prompt_file(spec.folder / file)
    return texts


def _response_format(spec: AgentSpec) -> type[Any] | dict[str, Any] | None:
    """Return the response format of an agent file as a class or a JSON schema; None if the file has none."""
    if spec.response_format is None:
        return None
    with located("response_format"):
        return load_response_format(spec.response_format, spec.folder)


def _resolver(spec: AgentSpec) -> Callable[[Any], BaseChatModel]:
    """Return the function that builds the models that runs select.

    Dotted names, and names with an address, are accepted only if the file has them, because the names in runs are
    untrusted.
    """
    config = spec.loop_config()
    own = [config.model, *config.fallback_models, *chain(*models_in(config.candidates, config.choose).values())]
    return lambda given: _candidate(given, spec) if isinstance(given, str) and given in own else resolve_model(given)


def _model(spec: AgentSpec) -> BaseChatModel:
    """Return the first model of an agent file that can be built; raise `ConfigError` with all reasons if none can."""
    refusals: list[str] = []
    for name, found in model_candidates(spec):
        if not isinstance(found, ConfigError):
            return found
        refusals.append(f"Agent file {spec.path}: model={str(name)!r}: {found}")
    raise ConfigError("\n".join(refusals))


def _candidate(given: str | ModelEndpoint, spec: AgentSpec) -> BaseChatModel:
    """Build a model: by its endpoint, else by `module:factory`, else by `provider:name`.

    The second applies if there is such a module in the agent file's folder or on the import path. Raises `ConfigError`
    if the model cannot be built, or the factory returns no chat model.
    """
    name = given if isinstance(given, str) else given.model
    endpoint = endpoint_in(name) if isinstance(given, str) else given
    if endpoint is not None:
        return resolve_model(endpoint)
    # `module:factory` and `provider:name` have the same form, so a module is looked for first.
    factory = load_attribute(name, spec.folder, missing_ok=True)
    if factory is None:
        return resolve_model(name)
    model = factory if isinstance(factory, BaseChatModel) else make(name, factory, "a chat model")
    if not isinstance(model, BaseChatModel):
        raise ConfigError(f"{name!r} gave {model!r}; a model factory returns a LangChain chat model.")
    return model


def _system_prompt(spec: AgentSpec, today: Today) -> str | Callable[[], str]:
    """Return the system prompt of an agent file: a text, or for a template a function that renders it at each request.

    A text with variables is a template. A name ending in `.yaml` or `.yml` is that of a prompt file, which is always
    one. Raises `ConfigError` if the file or the template is invalid.
    """
    text, where = spec.system_prompt, f"Agent file {spec.path}: system_prompt"
    if text.endswith((".yaml", ".yml")):
        file = spec.folder / text
        with located("system_prompt"):
            text, where = read_prompt_file(file), str(file)
    elif not _TEMPLATE.search(text):
        return text
    template = PromptTemplate(text, SYSTEM_VARIABLES, where)

    def render() -> str:
        """Return the rendered text, with the agent's name and description, and the date at the time of the call."""
        current = today() if callable(today) else today or date.today()
        return template.render(name=spec.name, description=spec.description, today=current.isoformat())

    render.template = template.text  # type: ignore[attr-defined]  # the version of the prompt is that of the template
    return render


_CLOSE_S = 30.0
"""Maximum seconds to wait for the MCP servers to stop when the process exits."""


def served(path: str | Path) -> ServedAgent:
    """Return the graph factory of an agent file; the same object for the same file.

    The agent and its stdio MCP servers use the date in the environment variable `GRAPH_AGENT_TODAY`, if it is set.

    Raises:
        ConfigError: The file is missing or invalid; nothing is started yet.
    """
    return _served(Path(path).resolve())


@functools.cache
def _served(path: Path) -> ServedAgent:
    """Return the graph factory of a resolved path, created at the first call."""
    # Cached, because each factory would start MCP servers of its own.
    return ServedAgent(load_spec(path))


class ServedAgent:
    """A graph factory that opens one agent for the whole process, and that every request may call.

    The agent's MCP sessions run on an event loop in a thread of their own, independent of requests and of the server's
    event loops. The graph has no checkpointer, because the server provides its own.
    """

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec
        """The content of the agent file."""
        self._lock = threading.Lock()
        self._thread: _AgentThread | None = None
        # A server may read a factory's type hints, which `typing` refuses for an object without annotations.
        self.__annotations__: dict[str, Any] = {}

    async def __call__(self) -> GraphAgent:
        """Return the agent's graph, which the first call opens; after a failure, the next call tries again.

        Safe to call from several event loops at once. Raises the error of `open_agent` if the agent cannot be opened.
        """
        with self._lock:
            if self._thread is None or self._thread.failed:
                self._thread = _AgentThread(self.spec)
            thread = self._thread
        # Shielded: requests share the future, and cancelling one request must not cancel it for the others.
        return await asyncio.shield(asyncio.wrap_future(thread.opened))

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Open the agent when a Starlette or FastAPI server starts, and close it when the server stops.

        This stops the MCP servers of a server that is ended by SIGTERM, which may never run Python's exit handlers.
        Raises the error of `open_agent`, so that the server does not start. `app` is not used.
        """
        await self()
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the agent, and wait at most 30 s for that; a later call opens it again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()


class _AgentThread:
    """A thread whose event loop keeps an agent open until `close` is called or the process exits."""

    def __init__(self, spec: AgentSpec) -> None:
        self.opened: Future[GraphAgent] = Future()
        self.spec = spec
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"{spec.name}-agent", daemon=True)
        self._thread.start()
        # A daemon thread is stopped at exit without closing what it has opened.
        atexit.register(self.close)

    @property
    def failed(self) -> bool:
        """Whether the agent could not be opened."""
        return self.opened.done() and self.opened.exception() is not None

    def close(self) -> None:
        """Close the agent, as soon as it is open, and wait at most 30 s for the thread."""
        atexit.unregister(self.close)
        with suppress(RuntimeError):  # the loop is closed if the agent could not be opened
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        """Run the event loop of the thread until the agent is closed."""
        # Before the loop begins: Python 3.13 reads the folder of jsonschema's schemas in a way that `langgraph dev`
        # refuses in every loop.
        import_module("graph_agent.base._internal.json_schema")
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._keep_open())

    async def _keep_open(self) -> None:
        """Open the agent, put it or the error into `opened`, and keep it open until the thread is to stop."""
        try:
            async with open_agent(self.spec, today=today_from_env(), db="") as graph:
                self.opened.set_result(graph)
                await self._stop.wait()
        except BaseException as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)  # any failure must reach the waiting requests


def today_from_env() -> date | None:
    """Return the date in `GRAPH_AGENT_TODAY`; None if it is not set; raise `ConfigError` if it is not an ISO date."""
    text = os.environ.get(TODAY_VARIABLE, "")
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigError(f"{TODAY_VARIABLE}={text!r} is no ISO date; write e.g. 2026-12-04, or unset it.") from None
