"""Random conversations of a published AG-UI client with a served parrot, checked after each run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.interfaces.server.process import PARROT, Served, serving

CLIENT = Path(__file__).with_name("agui_client.mjs")
NEWEST, LEGACY = "1.0.0", "0.0.59"
_INSTALL_S = 300
_ASKING = {**PARROT, "config": {"model_retries": 0, "approve": ["look_up"], "max_steps": 2}}
_PAINT = {
    "name": "paint",
    "description": "Paint the client's house.",
    "parameters": {"type": "object", "properties": {"color": {"type": "string"}}},
}
_MOST_ANSWERS = 6


def installed(version: str) -> Path:
    """The folder with a version of the npm package `@ag-ui/client`, which npm installs once; skips without npm."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graph-agent-tests"
    folder = cache / f"ag-ui-client-{version}"
    if folder.is_dir():
        return folder
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as new:
        (Path(new) / "package.json").write_text("{}")
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", f"@ag-ui/client@{version}"]
        done = subprocess.run(command, cwd=new, timeout=_INSTALL_S, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot install @ag-ui/client: {done.stderr[-200:]}")
        try:
            Path(new).rename(folder)
            Path(new).mkdir()
        except OSError:
            assert folder.is_dir()  # another process was faster
    return folder


@contextmanager
def serving_parrot(folder: Path) -> Iterator[Served]:
    """Serve a parrot whose call of `look_up` needs approval, and that stops after two steps; its delegate does too."""
    (folder / "clerk.yaml").write_text(yaml.safe_dump({**_ASKING, "name": "clerk"}))
    with serving(folder, agent={**_ASKING, "delegates": [{"agent": "clerk.yaml"}]}) as server:
        yield server


class NodeClient:
    """A process with agents of the npm package, one for each thread."""

    def __init__(self, folder: Path, url: str) -> None:
        self._url = url
        self._process = subprocess.Popen(
            ["node", str(CLIENT), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, thread: str, **command: Any) -> dict[str, Any]:
        """The report of one run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"url": self._url, "thread": thread, **command}) + "\n")
        self._process.stdin.flush()
        report: dict[str, Any] = json.loads(self._process.stdout.readline())
        return report

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


@contextmanager
def node_client(version: str, url: str) -> Iterator[NodeClient]:
    """A client of a version."""
    client = NodeClient(installed(version), url)
    try:
        yield client
    finally:
        client.close()


def converse(client: NodeClient, seed: int, *, prefix: str) -> list[str]:
    """Hold one random conversation; return how its runs ended.

    Raises:
        AssertionError: If a stream broke a rule of the client, or left it with other messages than the session's.
    """
    random = Random(seed)
    thread = f"{prefix}-{seed}"
    ends: list[str] = []
    turns = random.randint(1, 4)
    for turn in range(turns):
        message = {"id": f"{thread}-u{turn}", "role": "user", "content": _order(random)}
        command: dict[str, Any] = {"add": [message], "tools": [_PAINT]}
        if message["content"] == "!endless":
            command |= {"stopAt": "TEXT_MESSAGE_CONTENT", "stop": random.choice(["client", "server"])}
        elif turn and random.random() < 0.15:
            command["fresh"] = True
        report = client.run(thread, **command)
        ends.append(_checked(report, f"{thread}, turn {turn}"))
        for answer in range(_MOST_ANSWERS):
            if (answers := _answers(random, report, f"{thread}-{turn}-{answer}")) is None:
                break
            known = {call["id"] for each in report["messages"] for call in each.get("toolCalls", ())}
            report = client.run(thread, tools=[_PAINT], **answers)
            ends.append(_checked(report, f"{thread}, turn {turn}, answer {answer}"))
            begun = {each["toolCallId"] for each in report["events"] if each["type"] == "TOOL_CALL_START"}
            assert not begun & known, f"{thread}: a resumed run begins a call again: {begun & known}"
        assert not report["interrupts"], f"{thread}: still open: {report['interrupts']}"
    return ends


def _order(random: Random) -> str:
    kind = random.choice(["text", "think", "calls", "calls", "calls", "then", "fail", "refuse", "empty", "endless"])
    if kind in ("calls", "then"):
        lines = [_call(random, "call") for _ in range(random.randint(1, 4))]
        lines += [_call(random, "then") for _ in range(random.randint(1, 2))] if kind == "then" else []
        return "\n".join(lines)
    return {
        "text": "Hello, " + "wörd 🦜 " * random.randint(0, 9),
        "think": "!think of a number",
        "fail": f"!fail {random.choice(['other', 'permission'])}",
        "refuse": "!refuse I do not answer this.",
        "empty": "!empty",
        "endless": "!endless",
    }[kind]


def _call(random: Random, word: str) -> str:
    key = json.dumps({"key": random.choice(["a", "b", "ü"])})
    nested = random.choice(["Hello.", f"!call look_up {key}", f"!call look_up {key}\n!call look_up {key}"])
    name, arguments = random.choice(
        [
            ("look_up", key),
            ("look_up", '{"wrong": 1}'),
            ("wait_for", '{"file": "/"}'),
            ("paint", '{"color": "red"}'),
            ("unknown", "{}"),
            ("delegate_to_clerk", json.dumps({"task": nested})),
        ]
    )
    return f"!{word} {name} {arguments}"


def _answers(random: Random, report: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The command that answers what a run waits for; None if it waits for nothing."""
    answers: dict[str, Any] = {}
    if report["interrupts"]:
        answers["resume"] = [_entry(random, each) for each in report["interrupts"]]
        if random.random() < 0.2:
            # As CopilotKit sends it.
            answers["add"] = [
                {"id": f"{name}-{at}", "role": "tool", "toolCallId": each["toolCallId"], "content": '{"approved":true}'}
                for at, each in enumerate(report["interrupts"])
            ]
    given = {each["toolCallId"] for each in report["messages"] if each["role"] == "tool"}
    calls = [call for each in report["messages"] for call in each.get("toolCalls", ())]
    open_ids = [call["id"] for call in calls if call["function"]["name"] == "paint" and call["id"] not in given]
    if report["events"][-1]["type"] == "RUN_FINISHED" and open_ids:
        painted = [{"id": f"{name}-{id_}", "role": "tool", "toolCallId": id_, "content": "done"} for id_ in open_ids]
        answers["add"] = [*answers.get("add", ()), *painted]
    return answers or None


def _entry(random: Random, asked: dict[str, Any]) -> dict[str, Any]:
    if random.random() < 0.1:
        return {"interruptId": asked["id"], "status": "cancelled"}
    payloads: list[dict[str, Any]] = [
        {"approved": True},
        {"approved": False},
        {"approved": False, "reason": "no"},
        {"approved": False, "response": "42"},
        {"approved": True, "editedArgs": {"key": "edited"}},
    ]
    return {"interruptId": asked["id"], "status": "resolved", "payload": random.choice(payloads)}


def _checked(report: dict[str, Any], label: str) -> str:
    """How a run ended; asserts that its client has no complaint, and has the session's messages in their order."""
    events, messages = report["events"], report["messages"]
    assert (report["error"], report["warnings"]) == (None, []), f"{label}: {[each['type'] for each in events]}"
    last = events[-1]
    assert last["type"] in ("RUN_FINISHED", "RUN_ERROR"), label
    ids = [each["id"] for each in messages]
    assert len(ids) == len(set(ids)), f"{label}: {ids}"
    calls = [call["id"] for each in messages for call in each.get("toolCalls", ())]
    assert len(calls) == len(set(calls)), f"{label}: {calls}"
    snapshots = [each["messages"] for each in events if each["type"] == "MESSAGES_SNAPSHOT"]
    if snapshots:
        shown = [each for each in messages if each["role"] != "reasoning"]
        assert [each["id"] for each in shown] == [each["id"] for each in snapshots[-1]], label
    if last["type"] == "RUN_ERROR":
        return f"error {last.get('code')}"
    return str(last["outcome"]["type"])
