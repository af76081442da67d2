"""The page of the HTTP routes, from the application's OpenAPI document and the A2A server's routes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from starlette.routing import BaseRoute, Route

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.a2a.server import A2AServer, agent_card
from graph_agent.agent_file.spec import DEFAULT_DB
from graph_agent.interfaces.server.admission.gate import OPEN_PATHS
from graph_agent.interfaces.server.agent_source import AgentSource
from graph_agent.interfaces.server.problems import FORMS, Kind
from graph_agent.server import create_app
from scripts.reference.markdown import code, document, table, type_of

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


_SPECIFIC = ("404", "409")
"""Statuses whose meaning depends on the route."""
_EXAMPLE = """```console
curl http://127.0.0.1:8000/v1/chat/completions -H "Content-Type: application/json" \\
  -d '{"model": "agent", "messages": [{"role": "user", "content": "Do I need an umbrella in Bergen?"}]}'
```"""


def page() -> str:
    """Return the page."""
    openapi = _app().openapi()
    schemas = openapi["components"]["schemas"]
    return document(
        "HTTP",
        _EXAMPLE,
        "Routes of `graph-agent serve`. `graph-agent a2a` serves those of [A2A](#a2a), `/health` and `/ready`. "
        "With API keys, a request needs one as `Authorization: Bearer KEY` or `x-api-key: KEY`, "
        f"except for {_listed(sorted(OPEN_PATHS))}. "
        "A running server has the full schemas at `/openapi.json`, and a browser for them at `/docs`.",
        "## Statuses",
        "Each route lists its statuses. Those of 400 and above have the meaning below on every route.",
        table(("Status", "Meaning"), _statuses(openapi)),
        *(part for tag, operations in _by_tag(openapi).items() for part in _section(tag, operations, schemas)),
        "## A2A",
        "Routes of the A2A SDK, with JSON bodies as in the A2A specification. Over JSON-RPC, errors of the protocol "
        "have the status 200. Paths with `/v1/` are for clients of A2A 0.3.",
        table(("Method", "Path", "Description"), _a2a()),
        'Refusals before the protocol, with the body `{"error": …, "kind": …}`:',
        table(
            ("Status", "Kind", "Meaning"),
            [(str(FORMS[kind].status), code(kind), text) for kind, text in _REFUSALS.items()],
        ),
    )


def surface() -> Iterator[str]:
    """Yield each route, and each parameter and field of its body after it, with `?` after what may be absent."""
    openapi = _app().openapi()
    schemas = openapi["components"]["schemas"]
    yield from (f"{method} {path}".replace("`", "") for method, path, _ in _a2a())
    for operations in _by_tag(openapi).values():
        for route, operation in operations.items():
            yield route
            for each in operation.get("parameters", ()):
                yield f"{route} {each['in']} {each['name']}{'' if each.get('required') else '?'}"
            for name in _references(operation.get("requestBody")):
                required = schemas[name].get("required", ())
                for field in schemas[name].get("properties", ()):
                    yield f"{route} body {field}{'' if field in required else '?'}"


def _app() -> FastAPI:
    def never() -> Any:
        raise AssertionError("the agent is opened only when the application starts")

    return create_app(AgentSource(name="agent", description="", db=DEFAULT_DB, open=never))


def _by_tag(openapi: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    tags: dict[str, dict[str, Mapping[str, Any]]] = {}
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            [tag] = operation["tags"]
            tags.setdefault(tag, {})[f"{method.upper()} {path}"] = operation
    return tags


def _statuses(openapi: Mapping[str, Any]) -> list[tuple[str, str]]:
    operations = [each for group in _by_tag(openapi).values() for each in group.values()]
    meanings: dict[str, Counter[str]] = {}
    for status, response in (each for operation in operations for each in operation["responses"].items()):
        if status >= "400":
            meanings.setdefault(status, Counter())[response["description"]] += 1
    return [
        (status, "Depends on the route" if status in _SPECIFIC else meanings[status].most_common(1)[0][0])
        for status in sorted(meanings)
    ]


def _section(tag: str, operations: Mapping[str, Mapping[str, Any]], schemas: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {tag}"
    bodies: dict[str, str] = {}
    for name, operation in operations.items():
        yield from _operation(name, operation, schemas, bodies)
    if objects := list(_nested(bodies, schemas)):
        yield f"### Objects of {tag}"
        for each in objects:
            yield f"{code(_short(each))}: {schemas[each]['description']}"
            yield _fields(each, schemas)


def _operation(
    name: str, operation: Mapping[str, Any], schemas: Mapping[str, Any], bodies: dict[str, str]
) -> Iterator[str]:
    yield f"### {name}"
    yield operation["description"]
    if parameters := operation.get("parameters"):
        yield table(
            ("Parameter", "In", "Description"),
            [(code(each["name"]), each["in"], each.get("description", "")) for each in parameters],
        )
    if body := operation.get("requestBody"):
        yield from _body(name, body, schemas, bodies)
    yield "Statuses: " + ", ".join(_response(*each) for each in sorted(operation["responses"].items())) + "."


def _body(name: str, body: Mapping[str, Any], schemas: Mapping[str, Any], bodies: dict[str, str]) -> Iterator[str]:
    """Yield the table of a body; a body with the fields of an earlier one refers to that one."""
    schema = body["content"]["application/json"]["schema"]
    [found] = _references(schema)
    properties = schemas[found]["properties"].keys()
    same = [of for other, of in bodies.items() if schemas[other]["properties"].keys() == properties]
    bodies[found] = name
    optional = "" if body.get("required") else ", which may be absent"
    if same:
        required = ", ".join(map(code, schemas[found].get("required", ()))) or "none"
        yield f"Body: the fields of `{same[0]}`; required: {required}."
    else:
        yield f"Body{optional}: {schemas[found]['description']}"
        yield _fields(found, schemas)


def _fields(name: str, schemas: Mapping[str, Any]) -> str:
    schema = schemas[name]
    names = {each: code(_short(each)) for each in schemas}
    required = schema.get("required", ())
    rows = [
        (
            code(field),
            type_of(value, names).removesuffix(" or null") + (", required" if field in required else ""),
            value.get("description", ""),
        )
        for field, value in schema["properties"].items()
    ]
    return table(("Field", "Type", "Description"), rows, described=False)


def _short(name: str) -> str:
    return name.rpartition("__")[2]


def _nested(bodies: Iterable[str], schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yield the schemas that the bodies refer to, directly or through others, each once."""
    seen, pending = set(bodies), list(bodies)
    while pending:
        for name in _references(schemas[pending.pop(0)]):
            if name not in seen:
                seen.add(name)
                pending.append(name)
                if schemas[name].get("properties"):
                    yield name


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        yield from (name for value in schema.values() for name in _references(value))
    elif isinstance(schema, list):
        yield from (name for value in schema for name in _references(value))


def _response(status: str, response: Mapping[str, Any]) -> str:
    kinds = " or ".join(code(kind) for kind in sorted(response.get("content", ())))
    if status < "400":
        return f"{status} ({kinds})" if kinds else status
    text = response["description"]
    return f"{status} ({text[0].lower()}{text[1:]})" if status in _SPECIFIC else status


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
