"""A server's agent, compiled twice: with the database for sessions, and without for requests that keep no session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.messages import AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from pydantic import SecretStr
from starlette.requests import HTTPConnection

from graph_agent._internal.credential_headers import check_headers, credentials_of
from graph_agent._internal.polling import poll_forever
from graph_agent.compiled import AgentStateGraph, CompiledAgentGraph
from graph_agent.config import LoopConfig
from graph_agent.errors import ConfigError, InputError, SessionBusyError
from graph_agent.models.aliases import ToolAliases
from graph_agent.models.images import may_download_images
from graph_agent.persistence.open import open_saver, open_store, strict_serializer
from graph_agent.runs.registry import lock_idle_session
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.hosting.feeds import Feeds
from graph_agent.server.hosting.notifier import CheckpointNotifier
from graph_agent.server.hosting.sources import AgentSource
from graph_agent.server.settings import ServerSettings
from graph_agent.session.event_reader import EventReader

logger = logging.getLogger(__name__)

_PARKED = ("graph_agent", "parked")
"""Store namespace of parked threads, whose requests wait for their caller: key → thread and expiry."""
_PAGE = 1000


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
    credential_headers: Mapping[str, str] = field(default_factory=dict)
    """Credential name → the request header that may carry it."""
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

    def check_images(self, messages: Sequence[AnyMessage]) -> None:
        """Check that no image has a URL that this process would connect to.

        Raises:
            ProblemError: If an image has a URL and the client of one of the agent's models downloads images.
        """
        builder = self.kept.builder
        if not isinstance(builder, AgentStateGraph) or not any(map(_has_image_url, messages)):
            return
        fallbacks = builder.config.fallback_models if builder.config is not None else ()
        models = [model for model in (builder.model, *fallbacks) if model is not None]
        if any(map(may_download_images, models)):
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
        builder = self.kept.builder
        config = builder.config if isinstance(builder, AgentStateGraph) else None
        most = (config or LoopConfig()).max_agentic_loops
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
        builder = self.kept.builder
        return builder.tool_names if isinstance(builder, AgentStateGraph) else ()

    @property
    def asks(self) -> bool:
        """Whether calls of the agent, or of a delegate in this process, may wait for a person's approval."""
        builder = self.kept.builder
        return isinstance(builder, AgentStateGraph) and builder.asks

    async def mcp_states(self) -> dict[str, str]:
        """Return the state of each MCP server: `ok` or `down`."""
        builder = self.kept.builder
        if not isinstance(builder, AgentStateGraph) or builder.mcp_states is None:
            return {}
        return {name: "ok" if up else "down" for name, up in (await builder.mcp_states()).items()}

    async def park(self, thread: str) -> None:
        """Record that a thread may be deleted after `park_s` seconds."""
        value = {"thread": thread, "until": time.time() + self.settings.park_s}
        await self.store.aput(_PARKED, thread.replace("/", ":"), value, index=False)

    async def forget(self, thread: str) -> None:
        """Delete a thread; does nothing if it does not exist."""
        await self.saver.adelete_thread(thread)
        await self.store.adelete(_PARKED, thread.replace("/", ":"))

    async def sweep(self) -> int:
        """Delete parked threads that have expired, and the oldest of each caller above `parked_requests`.

        Threads with an active run are kept.

        Returns:
            The number of threads deleted.
        """
        now, deleted = time.time(), 0
        kept: Counter[str] = Counter()
        for value in sorted(await self._parked(), key=lambda value: value["until"], reverse=True):
            thread = value["thread"]
            caller = thread.partition("/")[0]
            kept[caller] += 1
            too_many = kept[caller] > self.settings.parked_requests
            if too_many or value["until"] < now:
                with contextlib.suppress(SessionBusyError):
                    async with lock_idle_session(self.saver, thread):
                        await self.forget(thread)
                    deleted += 1
        return deleted

    async def _parked(self) -> list[dict[str, Any]]:
        # By key: a thread parked between two reads shifts others to the next page, which then repeats them.
        parked: dict[str, dict[str, Any]] = {}
        read = 0
        while found := await self.store.asearch(_PARKED, limit=_PAGE, offset=read):
            read += len(found)
            parked |= {item.key: item.value for item in found}
        return list(parked.values())


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
        source: The agent.
        settings: Keys, credential headers and the times of parked requests.
        db: A database URL that replaces the agent's own; None for the agent's own.

    Raises:
        ConfigError: If the agent or the database cannot be opened, or a credential's header is not permitted.
    """
    credential_headers = {**source.credential_headers, **settings.credential_headers}
    check_headers(credential_headers, has_keys=bool(settings.keys))
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
        every_s = max(1.0, min(60.0, settings.park_s / 2))
        sweeping = poll_forever(host.sweep, every_s, logger, "Deleting expired requests")
        sweeper = asyncio.create_task(sweeping)
        try:
            yield host
        finally:
            sweeper.cancel()
            await asyncio.wait([sweeper])


def _compile(graph: CompiledAgentGraph, saver: BaseCheckpointSaver[Any], store: BaseStore | None) -> CompiledAgentGraph:
    compiled = graph.builder.compile(
        checkpointer=saver, store=graph.store or store, cache=graph.cache, name=graph.get_name()
    )
    assert isinstance(compiled, CompiledAgentGraph)
    return compiled
