"""The page of the HTTP routes, from the application's OpenAPI document and the A2A server's routes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from starlette.routing import BaseRoute, Route

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.a2a.server import A2AServer
from graph_agent.server import create_app
from graph_agent.server.a2a.card import agent_card
from graph_agent.server.admission.gate import OPEN
from graph_agent.server.hosting.host import AgentSource
from graph_agent.server.problems import STATUS, Kind
from graph_agent.spec.agent_file import DEFAULT_DB
from scripts.reference.markdown import code, document, table

_A2A = {
    "handle_requests": "JSON-RPC of A2A 1.0 and 0.3: every method below, by the `method` of the body.",
    "_get_agent_card": "Return the agent card.",
    "on_get_extended_agent_card": "Return the extended agent card; this server has none.",
    "handle_authenticated_agent_card": "Return the extended agent card; this server has none.",
    "on_message_send": "Send a message; return the task or message.",
    "on_message_send_stream": "Send a message; stream the task's updates as SSE.",
    "on_cancel_task": "Cancel a task.",
    "on_subscribe_to_task": "Stream the further updates of a running task as SSE.",
    "on_get_task": "Return a task.",
    "list_tasks": "List the caller's tasks.",
    "get_push_notification": "Return one push notification configuration of a task.",
    "set_push_notification": "Subscribe a URL to a task's changes.",
    "list_push_notifications": "List the push notification configurations of a task.",
    "delete_push_notification": "Delete a push notification configuration.",
}
"""Endpoint of the A2A SDK → description; the SDK's own docstrings describe its code."""

_REFUSALS: Mapping[Kind, str] = {
    "invalid": "Malformed.",
    "key": "Missing or unknown API key.",
    "origin": "Sent by a page of another origin, or to a foreign host name, and the server has no keys.",
    "not_found": "No such path.",
    "timeout": "The body did not arrive in time.",
    "too_large": "The body is too large.",
    "media_type": "The body is not sent as JSON.",
    "busy": "Too many requests.",
    "internal": "The server failed.",
    "stopping": "The server is stopping.",
}


def page() -> str:
    """Return the page."""
    document_of_app = _app().openapi()
    return document(
        "HTTP",
        "Routes of `graph-agent serve`. `graph-agent a2a` serves the routes of [A2A](#a2a) alone. With API keys, a "
        f"request needs one as `Authorization: Bearer KEY` or `x-api-key: KEY`, except for {_listed(sorted(OPEN))}. "
        "A running server has the full schemas at `/openapi.json`, and a browser for them at `/docs`.",
        *(part for tag, rows in _by_tag(document_of_app).items() for part in (f"## {tag}", *rows)),
        "## A2A",
        "Routes of the A2A SDK, with JSON bodies as in the A2A specification. Over JSON-RPC, errors of the protocol "
        "have the status 200. Paths with `/v1/` are for clients of A2A 0.3.",
        table(("Method", "Path", "Description"), _a2a()),
        'Refusals before the protocol, with the body `{"error": …, "kind": …}`:',
        table(
            ("Status", "Kind", "Meaning"), [(str(STATUS[kind]), code(kind), text) for kind, text in _REFUSALS.items()]
        ),
    )


def _app() -> FastAPI:
    def never() -> Any:
        raise AssertionError("the agent is opened only when the application starts")

    return create_app(AgentSource(name="agent", description="", db=DEFAULT_DB, open=never))


def _by_tag(openapi: Mapping[str, Any]) -> dict[str, list[str]]:
    tags: dict[str, list[str]] = {}
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            [tag] = operation["tags"]
            tags.setdefault(tag, []).extend(_operation(f"{method.upper()} {path}", operation))
    return tags


def _operation(name: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield operation["description"]
    if parameters := operation.get("parameters"):
        yield table(
            ("Parameter", "In", "Description"),
            [(code(each["name"]), each["in"], each.get("description", "")) for each in parameters],
        )
    yield table(("Status", "Meaning"), [_response(*each) for each in sorted(operation["responses"].items())])


def _response(status: str, response: Mapping[str, Any]) -> tuple[str, str]:
    kinds = " or ".join(code(kind) for kind in sorted(response.get("content", ())))
    text = response["description"].replace("Successful Response", "Success")
    return status, f"{text} ({kinds})" if status.startswith("2") and kinds else text


def _a2a() -> Iterator[tuple[str, ...]]:
    graph = create_graph_agent(ScriptedChatModel([]), checkpointer=InMemorySaver())
    routes = A2AServer(graph, agent_card(graph, "http://localhost")).routes
    for path, methods, endpoint in dict.fromkeys(map(_route, routes)):
        yield ", ".join(code(each) for each in methods), code(path), _A2A[endpoint]


def _route(route: BaseRoute) -> tuple[str, tuple[str, ...], str]:
    assert isinstance(route, Route)
    endpoint: Any = route.endpoint
    if isinstance(endpoint, functools.partial):
        endpoint = endpoint.args[0]
    return route.path, tuple(sorted((route.methods or set()) - {"HEAD"})), endpoint.__name__


def _listed(names: list[str]) -> str:
    return ", ".join(map(code, names[:-1])) + f" and {code(names[-1])}"
