"""The agent as a server holds it: once with a memory, for sessions, and once without, for requests that keep none."""

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
from graph_agent._internal.polling import look_again
from graph_agent.compiled import AgentStateGraph, CompiledAgentGraph
from graph_agent.config import LoopConfig
from graph_agent.errors import ConfigError, InputError, SessionBusyError
from graph_agent.models.aliases import ToolAliases
from graph_agent.models.images import may_download_images
from graph_agent.persistence.open import open_saver, open_store, strict_serializer
from graph_agent.runs.registry import kept_idle
from graph_agent.server.admission.problems import ProblemError
from graph_agent.server.process.settings import ServerSettings
from graph_agent.server.process.sources import AgentSource
from graph_agent.server.sessions.feeds import Feeds
from graph_agent.server.sessions.notifier import News
from graph_agent.session.event_reader import EventReader

logger = logging.getLogger(__name__)

_PARKED = ("graph_agent", "parked")
"""Store namespace of the threads of requests that wait for their caller: key → the thread, and until when."""
_PAGE = 1000


@dataclass(frozen=True)
class Host:
    """One agent, opened for a server."""

    source: AgentSource
    settings: ServerSettings
    kept: CompiledAgentGraph
    """With the database; its sessions outlive the process."""
    passing: CompiledAgentGraph
    """With a memory of its own, which forgets each request when it is answered."""
    saver: BaseCheckpointSaver[Any]
    store: BaseStore
    news: News
    """Notifies of what is stored in this process."""
    feeds: Feeds
    """The events of followed sessions."""
    credential_headers: Mapping[str, str] = field(default_factory=dict)
    """Credential name → the header in which a request may bring it."""
    started: int = field(default_factory=lambda: int(time.time()))
    """When the server started, in seconds since 1970."""

    def check_client_tools(self, names: list[str]) -> None:
        """Check that a caller's tools can stand beside the agent's own.

        Raises:
            ProblemError: When two of them have one name.
        """
        try:
            ToolAliases([*self.tool_names, *names])
        except ConfigError as error:
            raise ProblemError("invalid", f"{error}", param="tools") from None

    def check_images(self, messages: Sequence[AnyMessage]) -> None:
        """Check that no image is given by an address that this process would connect to.

        Raises:
            ProblemError: When one is, and the client of a model of the agent downloads images.
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

    def check_agentic_loops(self, asked: int | None) -> None:
        """Check that a request asks for no more reruns by hooks than the agent's configuration allows.

        Raises:
            ProblemError: When it does.
        """
        builder = self.kept.builder
        config = builder.config if isinstance(builder, AgentStateGraph) else None
        most = (config or LoopConfig()).max_agentic_loops
        if asked is not None and asked > most:
            raise ProblemError(
                "invalid",
                f"max_agentic_loops={asked}: this agent allows at most {most}; send {most} or less, or leave it out.",
                param="max_agentic_loops",
            )

    def credentials_of(self, request: HTTPConnection) -> dict[str, SecretStr]:
        """The credentials that a request brings for its run, and for no other.

        Raises:
            ProblemError: When a header of one is there twice.
        """
        try:
            return credentials_of(request.headers, self.credential_headers)
        except InputError as error:
            raise ProblemError("invalid", str(error)) from None

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the tools and delegations of the agent itself."""
        builder = self.kept.builder
        return builder.tool_names if isinstance(builder, AgentStateGraph) else ()

    async def mcp_states(self) -> dict[str, str]:
        """Each MCP server's state: `ok` or `down`."""
        builder = self.kept.builder
        if not isinstance(builder, AgentStateGraph) or builder.mcp_states is None:
            return {}
        return {name: "ok" if up else "down" for name, up in (await builder.mcp_states()).items()}

    async def park(self, thread: str) -> None:
        """Note that a thread may be thrown away from some time on."""
        value = {"thread": thread, "until": time.time() + self.settings.park_s}
        await self.store.aput(_PARKED, thread.replace("/", ":"), value, index=False)

    async def forget(self, thread: str) -> None:
        """Throw a thread away; of one that is not there nothing is said."""
        await self.saver.adelete_thread(thread)
        await self.store.adelete(_PARKED, thread.replace("/", ":"))

    async def sweep(self) -> int:
        """Throw away what has waited long enough for its caller, and of each caller's what is more than it may keep.

        Returns:
            How many threads that were; one that is at work stays.
        """
        now, gone = time.time(), 0
        kept: Counter[str] = Counter()
        for value in sorted(await self._parked(), key=lambda value: value["until"], reverse=True):
            thread = value["thread"]
            caller = thread.partition("/")[0]
            kept[caller] += 1
            too_many = kept[caller] > self.settings.parked_requests
            if too_many or value["until"] < now:
                with contextlib.suppress(SessionBusyError):
                    async with kept_idle(self.saver, thread):
                        await self.forget(thread)
                    gone += 1
        return gone

    async def _parked(self) -> list[dict[str, Any]]:
        # By key: what is parked between two pages moves others from one to the next.
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
    """A name for a request's thread that nobody can guess: 24 hexadecimal digits."""
    return secrets.token_hex(12)


@asynccontextmanager
async def open_host(source: AgentSource, settings: ServerSettings, db: str | None = None) -> AsyncIterator[Host]:
    """Open an agent and its database, and close both on leaving.

    Args:
        source: The agent.
        settings: How long what is parked is kept.
        db: Another database than the agent's own.

    Raises:
        ConfigError: When the agent or the database cannot be opened, or a credential's header cannot be one.
    """
    credential_headers = {**source.credential_headers, **settings.credential_headers}
    check_headers(credential_headers, has_keys=bool(settings.keys))
    address = db or source.db
    async with source.open() as graph, open_saver(address) as saver, open_store(address) as store:
        memory = InMemorySaver(serde=strict_serializer())
        kept, news = _compiled(graph, saver, store), News()
        host = Host(
            source=source,
            settings=settings,
            kept=kept,
            passing=_compiled(graph, memory, None),
            saver=saver,
            store=store,
            news=news,
            feeds=Feeds(news, partial(EventReader, kept, saver)),
            credential_headers=credential_headers,
        )
        host.news.watch(saver)
        every_s = max(1.0, min(60.0, settings.park_s / 2))
        sweeping = look_again(host.sweep, every_s, logger, "Throwing away what waited too long")
        sweeper = asyncio.create_task(sweeping)
        try:
            yield host
        finally:
            sweeper.cancel()
            await asyncio.wait([sweeper])


def _compiled(
    graph: CompiledAgentGraph, saver: BaseCheckpointSaver[Any], store: BaseStore | None
) -> CompiledAgentGraph:
    made = graph.builder.compile(
        checkpointer=saver, store=graph.store or store, cache=graph.cache, name=graph.get_name()
    )
    assert isinstance(made, CompiledAgentGraph)
    return made
