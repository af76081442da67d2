"""AG-UI over plain HTTP: runs, calls, approvals, client tools and errors, in events that fit the package's models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.interfaces.server.process import PARROT, Served, eventually, serving
from tests.support.agui import body, interrupts, parsed, post, results, resume, text, types, user
from tests.support.doors import Case, agent_of, doors_of

CALL = '!call look_up {"key": "k"}'
TWO = '!call look_up {"key": "k"}\n!call look_up {"key": "l"}'
DELEGATED = f"!call delegate_to_clerk {json.dumps({'task': CALL})}"
PAINT = {"name": "paint", "description": "Paint.", "parameters": {"type": "object", "properties": {}}}
ASKING = {**PARROT, "config": {"model_retries": 0, "approve": ["look_up"]}}


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with served.http() as client:
        yield client


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("agui")
    (folder / "clerk.yaml").write_text(yaml.safe_dump({**ASKING, "name": "clerk"}))
    with (
        serving(folder, agent={**ASKING, "delegates": [{"agent": "clerk.yaml"}]}) as server,
        server.http() as client,
    ):
        yield client


def stored(http: httpx.Client, thread: str) -> list[str]:
    events = http.get(f"/memory/sessions/{thread}/events").json()["events"]
    return [event["type"] for event in events if event["type"] in ("user_message", "tool_result", "agent_response")]


def test_a_run_streams_its_answer_and_ends_with_the_sessions_messages(http: httpx.Client) -> None:
    events = post(http, "agui-text", [user("hello", "u1")], runId="r1")

    messages = [(each["id"] == "u1", each["role"], each["content"]) for each in events[-2]["messages"]]
    assert (types(events), text(events), messages, events[0]["protocolVersion"], events[-1]["outcome"]) == (
        ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "MESSAGES_SNAPSHOT", "RUN_FINISHED"],
        "You said: hello",
        [(True, "user", "hello"), (False, "assistant", "You said: hello")],
        "1.0",
        {"type": "success"},
    )


def test_a_call_is_a_step_with_arguments_and_a_result(http: httpx.Client) -> None:
    events = post(http, "agui-call", [user(CALL)])

    start = next(event for event in events if event["type"] == "TOOL_CALL_START")
    assert (types(events), results(events), start["toolCallName"], text(events)) == (
        [
            "RUN_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_END",
            "STEP_STARTED",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "STEP_FINISHED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_END",
            "MESSAGES_SNAPSHOT",
            "RUN_FINISHED",
        ],
        {start["toolCallId"]: "the value of k"},
        "look_up",
        f"I call.|You said: {CALL}; look_up said: the value of k",
    )


def test_an_id_that_a_model_uses_again_names_another_call(http: httpx.Client) -> None:
    first = post(http, "agui-again", [user('!call look_up {"key": "a"}\n!then look_up {"key": "b"}', "u1")])
    names = [event["toolCallId"] for event in first if event["type"] == "TOOL_CALL_START"]

    snapshot = [call["id"] for each in first[-2]["messages"] for call in each.get("toolCalls", ())]
    assert (len(set(names)), snapshot) == (2, names)


def test_only_new_messages_of_a_history_become_the_input(http: httpx.Client) -> None:
    first = post(http, "agui-history", [user("one", "u1")])
    second = post(http, "agui-history", [*first[-2]["messages"], user("two", "u2")])
    alone = post(http, "agui-history", [user("three", "u3")])

    assert (text(second), text(alone), stored(http, "agui-history").count("user_message")) == (
        "You said: one / two",
        "You said: one / two / three",
        3,
    )


def test_a_repeated_run_is_served_from_the_stored_input(http: httpx.Client) -> None:
    first = post(http, "agui-repeated", [user(CALL, "u1")], runId="run-1")
    second = post(http, "agui-repeated", [user(CALL, "u1")], runId="run-1")
    other = post(http, "agui-repeated", [user("other", "u2")], runId="run-1")

    assert (second[-2:], other[-1]["code"], stored(http, "agui-repeated")) == (
        first[-2:],
        "key_reused",
        ["user_message", "tool_result", "agent_response"],
    )


def test_reasoning_comes_before_the_text(http: httpx.Client) -> None:
    events = post(http, "agui-reasoning", [user("!think hard")])

    assert types(events)[1:7] == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        *["REASONING_MESSAGE_CONTENT"] * types(events).count("REASONING_MESSAGE_CONTENT"),
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
    ]


def test_a_failed_run_ends_with_an_error(http: httpx.Client) -> None:
    events = post(http, "agui-failed", [user("!fail other")])

    assert (types(events), events[-1]["code"], "sk-" in events[-1]["message"]) == (
        ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_ERROR"],
        "other",
        False,
    )


@pytest.mark.parametrize(
    ("thread", "fields", "code"),
    [
        ("not/a thread", {}, "invalid"),
        ("agui-refused", {"tools": [{"name": "look_up", "description": "Taken."}]}, "invalid"),
        ("agui-refused", {"runId": ""}, "invalid"),
        ("agui-refused", {"resume": [{"interruptId": "none", "status": "cancelled"}]}, "conflict"),
    ],
    ids=["thread", "tool", "run", "resume"],
)
def test_a_refused_run_ends_with_an_error(http: httpx.Client, thread: str, fields: dict[str, Any], code: str) -> None:
    events = post(http, thread, fields.pop("messages", [user("hello")]), **fields)

    assert (types(events), events[-1]["code"]) == (["RUN_STARTED", "RUN_ERROR"], code)


def test_a_wave_of_approvals_is_answered_by_one_resume(asking: httpx.Client) -> None:
    first = post(asking, "agui-approvals", [user(TWO, "u1")])
    asked = interrupts(first)
    answers = resume(asked, {"approved": True, "editedArgs": {"key": "z"}}, {"approved": False, "reason": "no"})
    second = post(asking, "agui-approvals", first[-2]["messages"], resume=answers)

    ids = [event["toolCallId"] for event in first if event["type"] == "TOOL_CALL_START"]
    assert (
        [(each["reason"], each["toolCallId"], "editedArgs" in each["responseSchema"]["properties"]) for each in asked],
        [event["type"] for event in second if event["type"].startswith("TOOL_CALL")],
        results(second),
        second[-1]["outcome"],
    ) == (
        [("tool_call", id_, True) for id_ in ids],
        ["TOOL_CALL_RESULT", "TOOL_CALL_RESULT"],
        {ids[0]: "the value of z", ids[1]: "Not run: a person rejected this call. Reason: no"},
        {"type": "success"},
    )


def test_a_replayed_resume_runs_nothing_again(asking: httpx.Client) -> None:
    first = post(asking, "agui-replayed", [user(CALL, "u1")])
    answers = resume(interrupts(first), {"approved": True})
    second = post(asking, "agui-replayed", [user(CALL, "u1")], resume=answers)
    third = post(asking, "agui-replayed", [user(CALL, "u1")], resume=answers)
    contrary = post(asking, "agui-replayed", [user(CALL, "u1")], resume=resume(interrupts(first), {"approved": False}))

    ignored = {"interruptIds": [answers[0]["interruptId"]]}
    assert (types(third), third[-2], contrary[-2], third[1]["value"], stored(asking, "agui-replayed")) == (
        ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"],
        second[-2],
        second[-2],
        ignored,
        ["user_message", "tool_result", "agent_response"],
    )


def test_a_resume_may_repeat_the_run_id_of_the_interrupted_run(asking: httpx.Client) -> None:
    # CopilotKit resumes under the run id of the interrupted run.
    first = post(asking, "agui-same-run", [user(CALL, "u1")], runId="run-1")
    answers = resume(interrupts(first), {"approved": True})
    second = post(asking, "agui-same-run", [user(CALL, "u1")], resume=answers, runId="run-1")
    third = post(asking, "agui-same-run", [user(CALL, "u1")], resume=answers, runId="run-1")

    assert (
        [*results(second).values()],
        text(second),
        second[-1]["outcome"],
        types(third),
        third[-2],
        stored(asking, "agui-same-run"),
    ) == (
        ["the value of k"],
        f"You said: {CALL}; look_up said: the value of k",
        {"type": "success"},
        ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"],
        second[-2],
        ["user_message", "tool_result", "agent_response"],
    )


def test_a_new_message_with_an_answer_given_before_is_an_input(asking: httpx.Client) -> None:
    first = post(asking, "agui-and-new", [user(CALL, "u1")])
    answers = resume(interrupts(first), {"approved": True})
    post(asking, "agui-and-new", [user(CALL, "u1")], resume=answers)
    second = post(asking, "agui-and-new", [user(CALL, "u1"), user("and now?", "u2")], resume=answers)

    assert (text(second), second[-1]["outcome"]) == (f"You said: {CALL} / and now?", {"type": "success"})


def test_a_tool_message_of_the_client_is_no_result_of_the_agents_own_call(asking: httpx.Client) -> None:
    first = post(asking, "agui-synthetic", [user(CALL, "u1")])
    call = interrupts(first)[0]["toolCallId"]
    synthetic = {"id": "t1", "role": "tool", "toolCallId": call, "content": '{"approved": true}'}
    unanswered = post(asking, "agui-synthetic", [*first[-2]["messages"], synthetic])
    answers = resume(interrupts(first), {"approved": True})
    second = post(asking, "agui-synthetic", [*first[-2]["messages"], synthetic], resume=answers)

    shown = [each["content"] for each in second[-2]["messages"] if each["role"] == "tool"]
    assert (interrupts(unanswered), shown) == (interrupts(first), ["the value of k"])


@pytest.mark.parametrize(
    ("payloads", "code"),
    [
        ([{"approved": True}], "conflict"),
        ([{"approved": True}, {"yes": 1}], "invalid"),
        ([{"approved": True}, {"approved": True, "editedArgs": {"wrong": 1}}], "invalid"),
    ],
    ids=["one open", "form", "arguments"],
)
def test_a_resume_that_does_not_fit_changes_nothing(asking: httpx.Client, payloads: list[Any], code: str) -> None:
    thread = f"agui-unfit-{len(payloads)}-{code}-{len(str(payloads))}"
    asked = interrupts(post(asking, thread, [user(TWO, "u1")]))
    refused = post(asking, thread, [], resume=resume(asked[: len(payloads)], *payloads))
    blocked = post(asking, thread, [user("other")])

    assert (refused[-1]["code"], blocked[-1]["code"], stored(asking, thread)) == (code, "conflict", ["user_message"])


def test_a_run_without_a_message_shows_the_thread_and_what_it_waits_for(asking: httpx.Client) -> None:
    none = post(asking, "agui-reloaded", [])
    first = post(asking, "agui-reloaded", [user(CALL, "u1")])
    again = post(asking, "agui-reloaded", [])

    assert (none[-2]["messages"], none[-1]["outcome"], types(again), again[-2]["messages"], interrupts(again)) == (
        [],
        {"type": "success"},
        ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"],
        first[-2]["messages"],
        interrupts(first),
    )


@pytest.mark.parametrize("on_disconnect", ["stop", "continue"])
def test_a_run_whose_client_leaves_is_stopped_or_followed_by_another(
    served: Served, http: httpx.Client, tmp_path: Path, on_disconnect: str
) -> None:
    go, thread = tmp_path / "go", f"agui-left-{on_disconnect}"
    order = f'!call wait_for {{"file": "{go}"}}\n!then look_up {{"key": "k"}}'
    request = body(thread, [user(order, "u1")], forwardedProps={"onDisconnect": on_disconnect})
    with http.stream("POST", "/agui", json=request) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if "TOOL_CALL_END" in line)
        eventually(Path(f"{go}.pid").exists)
    if on_disconnect == "stop":
        eventually(lambda: http.get(f"/sessions/{thread}").json()["status"] == "ABORTED")
    with http.stream("POST", "/agui", json=body(thread, [])) as stream:
        lines = stream.iter_lines()
        seen = [next(line for line in lines if "MESSAGES_SNAPSHOT" in line)]
        go.touch()
        seen += lines
    events = parsed("\n".join(seen))

    status = {"stop": "ABORTED", "continue": "COMPLETED"}[on_disconnect]
    calls = [event["toolCallName"] for event in events if event["type"] == "TOOL_CALL_START"]
    shown = [each["role"] for each in events[-2]["messages"]]
    assert (calls, events[-1]["result"]["status"], events[-1]["outcome"], shown) == (
        {"stop": [], "continue": ["look_up"]}[on_disconnect],
        status,
        {"type": "success"},
        ["user", *["assistant", "tool"] * {"stop": 1, "continue": 2}[on_disconnect], "assistant"],
    )


def test_a_run_that_is_joined_within_a_wave_brings_each_result(
    served: Served, http: httpx.Client, tmp_path: Path
) -> None:
    go, thread = tmp_path / "go", "agui-joined"
    order = f'!call wait_for {{"file": "{go}"}}\n!call look_up {{"key": "k"}}'
    request = body(thread, [user(order, "u1")], forwardedProps={"onDisconnect": "continue"})
    with http.stream("POST", "/agui", json=request) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if "TOOL_CALL_RESULT" in line)
        eventually(Path(f"{go}.pid").exists)
    with http.stream("POST", "/agui", json=body(thread, [])) as stream:
        lines = stream.iter_lines()
        seen = [next(line for line in lines if "MESSAGES_SNAPSHOT" in line)]
        go.touch()
        seen += lines
    events = parsed("\n".join(seen))

    before = [each["content"] for each in events[0]["messages"] if each["role"] == "tool"]
    assert (before, list(results(events).values())) == (["the value of k"], [f"{go} is there"])


def test_a_delegate_that_asks_is_suspended_and_goes_on(asking: httpx.Client) -> None:
    first = post(asking, "agui-delegate", [user(DELEGATED, "u1")])
    asked = interrupts(first)
    second = post(asking, "agui-delegate", first[-2]["messages"], resume=resume(asked, {"approved": True}))

    def subagents(events: list[dict[str, Any]]) -> list[Any]:
        return [(each["type"], each.get("outcome")) for each in events if each["type"].startswith("SUBAGENT")]

    suspended = {"type": "suspended", "interruptIds": [asked[0]["id"]]}
    assert (subagents(first), subagents(second), asked[0]["subagentRunId"] in results(second)) == (
        [("SUBAGENT_STARTED", None), ("SUBAGENT_FINISHED", suspended)],
        [("SUBAGENT_STARTED", None), ("SUBAGENT_FINISHED", None)],
        True,
    )


def test_the_text_of_a_delegate_is_streamed_as_that_of_its_subagent(asking: httpx.Client) -> None:
    order = f"!call delegate_to_clerk {json.dumps({'task': 'hello there'})}"
    events = post(asking, "agui-delegate-text", [user(order)])
    old = post(asking, "agui-delegate-old", [user(order)], legacy=True)

    own = [each for each in events if each.get("subagentRunId")]
    [answer] = results(events).values()
    assert "".join(each.get("delta", "") for each in own) == answer
    assert [kind for kind in types(own) if kind != "TEXT_MESSAGE_CONTENT"] == [
        *("SUBAGENT_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "SUBAGENT_FINISHED")
    ]
    assert text([each for each in events if each not in own]).endswith(f"clerk said: {answer}")
    assert {each["type"] for each in old if each.get("subagentRunId")} == {"SUBAGENT_STARTED", "SUBAGENT_FINISHED"}


def test_own_state_fields_are_shared(tmp_path: Path) -> None:
    agent = {**PARROT, "middleware": [{"use": "tests.support.basket:Basket"}]}
    order = '!call put {"item": "tea"}\n!then put {"item": "milk"}'
    with serving(tmp_path, agent=agent) as server, server.http() as http:
        first = post(http, "agui-state", [user(order, "u1")], state={"customer": "Ann", "page": 3})
        emptied = {"customer": "Ann", "basket": ["jam"], "page": 4}
        second = post(http, "agui-state", [user('!call put {"item": "bread"}', "u2")], state=emptied)
        reloaded = post(http, "agui-state", [])
        refused = post(http, "agui-state", [user("hello", "u3")], state={"basket": 5})

    def states(events: list[dict[str, Any]]) -> list[Any]:
        return [each.get("snapshot") or each["delta"] for each in events if each["type"].startswith("STATE")]

    def basket(*items: str) -> list[dict[str, Any]]:
        return [{"op": "add", "path": "/basket", "value": [*items]}]

    assert (states(first), states(second), states(reloaded), refused[-1]["code"], [*results(second).values()]) == (
        [
            {"customer": "Ann", "page": 3},
            basket(),
            basket("tea"),
            basket("tea", "milk"),
        ],
        [{"customer": "Ann", "page": 4, "basket": ["jam"]}, basket("jam", "bread")],
        [{"customer": "Ann", "basket": ["jam", "bread"]}],
        "invalid",
        ["Ann has ['jam', 'bread']"],
    )


def test_a_clients_tools_are_run_by_the_client(http: httpx.Client) -> None:
    order = f'{CALL}\n!call paint {{"color": "red"}}\n!call paint {{"color": "blue"}}'
    first = post(http, "agui-client-tools", [user(order, "u1")], tools=[PAINT])
    pending = first[-1]["outcome"]["pendingToolCallIds"]
    painted = [{"id": f"t-{id_}", "role": "tool", "toolCallId": id_, "content": "painted"} for id_ in pending]
    partly = post(http, "agui-client-tools", [*first[-2]["messages"], painted[0]], tools=[PAINT])
    second = post(http, "agui-client-tools", [*first[-2]["messages"], *painted], tools=[PAINT])

    messages = [(each["id"], each["content"]) for each in second[-2]["messages"] if each["role"] == "tool"]
    assert (len(pending), partly[-1]["code"], results(second), messages[1:], text(second).count("painted")) == (
        2,
        "invalid",
        {},
        [(each["id"], "painted") for each in painted],
        2,
    )


def test_deep_arguments_in_a_history_break_nothing(http: httpx.Client) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 10_000}}
    called = {"id": "a1", "role": "assistant", "toolCalls": [call]}
    result = {"id": "t1", "role": "tool", "toolCallId": "c", "content": "done"}

    events = post(http, "agui-deep", [user("go", "u1"), called, result, user("hello", "u2")])

    assert text(events) == "You said: go / hello"


def test_an_approval_follows_the_calls_of_the_client_in_its_wave(asking: httpx.Client) -> None:
    first = post(asking, "agui-both", [user(f"!call paint {{}}\n{CALL}", "u1")], tools=[PAINT])
    (pending,) = first[-1]["outcome"]["pendingToolCallIds"]
    painted = {"id": "t1", "role": "tool", "toolCallId": pending, "content": "painted"}
    second = post(asking, "agui-both", [*first[-2]["messages"], painted], tools=[PAINT])
    asked = interrupts(second)
    third = post(asking, "agui-both", second[-2]["messages"], tools=[PAINT], resume=resume(asked, {"approved": True}))

    assert (
        first[-1]["outcome"]["type"],
        [(each["reason"], each["toolCallId"] != pending) for each in asked],
        list(results(third).values()),
        third[-1]["outcome"],
    ) == ("success", [("tool_call", True)], ["the value of k"], {"type": "success"})


async def test_the_reason_of_a_stop_within_the_answer_is_streamed() -> None:
    case = Case("native", "auto", False, False, ["It is a."], None, limits={"deadline_s": 2}, hangs_after="It")
    async with doors_of(agent_of(case)[0], case) as (_, http):
        events = parsed((await http.post("/agui", json=body("agui-stopped", [user("hello")]))).text)

    answer = "It\n\nReached the deadline (2.0 s)"
    assert (text(events), events[-2]["messages"][-1]["content"]) == (answer, answer)


def test_a_client_before_1_0_gets_only_what_it_accepts(http: httpx.Client) -> None:
    events = post(http, "agui-legacy", [user('!call paint {"color": "red"}')], tools=[PAINT], legacy=True)

    assert ("protocolVersion" in events[0], events[-1]["outcome"]) == (False, {"type": "success"})
