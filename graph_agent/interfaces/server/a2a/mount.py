"""Mounts A2A routes in the application, with its address, keys, limits and agent card."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib import metadata

from a2a.auth.user import UnauthenticatedUser, User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes import create_agent_card_routes
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, TransportProtocol
from langgraph.checkpoint.base import BaseCheckpointSaver
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from typing_extensions import Unpack

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.secrets import SECRET_HEADERS
from graph_agent.base._internal.signals import drain_on_sigterm
from graph_agent.base.calls import delegate_name, is_delegation
from graph_agent.base.types import OK
from graph_agent.integrations.delegates.a2a_parts import EXTENSION
from graph_agent.interfaces.server.a2a.app import CARD_AGE_S, A2AOptions, A2AServer
from graph_agent.interfaces.server.a2a.conversations import task_lease
from graph_agent.interfaces.server.a2a.executor import STEERING, NoSlotError, SlotFactory
from graph_agent.interfaces.server.a2a.request_bounds import RequestBounds
from graph_agent.interfaces.server.a2a.store import open_stores
from graph_agent.interfaces.server.admission.gate import Caller, RequestLimits, admit_requests, admitted_caller, guard
from graph_agent.interfaces.server.admission.worker_folder import limits_of
from graph_agent.interfaces.server.chat.handler import Runs
from graph_agent.interfaces.server.chat.schemas import SESSION_ID
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.interfaces.server.readiness import CACHE_S, StateCheck, database_states, readiness
from graph_agent.interfaces.server.settings import CARD_PATH, REST_PATH, RPC_PATH, ServerSettings
from graph_agent.session.activity import sees_other_processes
from graph_agent.session.compiled import CompiledAgentGraph

INPUT_MODES = ["text/plain", "text/markdown", "text/csv", "text", "application/json"]
"""Media types of messages that are accepted; other types are refused."""

_BINDINGS = ((TransportProtocol.JSONRPC, RPC_PATH), (TransportProtocol.HTTP_JSON, REST_PATH))
_VERSIONS = (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3)


def agent_card(
    graph: CompiledAgentGraph,
    url: str,
    *,
    name: str = "",
    description: str = "",
    version: str = "",
    skills: Sequence[AgentSkill] = (),
    push_notifications: bool = False,
) -> AgentCard:
    """Build the card of an agent, the document that describes it to A2A clients.

    Without tools, delegates and `skills`, the card has one skill, conversation. The endpoints are those of JSON-RPC and
    HTTP+JSON, each in the protocol versions 1.0 and 0.3, below `url`.

    Args:
        graph: The agent; its tools and delegates become skills.
        url: The server's public address without the paths of A2A, e.g. `http://127.0.0.1:9001`.
        name: The agent's name; empty for the graph's name.
        description: The agent's purpose; empty for a default text with the name.
        version: The agent's version; empty for that of this package.
        skills: Additional skills, listed first; one with a tool's name replaces the tool's skill.
        push_notifications: Whether the server sends push notifications.
    """
    url = url.rstrip("/")
    given = {skill.id for skill in skills}
    return AgentCard(
        name=name or graph.name,
        description=description or f"The agent {name or graph.name}.",
        version=version or metadata.version("graph-agent"),
        supported_interfaces=[
            AgentInterface(url=url + path, protocol_binding=binding.value, protocol_version=protocol_version)
            for protocol_version in _VERSIONS
            for binding, path in _BINDINGS
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=push_notifications,
            extended_agent_card=False,
            extensions=[
                AgentExtension(uri=EXTENSION, description="Takes what is left of a delegating run, and keeps to it."),
                AgentExtension(uri=STEERING, description="Messages steer the running task of their conversation."),
            ],
        ),
        default_input_modes=INPUT_MODES,
        default_output_modes=["text/plain"],
        skills=[*skills, *(skill for skill in _own_skills(graph) if skill.id not in given)] or [_conversation()],
    )


def _own_skills(graph: CompiledAgentGraph) -> list[AgentSkill]:
    """Return one skill for each tool and delegate of an agent: its name, its description or else its name, and the tag
    `tool` or `delegate`.
    """
    schemas = graph.builder.deps.toolbox.schemas
    return [
        AgentSkill(
            id=function["name"],
            name=delegate_name(function["name"]),
            description=function.get("description") or function["name"],
            tags=["delegate" if is_delegation(function["name"]) else "tool"],
        )
        for function in (schema["function"] for schema in schemas)
    ]


def _conversation() -> AgentSkill:
    """Return the only skill of an agent without tools, because the protocol requires at least one."""
    return AgentSkill(id="conversation", name="conversation", description="Answers questions.", tags=["conversation"])


@asynccontextmanager
async def a2a_routes(
    runs: Runs, limits: RequestLimits, tasks: RequestLimits, db: str
) -> AsyncIterator[list[BaseRoute]]:
    """Serve the open agent to A2A clients within the context; yields the routes, and stops the tasks on exit.

    A conversation is a session of the caller, with the same id if that is a valid session id. Other processes may serve
    the same database, e.g. a replacement server during a restart. A task can be cancelled through any of them; a
    process that does not run the task streams it without the pieces of its answer. Raises `ConfigError` if the database
    of the tasks cannot be opened.

    Args:
        runs: The runs of the server; the tasks are drained and stopped together with them.
        limits: Limits of requests per caller.
        tasks: Limits of active tasks per caller. A task may outlast its request.
        db: URL of the database of the tasks.
    """
    host = runs.host
    other_processes = task_lease(host.kept, _thread) if await sees_other_processes(host.saver) else None
    async with open_stores(db, task_lease=other_processes) as stores:
        server = A2AServer(
            host.kept,
            _card(runs, ""),
            stores=stores,
            show_outputs=host.source.show_outputs,
            session_ids=_thread,
            context_builder=CallerContext(),
            credential_headers=host.credential_headers,
            slots=task_slots(tasks),
            bounds=bounds_of(host.settings),
        )
        closing = runs.register_closer(server.aclose, drain=server.drain)
        admit_requests(server.routes, runs, limits, protocol="A2A")
        # The SDK's card has a fixed URL; here it depends on the address of the request.
        card = Route(CARD_PATH, partial(_respond_with_card, runs), methods=["GET"])
        try:
            yield [card, *(route for route in server.routes if getattr(route, "path", "") != CARD_PATH)]
        finally:
            if runs.draining:
                # Tasks without a connected client hold no connection open; only this waits for their boundary.
                await server.drained(host.settings.drain_s)
            await asyncio.shield(closing())


def bounds_of(settings: ServerSettings) -> RequestBounds:
    """Return the size limits of one A2A request that the server's settings define."""
    return RequestBounds(
        values=settings.max_a2a_values,
        depth=settings.max_body_depth,
        parts=settings.max_a2a_parts,
        characters=settings.max_a2a_characters,
    )


def task_slots(tasks: RequestLimits) -> SlotFactory:
    """Return a `SlotFactory` that limits the concurrent tasks of each user.

    Its context managers raise `NoSlotError` on entry if the user has no free slot, with the message of the limit.
    """

    @contextmanager
    def slot(user: str) -> Iterator[None]:
        """Occupy one task slot of a user within the block; raise `NoSlotError` if none is free."""
        try:
            tasks.enter(user)
        except ProblemError as problem:
            raise NoSlotError(problem.message) from None
        try:
            yield
        finally:
            tasks.leave(user)

    return slot


def _card(runs: Runs, url: str) -> AgentCard:
    """Return the agent card for a server URL, with the skills of the source before those of the agent's tools.

    If the server has keys, the card declares both ways to send one, as alternatives.
    """
    source = runs.host.source
    card = agent_card(
        runs.host.kept,
        url,
        name=source.name,
        description=source.description,
        skills=[
            AgentSkill(
                id=skill.id,
                name=skill.name or skill.id,
                description=skill.description,
                tags=skill.tags or ["skill"],
                examples=skill.examples,
            )
            for skill in source.skills
        ],
        push_notifications=source.push_notifications,
    )
    if runs.host.settings.keys:
        card.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
        card.security_schemes["x-api-key"].api_key_security_scheme.name = "x-api-key"
        card.security_schemes["x-api-key"].api_key_security_scheme.location = "header"
        # Two requirements are alternatives; two schemes in one would both be needed.
        for name in ("bearer", "x-api-key"):
            card.security_requirements.add().schemes[name].list.extend([])
    return card


async def _respond_with_card(runs: Runs, request: Request) -> Response:
    """Respond with the agent card, for the URL of the setting `public_url` or else the address of the request. Clients
    may cache it for a minute.
    """
    url = runs.host.settings.public_url or str(request.base_url)
    [route] = create_agent_card_routes(_card(runs, url), cache_control=f"private, max-age={CARD_AGE_S}")
    response: Response = await route.endpoint(request)
    return response


class _KeyUser(User):
    """The owner of an API key, as a user of the SDK."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        """Always True."""
        return True

    @property
    def user_name(self) -> str:
        """Name of the key."""
        return self._name


class CallerContext(ServerCallContextBuilder):
    """Builds the SDK's context of an admitted request, with the owner of the key as its user, and without headers that
    carry keys.
    """

    def build(self, request: Request) -> ServerCallContext:
        """Return the context of a request: the owner of its key as the user, its headers without those that carry keys,
        and the extensions that it requests.

        On a server without keys, the user is not authenticated. Raises `AttributeError` for a request that was not
        admitted.
        """
        name = admitted_caller(request).name
        return ServerCallContext(
            user=_KeyUser(name) if name else UnauthenticatedUser(),
            state={"headers": {name: value for name, value in request.headers.items() if name not in SECRET_HEADERS}},
            requested_extensions=get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER)),
        )


def _thread(user: str, context_id: str) -> str:
    """Return the LangGraph thread of a user's conversation: `USER/CONVERSATION`, or the conversation alone without a
    user.

    A conversation id that is no valid session id is replaced by `a2a-` and its hash.
    """
    # Clients choose context ids freely; one with a slash would reach other callers' sessions.
    is_valid = re.fullmatch(SESSION_ID, context_id)
    session_id = context_id if is_valid else f"a2a-{hashlib.sha256(context_id.encode()).hexdigest()}"
    return Caller(user).thread(session_id)


def a2a_app(
    graph: CompiledAgentGraph,
    card: AgentCard,
    *,
    settings: ServerSettings | None = None,
    drain_s: float | None = None,
    **options: Unpack[A2AOptions],
) -> Starlette:
    """Create an application that serves an agent over A2A, and `/health` and `/ready` for probes.

    Requests pass the same checks as with `graph-agent a2a`. Only the HTTP server can limit the size and time of
    headers, and idle connections: pass `http=graph_agent.interfaces.server.admission.connections.BoundedProtocol` to
    uvicorn for that.

    Args:
        graph: The agent, compiled with a checkpointer.
        card: The agent card, e.g. from `agent_card`.
        settings: API keys, origins and limits; None for the defaults, which have no keys: then requests of web pages of
            other origins, and requests to a host name with a dot, are refused.
        drain_s: Seconds that tasks may take to reach a superstep boundary after the first SIGTERM; a second one stops
            them at once. None to install no signal handler: then tasks are stopped with the application.
        options: Keyword arguments of `A2AServer`. With keys, its users are the names of the keys.

    Raises:
        ConfigError: The graph has no checkpointer.
    """
    settings = settings or ServerSettings()
    limits, _, tasks = limits_of(settings, None)
    given: A2AOptions = {"slots": task_slots(tasks), "bounds": bounds_of(settings)}
    if settings.keys:
        given["context_builder"] = CallerContext()
    # Options of the caller replace those of the settings.
    given.update(options)
    server = A2AServer(graph, card, **given)
    admit_requests(server.routes, server, limits, protocol="A2A")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        """Run the application; when it stops, drain the tasks if SIGTERM was received, and stop them."""
        with drain_on_sigterm(server, drain_s or 0, enabled=drain_s is not None):
            try:
                yield
            finally:
                if server.draining:
                    # Tasks without a connected client hold no connection open; only this waits for their boundary.
                    await server.drained(drain_s or 0)
                await server.aclose()

    app = Starlette(routes=[*server.routes, *_probes(graph, server)], lifespan=lifespan)
    if telemetry.observer is not None:
        app.add_middleware(telemetry.observer.middleware)
    guard(app, settings, ["/*"])
    return app


def _probes(graph: CompiledAgentGraph, server: A2AServer) -> list[BaseRoute]:
    """Return the routes `/health`, which reports that the process is alive, and `/ready`.

    `/ready` has the states of the server and the database (at most `CACHE_S` seconds old), and the status 503 if the
    server is stopping, or the database cannot be used.
    """
    saver = graph.checkpointer
    assert isinstance(saver, BaseCheckpointSaver), "an A2A server has a checkpointer"
    database = StateCheck("database", partial(database_states, saver, graph.store), CACHE_S)

    async def health(request: Request) -> Response:
        """Respond with status 200."""
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        """Respond with the states of the server and the database, with status 503 if one is not `ok`."""
        return readiness({"server": "stopping" if server.draining else OK, **await database.states()})

    return [Route("/health", health), Route("/ready", ready)]
