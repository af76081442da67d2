"""Holds the served agent of one process: with the database for sessions, and without for requests that keep none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from langchain_core.messages import AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore, SearchItem
from pydantic import SecretStr
from starlette.requests import HTTPConnection

from graph_agent.base._internal.credential_headers import check_headers, credentials_of
from graph_agent.base._internal.polling import polling
from graph_agent.base.errors import ConfigError, InputError, SessionBusyError
from graph_agent.interfaces.server.agent_source import AgentSource
from graph_agent.interfaces.server.feeds import CheckpointNotifier, Feeds, LiveRuns
from graph_agent.interfaces.server.problems import InvalidRequestError
from graph_agent.interfaces.server.session_filter import TotalsReader
from graph_agent.interfaces.server.settings import KEYS_VARIABLE, ServerSettings
from graph_agent.session.activity import lock_idle_session
from graph_agent.session.agent_checks import check_further_tools, downloads_images
from graph_agent.session.compiled import CompiledAgentGraph
from graph_agent.session.history import EventReader
from graph_agent.storage.checkpoints.open import open_saver, open_store

logger = logging.getLogger("graph_agent.server.host")

_SUSPENDED = ("graph_agent", "parked")  # the name is in stored databases
"""Store namespace of suspended threads, which belong to requests without a session that wait for results of the
caller's own tools. Key → `thread` and `until` (expiry, in seconds since 1970).
"""
_PAGE = 1000
_CLAIM_POLL_S = 0.02
_CLAIM_CHECK_S = 1.0


@dataclass(frozen=True)
class Host:
    """One agent that is open in a server, with its database and what all requests share."""

    source: AgentSource
    settings: ServerSettings
    kept: CompiledAgentGraph
    """The agent compiled with the database, for requests with a session."""
    stateless: CompiledAgentGraph
    """The agent compiled without a checkpointer, for requests that nothing can resume."""
    saver: BaseCheckpointSaver[Any]
    store: BaseStore
    notifier: CheckpointNotifier
    feeds: Feeds
    live: LiveRuns = field(default_factory=LiveRuns)
    totals: TotalsReader = field(default_factory=TotalsReader)
    credential_headers: Mapping[str, str] = field(default_factory=dict)
    claims: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Name → lock that the requests of this process hold or wait for while they claim the name."""
    closing: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks that complete requests after their response and need the database; they are awaited before it is closed."""
    started: int = field(default_factory=lambda: int(time.time()))
    """Start time of the server, in seconds since 1970."""

    def check_client_tools(self, names: list[str]) -> None:
        """Raise `InvalidRequestError` if names of a caller's tools collide with each other or with tools of the agent,
        or cannot be used.
        """
        try:
            check_further_tools(self.kept, names)
        except ConfigError as error:
            raise InvalidRequestError(f"{error}", "tools") from None

    def unsupported_tools_warning(self, types: Sequence[str]) -> str:
        """Return the warning that tools of the caller are ignored because they are not functions.

        Raises `InvalidRequestError` if the setting `unsupported_tools` is `refuse`.

        Args:
            types: The types of the caller's tools that are not functions.
        """
        message = f"Tools of these types cannot be run here, only functions of the caller: {', '.join(types)}."
        if self.settings.unsupported_tools == "refuse":
            raise InvalidRequestError(f"{message} Leave them out.", "tools")
        return f"{message} They were ignored."

    def check_images(self, messages: Sequence[AnyMessage]) -> None:
        """Raise `InvalidRequestError` if a message has an image with a URL that the client of a model would download on
        this server.
        """
        if any(map(_has_image_url, messages)) and downloads_images(self.kept):
            raise InvalidRequestError(
                "An image is given by an address. The client of this agent's model would download it on this server, "
                "which connects to no address that a request names. Send the image's bytes in base64.",
                "messages",
            )

    def check_agentic_loops(self, limit: int) -> None:
        """Raise `InvalidRequestError` if a request allows more reruns of the model by hooks (`limit`) than the agent
        does.
        """
        most = self.kept.builder.config.max_agentic_loops
        if limit > most:
            raise InvalidRequestError(
                f"max_agentic_loops={limit}: this agent allows at most {most}; send {most} or less, or leave it out.",
                "max_agentic_loops",
            )

    def credentials_of(self, request: HTTPConnection) -> dict[str, SecretStr]:
        """Return the credentials in a request's headers, by name; raise `InvalidRequestError` if a header occurs
        twice.
        """
        try:
            return credentials_of(request.headers, self.credential_headers)
        except InputError as error:
            raise InvalidRequestError(str(error)) from None

    def context_of(self, thread: str, context: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the context of a run in a thread.

        For an agent with a memory on a server with keys, `caller` is set to the name with which the thread begins,
        whatever the context has.
        """
        if self.kept.builder.deps.memory is None or not self.settings.keys:
            return {**context}
        # `Caller` has made the thread from the key's name, so that nothing in a request decides whose facts it reaches.
        return {**context, "caller": thread.partition("/")[0]}

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the agent's own tools and delegations."""
        return tuple(self.kept.builder.deps.toolbox.names)

    @property
    def may_write(self) -> bool:
        """Whether the agent has a tool or a delegate with possible side effects."""
        return self.kept.builder.deps.toolbox.may_write

    @property
    def asks(self) -> bool:
        """Whether calls of the agent, or of a delegate in this process, may wait for an approval."""
        return self.kept.builder.asks

    @property
    def drawn_nodes(self) -> list[str]:
        """Which of the nodes `tools`, `delegate` and `approve` the agent can enter."""
        toolbox = self.kept.builder.deps.toolbox
        entered = {"tools": bool(toolbox.tools), "delegate": bool(toolbox.delegates), "approve": self.asks}
        return [name for name, is_entered in entered.items() if is_entered]

    async def mcp_states(self) -> dict[str, str]:
        """Return the state of each MCP server, name → `ok` or `down`; empty for an agent without MCP servers.

        A server that is down may be started again by this check.
        """
        states = self.kept.builder.mcp_states
        return {} if states is None else {name: "ok" if up else "down" for name, up in (await states()).items()}

    async def suspend(self, thread: str, ttl_s: float | None = None) -> None:
        """Record that a thread waits for its caller, and may be deleted after `ttl_s` seconds.

        For None or 0, the setting `pending_ttl_s` applies. An earlier record of the thread is replaced.
        """
        value = {"thread": thread, "until": time.time() + (ttl_s or self.settings.pending_ttl_s)}
        await self.store.aput(_SUSPENDED, thread.replace("/", ":"), value, index=False)

    @asynccontextmanager
    async def claim(self, name: str, check: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Wait until no other request claims this name, in any process on the database, and exclude others within the
        context.

        Requests of this process wait in order; the first of them polls the database every 20 ms. There is no limit of
        the time.

        Args:
            name: The name, such as a thread.
            check: Called at least once a second while waiting. An exception that it raises ends the waiting, and is
                raised here.
        """
        lock = self.claims.setdefault(name, asyncio.Lock())
        while True:
            check()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(lock.acquire(), _CLAIM_CHECK_S)
                break
        try:
            async with contextlib.AsyncExitStack() as stack:
                # Only the first of this process polls: many that poll at once take more time than the work between.
                while True:
                    check()
                    try:
                        await stack.enter_async_context(lock_idle_session(self.saver, name))
                        break
                    except SessionBusyError:
                        await asyncio.sleep(_CLAIM_POLL_S)
                yield
        finally:
            lock.release()

    async def forget(self, thread: str) -> None:
        """Delete a thread and the record that it is suspended; does nothing if they do not exist."""
        await self.saver.adelete_thread(thread)
        await self.store.adelete(_SUSPENDED, thread.replace("/", ":"))

    async def sweep(self) -> int:
        """Delete suspended threads that have expired and, of each caller, those that expire first, beyond
        `pending_requests`.

        Threads with an active run are kept. Returns the number of threads that were deleted.
        """
        now, deleted = time.time(), 0
        kept: Counter[str] = Counter()
        suspended = [item.value for item in await all_items(self.store, _SUSPENDED)]
        for value in sorted(suspended, key=lambda value: value["until"], reverse=True):
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


async def all_items(store: BaseStore, namespace: tuple[str, ...]) -> list[SearchItem]:
    """Return all items of a store's namespace, ordered by key. They are read in pages."""
    # By key: an item that is added between two reads shifts others to the next page, which then repeats them.
    found: dict[str, SearchItem] = {}
    read = 0
    while page := await store.asearch(namespace, limit=_PAGE, offset=read):
        read += len(page)
        found |= {each.key: each for each in page}
    return [found[key] for key in sorted(found)]


def _has_image_url(message: AnyMessage) -> bool:
    """Return whether a message contains an image that is given by a URL."""
    blocks = message.content if isinstance(message.content, list) else []
    return any(isinstance(block, dict) and block.get("type") == "image" and "url" in block for block in blocks)


def thread_token() -> str:
    """Return a random name for the thread of a request without a session: 24 hexadecimal digits, which cannot be
    guessed.
    """
    return secrets.token_hex(12)


@asynccontextmanager
async def open_host(source: AgentSource, settings: ServerSettings, db: str | None = None) -> AsyncIterator[Host]:
    """Open an agent and its database, and close both on exit; yields the host.

    Meanwhile expired requests are deleted in the background. Before the database is closed, the tasks in `Host.closing`
    are awaited.

    Args:
        source: The agent.
        settings: Keys, limits and times of the server.
        db: A database URL that replaces the agent's; None for the agent's.

    Raises:
        ConfigError: The agent or the database cannot be opened, a credential's header is not permitted, or the agent
            has a memory and the server no keys.
    """
    credential_headers = {**source.credential_headers, **settings.credential_headers}
    check_headers(credential_headers, has_keys=bool(settings.keys), session_header=settings.session_header)
    address = db or source.db
    async with source.open() as graph, open_saver(address) as saver, open_store(address) as store:
        has_memory = graph.builder.deps.memory is not None and graph.builder.caller is None
        check_callers(source.needs_callers or has_memory, settings)
        kept, notifier = _compile(graph, saver, store), CheckpointNotifier()
        host = Host(
            source=source,
            settings=settings,
            kept=kept,
            stateless=_compile(graph, None, None),
            saver=saver,
            store=store,
            notifier=notifier,
            feeds=Feeds(notifier, partial(EventReader, kept, saver)),
            credential_headers=credential_headers,
        )
        host.notifier.watch(saver)
        every_s = max(1.0, min(60.0, settings.pending_ttl_s / 2))
        async with polling(host.sweep, every_s, logger, "Deleting expired requests"):
            try:
                yield host
            finally:
                if host.closing:
                    await asyncio.wait(host.closing)


def check_callers(needs_callers: bool, settings: ServerSettings) -> None:
    """Raise `ConfigError` if an agent needs to distinguish its users, because it has a memory, and the server has no
    keys.
    """
    if needs_callers and not settings.keys:
        raise ConfigError(
            "memory: this server has no API keys, so all who reach it would share one memory. Give each user a key, in "
            f"{KEYS_VARIABLE} or a keys file (one 'name:key' a line), or remove the memory from the agent file."
        )


def _compile(
    graph: CompiledAgentGraph, saver: BaseCheckpointSaver[Any] | None, store: BaseStore | None
) -> CompiledAgentGraph:
    """Return the agent compiled with a checkpointer and a store, None for neither; cache and name stay.

    A store that the agent has itself takes precedence over `store`.
    """
    return graph.builder.compile(
        checkpointer=saver, store=graph.store or store, cache=graph.cache, name=graph.get_name()
    )
