"""An agent over MCP 2026-07-28, which has no handshake; the SDK's client of that version runs in `make compat`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest

from graph_agent.server import create_app, of_file
from tests.interfaces.server.process import PARROT, ROOT, eventually, serving
from tests.support.mcp_client import (
    KEY,
    as_response,
    call,
    calling,
    headers_of,
    messages_of,
    post,
    questions,
    request,
)

TWO = '!call look_up {"key": "k"}\n!call look_up {"key": "l"}'
ONE = '!call look_up {"key": "k"}'
ASKING = {**PARROT, "config": {"model_retries": 0, "approve": ["look_up"]}}
UNUSED = "The responses of this call were not used, because their questions had been decided before."
APPROVE, EDIT = {"decision": "approve"}, {"decision": "edit", "arguments": '{"key": "z"}'}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("mcp"), agent=ASKING) as server, server.http() as client:
        yield client


def answer(http: httpx.Client, result: dict[str, Any], *answers: dict[str, Any] | str, text: str = TWO) -> Any:
    """The result of the same call with responses to its forms."""
    responses = {key: as_response(each) for key, each in zip(questions(result), answers, strict=True)}
    return call(http, text, inputResponses=responses, requestState=result["requestState"])


def outputs(http: httpx.Client, session: str) -> set[str]:
    events = http.get(f"/memory/sessions/{session}/events").json()["events"]
    return {event["content"] for event in events if event["type"] == "tool_result"}


def test_a_server_is_discovered_without_a_handshake(http: httpx.Client) -> None:
    [found] = post(http, "server/discover")
    [listed] = post(http, "tools/list")
    cached = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    info = {"io.modelcontextprotocol/serverInfo": {"name": "parrot", "version": metadata.version("graph-agent")}}

    assert (found["result"], [tool["name"] for tool in listed["result"]["tools"]]) == (
        {
            **cached,
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}, "resources": {}},
            "_meta": info,
        },
        ["parrot"],
    )


def test_progress_precedes_the_result(http: httpx.Client) -> None:
    options: dict[str, Any] = {"capabilities": {}, "meta": {"progressToken": "p"}}
    progress, last = post(http, "tools/call", name="parrot", arguments={"input": ONE}, **options)

    assert (progress["params"], last["result"]["structuredContent"]["status"]) == (
        {"progressToken": "p", "progress": 1, "message": "step 1: approval look_up"},
        "RUNNING",
    )


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ((APPROVE, APPROVE), {"the value of k", "the value of l"}),
        ((EDIT, APPROVE), {"the value of z", "the value of l"}),
        (({"decision": "respond", "message": "none"}, APPROVE), {"none", "the value of l"}),
    ],
    ids=["approve", "edit", "respond"],
)
def test_approvals_are_input_requests_answered_with_the_call_sent_again(
    http: httpx.Client, answers: Any, found: set[str]
) -> None:
    first = call(http, TWO)
    forms = [each["params"]["message"] for each in first["inputRequests"].values()]
    last = answer(http, first, *answers)

    assert (first["resultType"], forms, last["structuredContent"]["status"]) == (
        "input_required",
        [f'A call waits for approval: look_up {{"key": "{key}"}}' for key in "kl"],
        "COMPLETED",
    )
    assert outputs(http, first["requestState"]) == found


def test_responses_that_are_sent_twice_count_once(http: httpx.Client) -> None:
    first = call(http, TWO)
    results = [answer(http, first, APPROVE, "decline") for _ in range(2)]
    other = answer(http, first, APPROVE, APPROVE)

    events = http.get(f"/memory/sessions/{first['requestState']}/events").json()["events"]
    decisions = [event["decision"] for event in events if event["type"] == "approval_decision"]
    assert (results[0] == results[1], other["structuredContent"], sorted(decisions)) == (
        True,
        results[0]["structuredContent"],
        ["approve", "reject"],
    )
    assert [text["text"] for each in (results[1], other) for text in each["content"][1:-1]] == [UNUSED]


def test_responses_to_a_question_that_was_decided_elsewhere_are_reported_as_unused(http: httpx.Client) -> None:
    first = call(http, f'{ONE}\n!then look_up {{"key": "l"}}')
    http.post(f"/sessions/{first['requestState']}/resume", json={"answer": "approve"})
    asked = answer(http, first, APPROVE, text=ONE)
    [form] = asked["inputRequests"].values()
    http.post(f"/sessions/{first['requestState']}/resume", json={"answer": "reject"})
    last = answer(http, asked, APPROVE, text=ONE)

    assert f"The last answer was not accepted: {UNUSED}" in form["params"]["message"]
    assert (last["structuredContent"]["status"], last["content"][1]["text"]) == ("COMPLETED", UNUSED)
    assert outputs(http, first["requestState"]) == {
        *("the value of k", "Not run: a person rejected this call. Do not repeat it unless the user asks for it.")
    }


def test_a_call_that_was_left_undecided_is_asked_about_again(http: httpx.Client) -> None:
    first = call(http, TWO)
    second = answer(http, first, APPROVE, "cancel")
    dismissed = answer(http, second, "cancel")
    last = answer(http, second, "decline")

    calls = [[key.partition(":")[2] for key in questions(each)] for each in (first, second)]
    assert (calls[1], dismissed["structuredContent"]["status"], last["structuredContent"]["status"]) == (
        calls[0][1:],
        "RUNNING",
        "COMPLETED",
    )


@pytest.mark.parametrize("arguments", ["not JSON", "[" * 10_000], ids=["text", "deep"])
def test_a_refused_answer_is_asked_for_again(http: httpx.Client, arguments: str) -> None:
    first = call(http, ONE)
    second = answer(http, first, {"decision": "edit", "arguments": arguments}, text=ONE)

    [form] = second["inputRequests"].values()
    assert ("The last answer was not accepted: " in form["params"]["message"], questions(second)) == (
        True,
        questions(first),
    )


def test_a_client_without_elicitation_cannot_approve_its_own_call(http: httpx.Client) -> None:
    first = call(http, ONE, capabilities={})
    session = first["structuredContent"]["session"]
    last = call(http, "approve", session, capabilities={})

    question = first["structuredContent"]["question"].splitlines()[0]
    assert (question, [each["isError"] for each in (first, last)], outputs(http, session)) == (
        "A call waits for approval:",
        [False, True],
        set(),
    )
    notes = [[each["text"].partition(":")[0] for each in result["content"][1:-1]] for result in (first, last)]
    unused = "The input of this call was not used, because the session waited for a decision."
    assert notes == [["A person decides"], ["A person decides", unused]]


def test_a_repeated_call_with_an_id_runs_its_input_once(http: httpx.Client) -> None:
    first = call(http, ONE, meta={KEY: "order 8"})
    again = call(http, ONE, meta={KEY: "order 8"})
    last = [answer(http, again, APPROVE, text=ONE), call(http, ONE, meta={KEY: "order 8"})]
    events = http.get(f"/memory/sessions/{first['requestState']}/events").json()["events"]

    assert (again, last[1], [event["type"] for event in events].count("tool_result")) == (first, last[0], 1)


@pytest.mark.parametrize(("meta", "ends"), [({}, "ABORTED"), ({KEY: "to leave"}, "COMPLETED")], ids=["plain", "id"])
def test_a_closed_response_aborts_a_call_without_an_id(
    http: httpx.Client, tmp_path: Path, meta: dict[str, str], ends: str
) -> None:
    gate, session = tmp_path / "gate", f"left-{ends}"
    arguments = {"input": f'!call wait_for {{"file": "{gate}"}}', "session": session}
    message = request("tools/call", name="parrot", arguments=arguments, meta=meta)
    with http.stream("POST", "/mcp", json=message, headers=headers_of(message)):
        eventually(gate.with_suffix(".pid").exists)
    if meta:
        gate.touch()

    eventually(lambda: http.get(f"/sessions/{session}").json()["status"] == ends)


def test_a_uri_names_no_thread_of_another_caller(tmp_path: Path) -> None:
    with (
        serving(tmp_path, environment={"GRAPH_AGENT_API_KEYS": "ann:ann-has-a-long-key"}) as server,
        server.http() as http,
    ):
        call(http, "secret", "notes", key="ann-has-a-long-key")
    uris = ["graph-agent://sessions/ann/notes", "graph-agent://sessions/", "file:///etc/passwd"]
    with serving(tmp_path) as server, server.http() as http:
        read = [post(http, "resources/read", uri=uri)[0] for uri in uris]

    assert ([each["error"]["code"] for each in read], "secret" in str(read)) == ([-32602] * 3, False)


def test_sessions_are_resources(http: httpx.Client) -> None:
    call(http, "hello", "stateless-read")
    uri = "graph-agent://sessions/stateless-read"
    [listed] = post(http, "resources/list")
    [template] = post(http, "resources/templates/list")
    [read] = post(http, "resources/read", uri=uri)
    [missing] = post(http, "resources/read", uri="graph-agent://sessions/none")

    state = json.loads(read["result"]["contents"][0]["text"])
    assert (
        uri in [each["uri"] for each in listed["result"]["resources"]],
        template["result"]["resourceTemplates"][0]["uriTemplate"],
        state["answer"],
        missing["error"],
    ) == (
        True,
        "graph-agent://sessions/{session}",
        "You said: hello",
        {
            "code": -32602,
            "message": "There is no session 'none'.",
            "data": {"uri": "graph-agent://sessions/none"},
        },
    )


@pytest.mark.parametrize(
    ("message", "headers", "expected"),
    [
        (request("ping"), {}, (404, -32601)),
        (request("tools/list", meta={"io.modelcontextprotocol/protocolVersion": "2027-01-01"}), {}, (400, -32020)),
        (
            request("tools/list", meta={"io.modelcontextprotocol/protocolVersion": "2027-01-01"}),
            {"mcp-protocol-version": "2027-01-01"},
            (400, -32022),
        ),
        (request("tools/list"), {"mcp-method": "tools/call"}, (400, -32020)),
        (request("tools/call", name="parrot", arguments={}), {"mcp-name": "other"}, (400, -32020)),
        ({**request("tools/list"), "params": {}}, {}, (400, -32602)),
        ({"jsonrpc": "2.0"}, {"mcp-method": ""}, (400, -32600)),
    ],
    ids=["method", "version", "unsupported", "method header", "name header", "no envelope", "no request"],
)
def test_an_invalid_request_is_refused(
    http: httpx.Client, message: dict[str, Any], headers: dict[str, str], expected: tuple[int, int]
) -> None:
    known = (
        headers_of(message) if "params" in message and "method" in message else {"mcp-protocol-version": "2026-07-28"}
    )
    response = http.post("/mcp", json=message, headers={**known, **headers})

    assert (response.status_code, messages_of(response)[0]["error"]["code"]) == expected


def test_a_request_of_the_other_kind_of_version_needs_its_handshake(http: httpx.Client) -> None:
    responses = [
        http.post("/mcp", json=calling("hello", "s"), headers={"accept": "application/json, text/event-stream"}),
        http.get("/mcp", headers={"mcp-protocol-version": "2026-07-28"}),
    ]

    assert [each.status_code for each in responses] == [400, 405]


async def test_an_application_in_this_process_serves_it_too() -> None:
    app = create_app(of_file(ROOT / "examples/hotel/agent.yaml"), db="memory:")
    message = request("tools/list")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as client,
    ):
        response = await client.post("/mcp", json=message, headers=headers_of(message))

    assert [tool["name"] for tool in messages_of(response)[0]["result"]["tools"]] == ["hotel"]
