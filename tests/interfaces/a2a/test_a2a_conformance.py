"""MUST requirements of the A2A 1.0 specification, checked request by request over both bindings.

The public compatibility kit is in no package registry; these checks are our own, named by their requirement. They use
plain HTTP, so that no client library repairs a fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, create_graph_agent
from tests.support.a2a_servers import serving_ours

PATHS = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"),
    "ListTasks": ("GET", "/tasks"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"),
    "CreateTaskPushNotificationConfig": ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
    "ListTaskPushNotificationConfigs": ("GET", "/tasks/{taskId}/pushNotificationConfigs"),
    "GetTaskPushNotificationConfig": ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "DeleteTaskPushNotificationConfig": ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
}
REASONS = {
    "TASK_NOT_FOUND": -32001,
    "TASK_NOT_CANCELABLE": -32002,
    "PUSH_NOTIFICATION_NOT_SUPPORTED": -32003,
    "UNSUPPORTED_OPERATION": -32004,
    "CONTENT_TYPE_NOT_SUPPORTED": -32005,
    "VERSION_NOT_SUPPORTED": -32009,
    "INVALID_PARAMS": -32602,
}


@dataclass
class Binding:
    """A plain HTTP client of one binding."""

    name: str
    url: str
    http: httpx.Client

    def ask(self, method: str, params: dict[str, Any], version: str | None = "1.0") -> httpx.Response:
        """Call one operation."""
        headers = {} if version is None else {"A2A-Version": version}
        if self.name == "JSONRPC":
            request = {"jsonrpc": "2.0", "id": "r-1", "method": method, "params": params}
            return self.http.post(f"{self.url}/a2a", json=request, headers=headers)
        verb, path = PATHS[method]
        rest = {name: value for name, value in params.items() if f"{{{name}}}" not in path}
        url = f"{self.url}/a2a/rest{path.format(**params)}"
        if verb == "POST":
            return self.http.post(url, json=rest, headers=headers)
        return self.http.request(verb, url, params=_query(rest), headers=headers)

    def result(self, method: str, params: dict[str, Any]) -> Any:
        """The result of an operation."""
        answer = self.ask(method, params)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        if self.name == "JSONRPC":
            assert (body["jsonrpc"], body["id"], "error" in body) == ("2.0", "r-1", False), body
            return body["result"]
        return body

    def reason(self, answer: httpx.Response) -> str:
        """The error of a refused operation, after a check of its format."""
        error = answer.json()["error"]
        if self.name == "JSONRPC":
            assert (answer.status_code, answer.json()["id"]) == (200, "r-1"), answer.text
            details = error["data"]
            assert REASONS[details[0]["reason"]] == error["code"], error
        else:
            assert (error["code"], bool(error["status"])) == (answer.status_code, True), error
            details = error["details"]
        info = details[0]
        assert (info["@type"], info["domain"], bool(error["message"])) == (
            "type.googleapis.com/google.rpc.ErrorInfo",
            "a2a-protocol.org",
            True,
        )
        return str(info["reason"])

    def events(self, method: str, params: dict[str, Any]) -> list[Any]:
        """The events of a stream, to its end."""
        answer = self.ask(method, params)
        assert answer.headers["content-type"].partition(";")[0] == "text/event-stream", answer.text
        data = [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:")]
        if self.name == "JSONRPC":
            assert {(one["jsonrpc"], one["id"]) for one in data} == {("2.0", "r-1")}
            return [one["result"] for one in data]
        return data


def _query(params: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if isinstance(value, bool) else value for name, value in params.items()}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    model = ScriptedChatModel(["Hello."], cycle=True)
    with serving_ours(create_graph_agent(model, checkpointer=InMemorySaver(), name="greeter")) as served:
        yield served


@pytest.fixture(params=["JSONRPC", "HTTP+JSON"])
def binding(request: pytest.FixtureRequest, url: str) -> Iterator[Binding]:
    with httpx.Client(trust_env=False, verify=False, timeout=30) as http:
        yield Binding(request.param, url, http)


def user_message(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}], **fields}}


def test_a_message_creates_a_task_with_server_generated_ids(binding: Binding) -> None:
    tasks = [binding.result("SendMessage", user_message())["task"] for _ in range(2)]

    assert [task["status"]["state"] for task in tasks] == ["TASK_STATE_COMPLETED"] * 2
    assert (len({task["id"] for task in tasks}), len({task["contextId"] for task in tasks})) == (2, 2)
    assert tasks[0]["status"]["timestamp"].endswith("Z")


def test_a_client_supplied_context_id_is_used(binding: Binding) -> None:
    named = f"mine-{binding.name}"

    task = binding.result("SendMessage", user_message(contextId=named))["task"]

    assert (task["contextId"], binding.result("GetTask", {"id": task["id"]})["contextId"]) == (named, named)


def test_return_immediately_does_not_wait(binding: Binding) -> None:
    task = binding.result("SendMessage", {**user_message(), "configuration": {"returnImmediately": True}})["task"]

    assert task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED")


def test_a_stream_begins_with_its_task_and_closes_at_its_end(binding: Binding) -> None:
    events = binding.events("SendStreamingMessage", user_message())

    kinds = [next(iter(event)) for event in events]
    ids = {event[kind].get("taskId", event[kind].get("id")) for kind, event in zip(kinds, events, strict=True)}
    assert (kinds[0], set(kinds[1:]), len(ids)) == ("task", {"statusUpdate", "artifactUpdate"}, 1)
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


def test_history_is_no_longer_than_asked_for(binding: Binding) -> None:
    task = binding.result("SendMessage", user_message())["task"]

    lengths = [
        len(binding.result("GetTask", {"id": task["id"], "historyLength": length}).get("history", []))
        for length in (0, 1, 50)
    ]
    none = binding.result("SendMessage", {**user_message(), "configuration": {"historyLength": 0}})["task"]

    assert (lengths, "history" in none) == ([0, 1, 1], False)


def test_tasks_are_listed_page_by_page_the_newest_first(binding: Binding) -> None:
    context = f"listed-{binding.name}"
    made = [binding.result("SendMessage", user_message(contextId=context))["task"]["id"] for _ in range(3)]

    whole = binding.result("ListTasks", {"contextId": context})
    first = binding.result("ListTasks", {"contextId": context, "pageSize": 2})
    second = binding.result("ListTasks", {"contextId": context, "pageSize": 2, "pageToken": first["nextPageToken"]})
    full = binding.result("ListTasks", {"contextId": context, "includeArtifacts": True})
    running = binding.result("ListTasks", {"contextId": context, "status": "TASK_STATE_WORKING"})

    assert [task["id"] for task in whole["tasks"]] == made[::-1]
    assert [task["id"] for page in (first, second) for task in page["tasks"]] == made[::-1]
    assert (whole["nextPageToken"], second["nextPageToken"], whole["totalSize"], first["pageSize"]) == ("", "", 3, 2)
    assert [sum("artifacts" in task for task in page["tasks"]) for page in (whole, full)] == [0, 3]
    assert running["tasks"] == []


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no such task": ("GetTask", {"id": "none"}, "TASK_NOT_FOUND"),
    "cancel: no such task": ("CancelTask", {"id": "none"}, "TASK_NOT_FOUND"),
    "cancel: ended": ("CancelTask", {"id": "DONE"}, "TASK_NOT_CANCELABLE"),
    "subscribe: no such task": ("SubscribeToTask", {"id": "none"}, "TASK_NOT_FOUND"),
    "subscribe: ended": ("SubscribeToTask", {"id": "DONE"}, "UNSUPPORTED_OPERATION"),
    "message: ended": ("SendMessage", user_message(taskId="DONE"), "UNSUPPORTED_OPERATION"),
    "stream: ended": ("SendStreamingMessage", user_message(taskId="DONE"), "UNSUPPORTED_OPERATION"),
    "message: no such task": ("SendMessage", user_message(taskId="none"), "TASK_NOT_FOUND"),
    "message: another context": ("SendMessage", user_message(taskId="DONE", contextId="other"), "INVALID_PARAMS"),
    "message: content": (
        "SendMessage",
        user_message(parts=[{"raw": "eA==", "mediaType": "application/x-odd"}]),
        "CONTENT_TYPE_NOT_SUPPORTED",
    ),
    "message: none": ("SendMessage", {}, "INVALID_PARAMS"),
    "message: no id": ("SendMessage", user_message(messageId=""), "INVALID_PARAMS"),
    "message: no role": ("SendMessage", user_message(role="ROLE_UNSPECIFIED"), "INVALID_PARAMS"),
    "message: of an agent": ("SendMessage", user_message(role="ROLE_AGENT"), "INVALID_PARAMS"),
    "stream: of an agent": ("SendStreamingMessage", user_message(role="ROLE_AGENT"), "INVALID_PARAMS"),
    "message: no parts": ("SendMessage", user_message(parts=[]), "INVALID_PARAMS"),
    "message: an empty part": ("SendMessage", user_message(parts=[{}]), "INVALID_PARAMS"),
    "message: notify": (
        "SendMessage",
        {**user_message(), "configuration": {"taskPushNotificationConfig": {"url": "https://example.com/"}}},
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
    ),
    "notify": (
        "CreateTaskPushNotificationConfig",
        {"taskId": "DONE", "url": "https://example.com/"},
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
    ),
    "notify: list": ("ListTaskPushNotificationConfigs", {"taskId": "DONE"}, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    "notify: get": ("GetTaskPushNotificationConfig", {"taskId": "DONE", "id": "p"}, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    "notify: delete": (
        "DeleteTaskPushNotificationConfig",
        {"taskId": "DONE", "id": "p"},
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
    ),
    "extended card": ("GetExtendedAgentCard", {}, "UNSUPPORTED_OPERATION"),
    "history below zero": ("GetTask", {"id": "DONE", "historyLength": -1}, "INVALID_PARAMS"),
    "history too long": ("GetTask", {"id": "DONE", "historyLength": 2**31}, "INVALID_PARAMS"),
    "unknown state": ("ListTasks", {"status": "BAD"}, "INVALID_PARAMS"),
    "page of none": ("ListTasks", {"pageSize": 0}, "INVALID_PARAMS"),
    "page too large": ("ListTasks", {"pageSize": 101}, "INVALID_PARAMS"),
    "page that is none": ("ListTasks", {"pageToken": "%%%"}, "INVALID_PARAMS"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_operations_return_their_a2a_error(case: str, binding: Binding) -> None:
    method, params, reason = REFUSED[case]
    done = binding.result("SendMessage", user_message())["task"]["id"]
    filled = json.loads(json.dumps(params).replace("DONE", done))

    assert binding.reason(binding.ask(method, filled)) == reason


def test_versions_are_compared_by_major_and_minor_number(binding: Binding) -> None:
    task = binding.result("SendMessage", user_message())["task"]["id"]

    patched = binding.ask("GetTask", {"id": task}, version="1.0.7")
    unknown = binding.ask("GetTask", {"id": task}, version="99.0")
    # Without the header it is 0.3, which has no such operation at that address.
    old = binding.ask("GetTask", {"id": task}, version=None)

    assert ("error" in patched.json(), binding.reason(unknown), binding.reason(old)) == (
        False,
        "VERSION_NOT_SUPPORTED",
        "VERSION_NOT_SUPPORTED",
    )


@pytest.mark.parametrize(
    ("body", "code", "id_"),
    [
        (b"{", -32700, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "\xff"}', -32700, None),
        (b"[]", -32600, None),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "GetTask"}', -32600, 1),
        (b'{"jsonrpc": "2.0", "id": 1}', -32600, 1),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "Nope"}', -32601, 1),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": [1]}', -32602, 1),
    ],
)
def test_invalid_json_rpc_requests_have_standard_error_codes(body: bytes, code: int, id_: int | None, url: str) -> None:
    headers = {"content-type": "application/json", "a2a-version": "1.0"}
    answer = httpx.post(f"{url}/a2a", content=body, headers=headers, trust_env=False, verify=False)

    response = answer.json()
    assert (
        answer.status_code,
        answer.headers["content-type"],
        response["error"]["code"],
        response["id"],
        response["jsonrpc"],
    ) == (
        200,
        "application/json",
        code,
        id_,
        "2.0",
    )


@pytest.mark.parametrize("body", [b"{", b"", b"null", b"\xff", b'{"message": 1}'])
def test_an_invalid_rest_body_is_refused(body: bytes, url: str) -> None:
    headers = {"content-type": "application/a2a+json", "a2a-version": "1.0"}
    answer = httpx.post(f"{url}/a2a/rest/message:send", content=body, headers=headers, trust_env=False, verify=False)

    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_content_types_and_the_card(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False, verify=False, headers={"a2a-version": "1.0"}) as http:
        card = http.get("/.well-known/agent-card.json")
        again = http.get("/.well-known/agent-card.json", headers={"if-none-match": card.headers["etag"]})
        rest = http.post("/a2a/rest/message:send", json=user_message())
        rpc = http.post("/a2a", json={"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}})

    body = card.json()
    required = {"name", "description", "supportedInterfaces", "version", "capabilities", "skills"}
    modes = {"defaultInputModes", "defaultOutputModes"}
    assert [answer.headers["content-type"] for answer in (card, rest, rpc)] == [
        "application/json",
        "application/a2a+json",
        "application/json",
    ]
    assert ((required | modes) - body.keys(), again.status_code, "max-age" in card.headers["cache-control"]) == (
        set(),
        304,
        True,
    )
    assert {(one["protocolBinding"], one["protocolVersion"]) for one in body["supportedInterfaces"]} == {
        (binding, version) for binding in ("JSONRPC", "HTTP+JSON") for version in ("1.0", "0.3")
    }
