"""What requests of known clients hold beyond their content: unknown fields, foreign tools, and session headers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from graph_agent.errors import ConfigError
from graph_agent.server import ServerSettings, create_app, of_file
from tests.interfaces.server.process import PARROT, Served

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PATHS = [CHAT, MESSAGES, RESPONSES]
UNKNOWN: dict[str, Any] = {
    "unknown_field": {"a": 1},
    "client_metadata": {"turn": "t"},
    "context_management": {"edits": []},
    "service_tier": ["odd"],
    "truncation": "auto",
    "max_tool_calls": 3,
    "moderation": {},
    "top_logprobs": 2,
    "verbosity": "low",
    "betas": ["x"],
}
FOREIGN_TOOLS: dict[str, list[dict[str, Any]]] = {
    CHAT: [{"type": "custom", "custom": {"name": "patch"}}, {"type": "web_search"}],
    MESSAGES: [
        {"type": "custom_2099", "name": "patch"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    RESPONSES: [
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
        {"type": "web_search", "external_web_access": False},
    ],
}


@asynccontextmanager
async def parrot(folder: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    (folder / "agent.yaml").write_text(yaml.safe_dump(PARROT))
    app = create_app(
        of_file(folder / "agent.yaml"), settings=ServerSettings(**settings), db=f"sqlite:///{folder / 'sessions.db'}"
    )
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
            yield http


def body(path: str, *texts: str, **fields: Any) -> dict[str, Any]:
    """A request with a conversation of a user and an assistant, in turns."""
    messages = [
        {"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts or ["hello"])
    ]
    content = {"input": messages} if path == RESPONSES else {"messages": messages}
    return {"model": "parrot", **content, **({"max_tokens": 99} if path == MESSAGES else {}), **fields}


def answer_of(response: httpx.Response) -> str:
    got: Any = response.json()
    if "choices" in got:
        return str(got["choices"][0]["message"]["content"])
    return str((got["content"] if "content" in got else got["output"][-1]["content"])[0]["text"])


def warnings_of(events: Any) -> list[str]:
    return [each["message"] for each in events.json()["events"] if each["type"] == "warning"]


@pytest.mark.parametrize(
    "path", [*PATHS, f"{MESSAGES}/count_tokens", f"{RESPONSES}/input_tokens", f"{RESPONSES}/compact"]
)
def test_an_unknown_field_has_no_effect(served: Served, path: str) -> None:
    kind = next(each for each in reversed(PATHS) if path.startswith(each))
    with served.http() as http:
        answers = [http.post(path, json=body(kind, "hello", **extra)) for extra in ({}, UNKNOWN)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert path not in PATHS or [answer_of(answer) for answer in answers] == ["You said: hello"] * 2


@pytest.mark.parametrize("path", PATHS)
def test_tools_that_are_no_functions_are_ignored_with_a_warning(served: Served, path: str) -> None:
    tools, session = FOREIGN_TOOLS[path], f"foreign-tools{path.replace('/', '-')}"
    with served.http() as http:
        answer = http.post(path, json=body(path, tools=tools), headers={"X-Session-Id": session})
        warnings = warnings_of(http.get(f"/memory/sessions/{session}/events"))

    listed = ", ".join(tool["type"] for tool in tools)
    assert (answer_of(answer), warnings) == (
        "You said: hello",
        [f"Tools of these types cannot be run here, only functions of the caller: {listed}. They were ignored."],
    )


async def test_tools_that_are_no_functions_are_refused_with_the_setting(tmp_path: Path) -> None:
    async with parrot(tmp_path, unsupported_tools="refuse") as http:
        answers = [await http.post(path, json=body(path, tools=FOREIGN_TOOLS[path])) for path in PATHS]

    assert [(each.status_code, "cannot be run here" in each.json()["error"]["message"]) for each in answers] == [
        (400, True)
    ] * 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("place", ["header", "metadata"])
def test_store_false_wins_over_the_name_of_a_session(served: Served, path: str, place: str, stream: bool) -> None:
    session = f"not-stored{path.replace('/', '-')}-{place}-{stream}"
    headers = {"X-Session-Id": session} if place == "header" else {}
    fields: dict[str, Any] = {"metadata": {"session_id": session}} if place == "metadata" else {}
    with served.http() as http:
        request = {"store": False, "stream": stream, **fields}
        _, answer = [http.post(path, json=body(path, text, **request), headers=headers) for text in "ab"]
        kept = http.get(f"/sessions/{session}")

    # With both inputs, the answer would be "You said: a / b".
    assert (answer.status_code, "x-session-id" in answer.headers, " /" in answer.text, kept.status_code) == (
        200,
        False,
        False,
        404,
    )


@pytest.mark.parametrize("path", PATHS)
def test_a_history_sent_with_the_session_header_is_not_doubled(served: Served, path: str) -> None:
    sent_texts: list[str] = []
    named = {"X-Session-Id": f"own-history{path.replace('/', '-')}"}
    with served.http() as http:
        for text in ("one", "two", "three"):
            sent_texts += [text, answer_of(http.post(path, json=body(path, *sent_texts, text), headers=named))]

    assert sent_texts[1::2] == ["You said: one", "You said: one / two", "You said: one / two / three"]


@pytest.mark.parametrize("path", PATHS)
def test_a_request_with_another_history_leaves_the_session_alone(served: Served, path: str) -> None:
    session = f"other-history{path.replace('/', '-')}"
    named = {"X-Session-Id": session}
    with served.http() as http:
        http.post(path, json=body(path, "title"), headers=named)
        other = http.post(path, json=body(path, "one", "You said: one", "two"), headers=named)
        after = http.post(path, json=body(path, "name"), headers=named)

    assert (answer_of(other), other.headers.get("x-session-id") == session, answer_of(after)) == (
        "You said: one / two",
        False,
        "You said: title / name",
    )


@pytest.mark.parametrize("path", PATHS)
def test_a_header_for_load_balancers_starts_no_session(served: Served, path: str) -> None:
    session = f"affinity{path.replace('/', '-')}"
    with served.http() as http:
        headers = {"X-Session-Id": session, "X-Session-Affinity": session}
        answers = [http.post(path, json=body(path, text), headers=headers) for text in ("title", "one")]
        kept = http.get(f"/sessions/{session}")

    assert ([answer_of(answer) for answer in answers], kept.status_code) == (
        ["You said: title", "You said: one"],
        404,
    )


REQUIRED = {CHAT: "required", MESSAGES: {"type": "any"}, RESPONSES: "required"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_required_call_without_a_function_is_refused(tmp_path: Path, path: str, stream: bool) -> None:
    required = {"tool_choice": REQUIRED[path], "stream": stream}
    offers: list[dict[str, Any]] = [{"tools": FOREIGN_TOOLS[path]}, {"tools": []}, {}]
    async with parrot(tmp_path) as http:
        answers = [await http.post(path, json=body(path, **required, **offer)) for offer in offers]

    left_out = f" Left out: {', '.join(tool['type'] for tool in FOREIGN_TOOLS[path])}."
    refused = (
        "tool_choice requires a call, and the request has no function to call.{} Send a function, or let the model"
    )
    assert [(each.status_code, each.json()["error"]["message"]) for each in answers] == [
        (400, f"{refused.format(why)} choose.") for why in (left_out, "", "")
    ]


async def test_a_required_call_of_the_agents_own_tools_is_the_models_choice(tmp_path: Path) -> None:
    tools = [{"type": "mcp", "server_label": "parrot"}, *FOREIGN_TOOLS[RESPONSES]]
    async with parrot(tmp_path) as http:
        required = body(RESPONSES, tools=tools, tool_choice="required", metadata={"session_id": "own"})
        answer = await http.post(RESPONSES, json=required)
        warnings = warnings_of(await http.get("/memory/sessions/own/events"))

    assert (answer_of(answer), warnings[1:]) == (
        "You said: hello",
        ["tool_choice requires a call; the model was free to choose, as it is for the agent's own tools."],
    )


@pytest.mark.parametrize(("header", "session"), [("X-Chat-Id", "X-Chat-Id"), ("", None)])
async def test_the_session_header_can_be_renamed_and_switched_off(
    tmp_path: Path, header: str, session: str | None
) -> None:
    names = ("X-Session-Id", "X-Chat-Id")
    async with parrot(tmp_path, session_header=header) as http:
        document = (await http.get("/openapi.json")).text
        answers: dict[str, list[str]] = {name: [] for name in names}
        for path, name in product(PATHS, names):
            named = {name: path.replace("/", "-")}
            first = await http.post(path, json=body(path, "one"), headers=named)
            second = await http.post(path, json=body(path, "two"), headers=named)
            answers[name].append(answer_of(second))
            assert (first.headers.get(name) == named[name]) == (name == session)

    described = json.loads(document)["paths"]
    parameters = [{each["name"] for each in described[path]["post"]["parameters"]} & {*names} for path in PATHS]
    assert [name for name in names if name.lower() in document.lower()] == ([session] if session else [])
    assert (answers, parameters) == (
        {name: ["You said: one / two" if name == session else "You said: two"] * 3 for name in names},
        [{session} - {None}] * 3,
    )


async def test_a_session_header_with_another_meaning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="session_header: the header 'Authorization' means something else"):
        async with parrot(tmp_path, session_header="Authorization"):
            pass
