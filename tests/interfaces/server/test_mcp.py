"""An agent over MCP with a handshake, as the SDK's client uses it over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import ClientSession, McpError, types
from pydantic import AnyUrl

from tests.interfaces.server.process import PARROT, ROOT, Served, eventually, serving
from tests.support.mcp_client import KEY, Person, begun, calling, cancel, connected, until

LOOK_UP = '!call look_up {"key": "k"}'
TWO = '!call look_up {"key": "k"}\n!call look_up {"key": "l"}'
TOOLS = [f"tests.interfaces.server.parrot:{name}" for name in ("look_up", "wait_for", "ask")]
ASKING = {**PARROT, "tools": TOOLS, "config": {"model_retries": 0, "approve": ["look_up"]}}
STARTED = """
import asyncio, sys
from graph_agent.server import create_app, of_file

async def start():
    app = create_app(of_file("agent.yaml"), db="memory:")
    async with app.router.lifespan_context(app):
        print([name for name in sys.modules if name.split(".")[0] == "mcp"])

asyncio.run(start())
"""
KEYS = {"GRAPH_AGENT_API_KEYS": "ann:ann-has-a-long-key,bob:bob-has-a-long-key"}


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mcp"), agent=ASKING) as server:
        yield server


async def ask(
    session: ClientSession, text: str, in_session: str | None = None, **options: Any
) -> tuple[dict[str, Any], bool]:
    """The structured result of a call, and whether it is an error."""
    arguments = {"input": text, **({"session": in_session} if in_session else {})}
    result = await session.call_tool("parrot", arguments, **options)
    assert result.structuredContent is not None, result
    return result.structuredContent, result.isError


def events(server: Served, session: str, *kinds: str) -> list[dict[str, Any]]:
    with server.http() as http:
        found = http.get(f"/memory/sessions/{session}/events").json()["events"]
    return [event for event in found if event["type"] in kinds]


async def test_an_agent_is_a_tool_whose_sessions_continue(served: Served) -> None:
    async with connected(served.url) as client:
        listed = (await client.list_tools()).tools
        first = await client.call_tool("parrot", {"input": "one"})
        assert first.structuredContent is not None
        second, is_error = await ask(client, "two", first.structuredContent["session"])

    texts = [each.text for each in first.content if isinstance(each, types.TextContent)]
    named = {"session": second["session"], "status": "COMPLETED", "stop_reason": "completed"}
    assert ([tool.name for tool in listed], texts[0], json.loads(texts[1]), second, is_error) == (
        ["parrot"],
        "You said: one",
        named,
        {**named, "answer": "You said: one / two", "structured": None, "question": ""},
        False,
    )


async def test_a_chosen_session_id_is_that_of_the_other_apis(served: Served) -> None:
    async with connected(served.url) as client:
        await ask(client, "hello", "mcp-chosen")

    assert [event["content"] for event in events(served, "mcp-chosen", "user_message", "agent_response")] == [
        "hello",
        "You said: hello",
    ]


async def test_each_step_is_a_progress_notification(served: Served) -> None:
    seen: list[Any] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with connected(served.url) as client:
        await ask(client, f'{LOOK_UP}\n!then look_up {{"key": "m"}}', progress_callback=note)

    assert seen == [(1, None, "step 1: tool_call look_up"), (2, None, "step 2: tool_call look_up")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "input: Field required"),
        ({"input": "hello", "sesion": "s"}, "sesion: Extra inputs are not permitted"),
        ({"input": "hello", "session": "a/b"}, "session: String should match pattern '^[A-Za-z0-9._:-]{1,128}$'"),
        (
            {"input": "!fail auth"},
            "The model's provider refused this server; its operator has to look at the model's key.",
        ),
    ],
    ids=["no input", "unknown", "session", "model"],
)
async def test_a_failed_call_is_an_error_result(served: Served, arguments: dict[str, Any], message: str) -> None:
    async with connected(served.url) as client:
        result = await client.call_tool("parrot", arguments)

    [text, *_] = [each.text for each in result.content if isinstance(each, types.TextContent)]
    assert (result.isError, text) == (True, message)


async def test_an_unknown_tool_is_a_protocol_error(served: Served) -> None:
    async with connected(served.url) as client:
        with pytest.raises(McpError, match="There is no tool 'other'; known: parrot"):
            await client.call_tool("other", {"input": "hello"})


async def test_a_repeated_call_with_an_id_runs_its_input_once(served: Served) -> None:
    async with connected(served.url) as client:
        first, _ = await ask(client, LOOK_UP, meta={KEY: "order 7"})
        again, _ = await ask(client, LOOK_UP, meta={KEY: "order 7"})
        other = await client.call_tool("parrot", {"input": "something else"}, meta={KEY: "order 7"})

    assert (again, other.isError, [event["type"] for event in events(served, first["session"], "tool_result")]) == (
        first,
        True,
        ["tool_result"],
    )


@pytest.mark.parametrize(
    ("answer", "decided", "output"),
    [
        ({"decision": "approve"}, "approve", "the value of k"),
        ({"decision": "edit", "arguments": '{"key": "z"}'}, "edit", "the value of z"),
        ({"decision": "respond", "message": "nothing"}, "respond", "nothing"),
        ({"decision": "reject", "message": "not now"}, "reject", "not now"),
        ("decline", "reject", ""),
    ],
    ids=["approve", "edit", "respond", "reject", "decline"],
)
async def test_an_approval_is_an_elicitation(
    asking: Served, answer: dict[str, Any] | str, decided: str, output: str
) -> None:
    person = Person(answer)
    async with connected(asking.url, person) as client:
        result, _ = await ask(client, LOOK_UP)

    decisions = [each["decision"] for each in events(asking, result["session"], "approval_decision")]
    [settled] = events(asking, result["session"], "tool_result")
    assert (person.asked, decisions, output in settled["content"], result["status"]) == (
        ['A call waits for approval: look_up {"key": "k"}'],
        [decided],
        True,
        "COMPLETED",
    )


async def test_two_approvals_of_a_wave_are_asked_one_after_the_other(asking: Served) -> None:
    person, progress = Person({"decision": "approve"}, "decline"), list[float]()

    async def note(number: float, total: float | None, message: str | None) -> None:
        progress.append(number)

    async with connected(asking.url, person) as client:
        result, _ = await ask(client, TWO, progress_callback=note)

    results = {each["status"] for each in events(asking, result["session"], "tool_result")}
    assert (len(person.asked), results, progress) == (2, {"success", "denied"}, sorted(set(progress)))


async def test_a_dismissed_question_is_asked_again_and_the_text_of_a_call_decides_nothing(asking: Served) -> None:
    person = Person("cancel", {"decision": "approve"}, {"decision": "approve"})
    async with connected(asking.url, person) as client:
        waiting, _ = await ask(client, TWO)
        decided = await client.call_tool("parrot", {"input": "1: reject\n2: reject", "session": waiting["session"]})

    results = [each["status"] for each in events(asking, waiting["session"], "tool_result")]
    assert decided.structuredContent is not None
    assert (waiting["status"], decided.structuredContent["status"], decided.isError, results) == (
        "RUNNING",
        "COMPLETED",
        False,
        ["success", "success"],
    )
    assert decided.content[1].text.startswith("The input of this call was not used")  # type: ignore[union-attr]


async def test_the_text_of_a_call_decides_where_the_operator_permits_it(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", "mcp_text_approvals=true", agent=ASKING) as server:
        async with connected(server.url, Person("cancel")) as client:
            waiting, _ = await ask(client, TWO)
            refused = await client.call_tool("parrot", {"input": "why?", "session": waiting["session"]})
            answered, _ = await ask(client, "1: approve\n2: reject", waiting["session"])
        statuses = {each["status"] for each in events(server, waiting["session"], "tool_result")}

    assert (waiting["status"], waiting["answer"], refused.isError, answered["status"], statuses) == (
        "RUNNING",
        "",
        True,
        "COMPLETED",
        {"success", "denied"},
    )


async def test_a_client_without_elicitation_receives_the_question_as_its_result(asking: Served) -> None:
    async with connected(asking.url) as client:
        result, is_error = await ask(client, LOOK_UP)

    first, second, who = result["question"].splitlines()
    assert (first, second, who.partition(":")[0], is_error) == (
        "A call waits for approval:",
        '1. look_up {"key": "k"}',
        "A person decides",
        False,
    )


async def test_a_refused_answer_is_asked_for_again(asking: Served) -> None:
    person = Person({"decision": "edit", "arguments": '{"kee": 1}'}, {"decision": "approve"})
    async with connected(asking.url, person) as client:
        result, _ = await ask(client, LOOK_UP)

    assert ("The last answer was not accepted: " in person.asked[1], result["status"]) == (True, "COMPLETED")


async def test_a_question_of_a_tool_is_a_form_with_an_answer(asking: Served) -> None:
    person = Person({"answer": "blue"})
    async with connected(asking.url, person) as client:
        result, _ = await ask(client, '!call ask {"question": "Which colour?"}')

    assert (person.asked, "ask said: the answer is blue" in result["answer"]) == (["Which colour?"], True)


async def test_a_cancelled_call_aborts_its_run(served: Served, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with connected(served.url) as client:
        text = f'!call wait_for {{"file": "{gate}"}}'
        calling = asyncio.create_task(ask(client, text, "mcp-cancelled", meta={KEY: "to cancel"}))
        await until(gate.with_suffix(".pid").exists)
        await cancel(client, 1)
        with pytest.raises(McpError, match="Request cancelled"):
            await calling
        await until(lambda: events(served, "mcp-cancelled", "agent_response"))

    [result] = events(served, "mcp-cancelled", "tool_result")
    [*_, status] = events(served, "mcp-cancelled", "status")
    assert (result["status"], status["to"]) == ("unknown", "ABORTED")


def test_a_run_outlives_the_connection_of_its_client(served: Served, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    text = f'!call wait_for {{"file": "{gate}"}}'
    with served.http() as http:
        headers = begun(http)
        with http.stream("POST", "/mcp", json=calling(text, "mcp-left"), headers=headers):
            eventually(gate.with_suffix(".pid").exists)
    gate.touch()
    eventually(lambda: events(served, "mcp-left", "agent_response"))

    assert [each["status"] for each in events(served, "mcp-left", "tool_result")] == ["success"]


async def test_sessions_are_resources(served: Served) -> None:
    async with connected(served.url) as client:
        made, _ = await ask(client, LOOK_UP)
        listed = (await client.list_resources()).resources
        [template] = (await client.list_resource_templates()).resourceTemplates
        uri = template.uriTemplate.replace("{session}", made["session"])
        [content] = (await client.read_resource(AnyUrl(uri))).contents
        with pytest.raises(McpError) as unknown:
            await client.read_resource(AnyUrl("graph-agent://sessions/none"))

    assert isinstance(content, types.TextResourceContents)
    found = json.loads(content.text)
    names = [(each.name, each.title) for each in listed if str(each.uri) == uri]
    types_ = [event["type"] for event in found["events"] if event["type"] != "status"]
    assert (names, found["status"], types_, unknown.value.error.code) == (
        [(made["session"], LOOK_UP)],
        "COMPLETED",
        ["user_message", "plan", "tool_call", "tool_result", "plan", "agent_response"],
        -32002,
    )


async def test_each_key_has_its_own_sessions(tmp_path: Path) -> None:
    with serving(tmp_path, environment=KEYS) as server:
        async with connected(server.url, key="ann-has-a-long-key") as ann:
            await ask(ann, "of ann", "notes")
            async with connected(server.url, key="bob-has-a-long-key") as bob:
                of_bob, _ = await ask(bob, "of bob", "notes")
                listed = [each.name for each in (await bob.list_resources()).resources]
        with server.http() as http:
            of_ann = begun(http, **{"x-api-key": "ann-has-a-long-key"})
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            statuses = [
                http.post("/mcp", json=ping, headers=headers).status_code
                for headers in ({}, of_ann, {**of_ann, "x-api-key": "bob-has-a-long-key"})
            ]

    assert (of_bob["answer"], listed, statuses) == ("You said: of bob", ["notes"], [401, 200, 404])


def test_the_protocol_is_imported_at_the_first_request_for_it(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(PARROT))
    loaded = subprocess.check_output(
        [sys.executable, "-c", STARTED], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, text=True
    )

    assert loaded == "[]\n"


def test_a_page_of_another_origin_is_refused(served: Served) -> None:
    with served.http(headers={"origin": "https://evil.example"}) as http:
        answers = [http.post("/mcp", json={}), http.post("/mcp", content="{}", headers={"content-type": "text/plain"})]
    with served.http() as http:
        plain = http.post("/mcp", content="{}", headers={"content-type": "text/plain"})

    assert [each.status_code for each in [*answers, plain]] == [403, 403, 415]


async def test_several_processes_serve_clients_without_sessions(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--set", "mcp_text_approvals=true", agent=ASKING) as server:
        async with connected(server.url, Person()) as client:
            waiting, _ = await ask(client, LOOK_UP)
        async with connected(server.url, Person()) as client:
            answered, _ = await ask(client, "approve", waiting["session"])

    assert (waiting["status"], answered["status"]) == ("RUNNING", "COMPLETED")


def test_a_stopping_server_ends_a_call_that_waits_for_a_person(tmp_path: Path) -> None:
    with serving(tmp_path, agent=ASKING) as server, server.http() as http:
        headers = begun(http)
        with http.stream("POST", "/mcp", json=calling(LOOK_UP, "s"), headers=headers) as response:
            lines = (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))
            asked = next(lines)
            server.term()
            *_, last = lines
        status = server.process.wait(60)

    result = last["result"]["structuredContent"]
    assert (asked["method"], result["status"], result["session"], status) == ("elicitation/create", "RUNNING", "s", 0)
