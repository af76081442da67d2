"""Compiles a server's agent twice: with the database for sessions, and without for requests that keep none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from langchain_core.messages import AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from pydantic import SecretStr
from starlette.requests import HTTPConnection

from graph_agent._internal.credential_headers import check_headers, credentials_of
from graph_agent._internal.polling import poll_forever
from graph_agent.agent_file.credentials import CredentialSource, read_credentials
from graph_agent.agent_file.delegates import SkillSpec
from graph_agent.agent_file.factory import open_agent
from graph_agent.agent_file.served import ServedAgent, today_from_env
from graph_agent.agent_file.spec import AgentSpec, load_spec, recording, with_sources
from graph_agent.checkpoints.open import open_saver, open_store, strict_serializer
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.errors import ConfigError, InputError, SessionBusyError
from graph_agent.models.capabilities import may_download_images
from graph_agent.models.sanitize import ToolAliases
from graph_agent.runs.registry import lock_idle_session
from graph_agent.server.hosting.feeds import CheckpointNotifier, Feeds
from graph_agent.server.problems import ProblemError
from graph_agent.server.settings import A2A_DEFAULTS, ServerSettings
from graph_agent.session.event_reader import EventReader


@dataclass(frozen=True, slots=True)
class AgentSource:
    """An agent that can be opened, with its metadata."""

    name: str
    """The model's name in the chat APIs."""
    description: str
    db: str
    """Database URL of its sessions, unless the server overrides it."""
    open: Callable[[], AbstractAsyncContextManager[CompiledAgentGraph]]
    """Opens it without checkpointer and store; the server adds its own."""
    skills: tuple[SkillSpec, ...] = ()
    """Skills in its A2A card, in addition to its tools."""
    push_notifications: bool = False
    """Whether A2A clients may subscribe to push notifications."""
    a2a_context: Mapping[str, Any] = field(default_factory=lambda: A2A_DEFAULTS)
    """Context overrides for the runs of A2A clients."""
    credential_headers: Mapping[str, str] = field(default_factory=dict)
    """Credential name → the request header that may carry it."""
    show_outputs: bool = False
    """Whether A2A clients receive the outputs of tools."""


def of_file(
    path: str | Path, credentials: Mapping[str, CredentialSource] | None = None, *, record: bool = False
) -> AgentSource:
    """Return the source of an agent file, opened when the server starts and closed when it stops.

    Args:
        credentials: Credential name → source; replaces the file's credentials of the same names.
        record: Whether to record what models receive, for any configuration of the file.

    Raises:
        ConfigError: If the file is missing or invalid, or a credential has no value.
    """
    spec = with_sources(load_spec(path), credentials or {})
    return of_spec(recording(spec) if record else spec)


def of_spec(spec: AgentSpec) -> AgentSource:
    """Return the source of a parsed agent file, opened when the server starts and closed when it stops.

    Raises:
        ConfigError: If a credential has no value.
    """
    read_credentials(spec.credentials)
    return _source(spec, lambda: open_agent(spec, today=today_from_env(), db=""))


def of_served(agent: ServedAgent) -> AgentSource:
    """Return the source of an agent that this process serves already; its MCP servers are shared."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        async with agent.lifespan():
            yield await agent()

    return _source(agent.spec, opened)


def _source(spec: AgentSpec, opened: Callable[[], AbstractAsyncContextManager[CompiledAgentGraph]]) -> AgentSource:
    return AgentSource(
        spec.name,
        spec.description,
        spec.db,
        opened,
        tuple(skill for skill in spec.skills if isinstance(skill, SkillSpec)),
        spec.push_notifications,
        a2a_context_of(spec),
        spec.credential_headers,
    )


def a2a_context_of(spec: AgentSpec) -> dict[str, Any]:
    """Return the context overrides for A2A runs: the A2A defaults that the agent file does not set itself."""
    return {name: value for name, value in A2A_DEFAULTS.items() if name not in spec.config}


logger = logging.getLogger(__name__)

_SUSPENDED = ("graph_agent", "parked")
"""Store namespace of suspended threads, whose requests wait for their caller: key → thread and expiry."""
_PAGE = 1000


LivePart = Mapping[str, Any]
"""Output of a run: `{"type": "begin" | "text" | "break" | "progress" | "call" | "end", …}`."""


class LiveRuns:
    """The output of one process's active runs, which their histories have only after each superstep."""

    def __init__(self) -> None:
        self._runs: dict[str, list[LivePart]] = {}
        self._readers: dict[str, list[Callable[[], None]]] = {}

    def is_read(self, thread: str) -> bool:
        """Whether a thread has readers."""
        return thread in self._readers

    @contextmanager
    def run(self, thread: str, content: Any) -> Iterator[Callable[[LivePart], None]]:
        """Yield a function that publishes a part of a thread's run, which ends with the context.

        Args:
            content: The user's message, which the history has after the first plan; None for a run that resumes.
        """
        parts: list[LivePart] = [{"type": "begin", "content": content}]
        self._runs[thread] = parts

        def publish(part: LivePart) -> None:
            parts.append(part)
            for wake in self._readers.get(thread, ()):
                wake()

        try:
            yield publish
        finally:
            publish({"type": "end"})
            if self._runs.get(thread) is parts:
                del self._runs[thread]

    @contextmanager
    def reading(self, thread: str, wake: Callable[[], None]) -> Iterator[Callable[[], list[LivePart]]]:
        """Yield a function that returns the parts of a thread's runs since its last call; texts are joined.

        Args:
            wake: Called after each new part.
        """
        parts: list[LivePart] | None = None
        position = 0

        def take() -> list[LivePart]:
            nonlocal parts, position
            taken = parts[position:] if parts is not None else []
            position += len(taken)
            if (current := self._runs.get(thread)) is not parts:
                parts, position = current, len(current or ())
                taken += current or []
            return _joined(taken)

        self._readers.setdefault(thread, []).append(wake)
        try:
            yield take
        finally:
            self._readers[thread].remove(wake)
            if not self._readers[thread]:
                del self._readers[thread]


def _joined(parts: Sequence[LivePart]) -> list[LivePart]:
    joined: list[LivePart] = []
    for part in parts:
        if part["type"] == "text" and joined and joined[-1]["type"] == "text":
            joined[-1] = {**part, "text": joined[-1]["text"] + part["text"]}
        else:
            joined.append(part)
    return joined


@dataclass(frozen=True)
class Host:
    """One agent, opened for a server."""

    source: AgentSource
    settings: ServerSettings
    kept: CompiledAgentGraph
    """Compiled with the database; its sessions outlive the process."""
    stateless: CompiledAgentGraph
    """Compiled with an in-memory saver; each request's thread is deleted when the request is answered."""
    saver: BaseCheckpointSaver[Any]
    store: BaseStore
    notifier: CheckpointNotifier
    """Notifies of checkpoints stored by this process."""
    feeds: Feeds
    """Event feeds of followed sessions."""
    live: LiveRuns = field(default_factory=LiveRuns)
    """The output of active runs."""
    credential_headers: Mapping[str, str] = field(default_factory=dict)
    """Credential name → the request header that may carry it."""
    response_keys: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """The lock of each idempotency key of the Responses API that a request of this process resolves."""
    started: int = field(default_factory=lambda: int(time.time()))
    """Start time of the server, in seconds since 1970."""

    def check_client_tools(self, names: list[str]) -> None:
        """Check that a caller's tool names do not collide with each other or with the agent's tools.

        Raises:
            ProblemError: If two tools have the same name.
        """
        try:
            ToolAliases([*self.tool_names, *names])
        except ConfigError as error:
            raise ProblemError("invalid", f"{error}", param="tools") from None

    def check_unsupported_tools(self, types: Sequence[str]) -> tuple[str, ...]:
        """Return warnings about a caller's tools that are no functions.

        Raises:
            ProblemError: If the settings refuse such tools.
        """
        if not types:
            return ()
        message = f"Tools of these types cannot be run here, only functions of the caller: {', '.join(types)}."
        if self.settings.unsupported_tools == "refuse":
            raise ProblemError("invalid", f"{message} Leave them out.", param="tools")
        return (f"{message} They were ignored.",)

    def check_images(self, messages: Sequence[AnyMessage]) -> None:
        """Check that no image has a URL that this process would connect to.

        Raises:
            ProblemError: If an image has a URL and the client of one of the agent's models downloads images.
        """
        builder = self.kept.builder
        if any(map(_has_image_url, messages)) and any(
            map(may_download_images, [builder.model, *builder.config.fallback_models])
        ):
            raise ProblemError(
                "invalid",
                "An image is given by an address. The client of this agent's model would download it on this server, "
                "which connects to no address that a request names. Send the image's bytes in base64.",
                param="messages",
            )

    def check_agentic_loops(self, limit: int | None) -> None:
        """Check that a request's limit of hook reruns is within the agent's configuration.

        Raises:
            ProblemError: If it is above the configured limit.
        """
        most = self.kept.builder.config.max_agentic_loops
        if limit is not None and limit > most:
            raise ProblemError(
                "invalid",
                f"max_agentic_loops={limit}: this agent allows at most {most}; send {most} or less, or leave it out.",
                param="max_agentic_loops",
            )

    def credentials_of(self, request: HTTPConnection) -> dict[str, SecretStr]:
        """Return the credentials in a request's headers; they are for the run of this request only.

        Raises:
            ProblemError: If the header of a credential occurs twice.
        """
        try:
            return credentials_of(request.headers, self.credential_headers)
        except InputError as error:
            raise ProblemError("invalid", str(error)) from None

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the agent's own tools and delegations."""
        return tuple(self.kept.builder.deps.toolbox.names)

    @property
    def asks(self) -> bool:
        """Whether calls of the agent, or of a delegate in this process, may wait for a person's approval."""
        return self.kept.builder.asks

    async def mcp_states(self) -> dict[str, str]:
        """Return the state of each MCP server: `ok` or `down`."""
        states = self.kept.builder.mcp_states
        return {} if states is None else {name: "ok" if up else "down" for name, up in (await states()).items()}

    async def suspend(self, thread: str) -> None:
        """Record that a thread may be deleted after `pending_ttl_s` seconds."""
        value = {"thread": thread, "until": time.time() + self.settings.pending_ttl_s}
        await self.store.aput(_SUSPENDED, thread.replace("/", ":"), value, index=False)

    async def forget(self, thread: str) -> None:
        """Delete a thread; does nothing if it does not exist."""
        await self.saver.adelete_thread(thread)
        await self.store.adelete(_SUSPENDED, thread.replace("/", ":"))

    async def sweep(self) -> int:
        """Delete suspended threads that have expired, and the oldest of each caller above `pending_requests`.

        Threads with an active run are kept.

        Returns:
            The number of threads deleted.
        """
        now, deleted = time.time(), 0
        kept: Counter[str] = Counter()
        for value in sorted(await self._suspended(), key=lambda value: value["until"], reverse=True):
            thread = value["thread"]
            caller = thread.partition("/")[0]
            kept[caller] += 1
            too_many = kept[caller] > self.settings.pending_requests
            if too_many or value["until"] < now:
                with contextlib.suppress(SessionBusyError):
                    async with lock_idle_session(self.saver, thread):
                        await self.forget(thread)
                    deleted += 1
        return deleted

    async def _suspended(self) -> list[dict[str, Any]]:
        # By key: a thread suspended between two reads shifts others to the next page, which then repeats them.
        suspended: dict[str, dict[str, Any]] = {}
        read = 0
        while found := await self.store.asearch(_SUSPENDED, limit=_PAGE, offset=read):
            read += len(found)
            suspended |= {item.key: item.value for item in found}
        return list(suspended.values())


def _has_image_url(message: AnyMessage) -> bool:
    blocks = message.content if isinstance(message.content, list) else []
    return any(isinstance(block, dict) and block.get("type") == "image" and "url" in block for block in blocks)


def new_token() -> str:
    """Return an unguessable name for a request's thread: 24 hexadecimal digits."""
    return secrets.token_hex(12)


@asynccontextmanager
async def open_host(source: AgentSource, settings: ServerSettings, db: str | None = None) -> AsyncIterator[Host]:
    """Open an agent and its database, and close both on leaving.

    Args:
        settings: Keys, credential headers and the times of suspended requests.
        db: A database URL that replaces the agent's own; None for the agent's own.

    Raises:
        ConfigError: If the agent or the database cannot be opened, or a credential's header is not permitted.
    """
    credential_headers = {**source.credential_headers, **settings.credential_headers}
    check_headers(credential_headers, has_keys=bool(settings.keys), session_header=settings.session_header)
    address = db or source.db
    async with source.open() as graph, open_saver(address) as saver, open_store(address) as store:
        memory = InMemorySaver(serde=strict_serializer())
        kept, notifier = _compile(graph, saver, store), CheckpointNotifier()
        host = Host(
            source=source,
            settings=settings,
            kept=kept,
            stateless=_compile(graph, memory, None),
            saver=saver,
            store=store,
            notifier=notifier,
            feeds=Feeds(notifier, partial(EventReader, kept, saver)),
            credential_headers=credential_headers,
        )
        host.notifier.watch(saver)
        every_s = max(1.0, min(60.0, settings.pending_ttl_s / 2))
        sweeping = poll_forever(host.sweep, every_s, logger, "Deleting expired requests")
        sweeper = asyncio.create_task(sweeping)
        try:
            yield host
        finally:
            sweeper.cancel()
            await asyncio.wait([sweeper])


def _compile(graph: CompiledAgentGraph, saver: BaseCheckpointSaver[Any], store: BaseStore | None) -> CompiledAgentGraph:
    return graph.builder.compile(
        checkpointer=saver, store=graph.store or store, cache=graph.cache, name=graph.get_name()
    )
