"""Check released clients, official and others, against a served agent, in environments of their own.

It installs them, so it needs a package index; nothing else leaves this machine. `make compat` runs it. The argument is
how many seconds the coding clients may take together: those that are not installed and asked by then are skipped, and
their recorded requests are sent in any case. The second argument is how many random conversations each version of the
AG-UI client holds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.environments import make_environment
from tests.compat import acpx, agui, coding_clis, copilotkit, mcp_conformance, mcp_servers, open_responses, recorded
from tests.interfaces.server.process import ROOT, Served, serving

KEY = "compat-0123456789abcdef"
_WHOLE = 100
"""Conversations of AG-UI's client from which on CopilotKit is run, too: it installs for a minute."""
AT_ONCE = 2
# The oldest with tools need an httpx of their time.
CLIENTS: dict[str, tuple[list[str], list[str]]] = {
    # First the environments that take longest.
    "newest": (
        ["openai", "responses", "responses_newest", "langchain", "agents", "pydantic_ai"],
        [
            "openai[realtime]>=3,<4",
            "langchain-openai",
            "langchain-anthropic",
            "openai-agents>=0.24",
            "pydantic-ai-slim[openai]",
        ],
    ),
    # It needs an older openai than the others.
    "litellm": (["litellm"], ["litellm", "mcp>=2"]),
    "mcp": (["mcp"], ["mcp>=2.3,<3"]),
    "vercel": (["vercel"], ["ai@7", "@ai-sdk/openai@4", "zod@4"]),
    "openai 1, old": (["openai"], ["openai==1.6.1", "httpx<0.28"]),
    "openai 1.66": (["responses"], ["openai==1.66.0"]),
    "openai 1": (["openai", "responses"], ["openai<2"]),
    "anthropic with x-api-key": (["anthropic"], ["anthropic==0.28.1", "httpx<0.28"]),
}
"""Name → scripts, and the requirements of their environment; those of `vercel` are of npm."""
_NO_MODEL = "There is no model 'banana' here; known: parrot."
_UNKNOWN_KEY = "The API key is none of this server's; check the key that the client sends."
_BOTH_TOOLS = "look_up said: the value of k; paint said: painted"
_OF_LANGCHAIN: dict[str, Any] = {
    "second turn": "You said: one / two",
    "batch": ["You said: one", "You said: two"],
    "tools": [[{"color": "red"}, {"color": "blue"}], f"{_BOTH_TOOLS} red; paint said: painted blue"],
    "structured": [{"city": "Bergen"}, {"city": "Bergen"}],
}
_OF_STEPS: list[Any] = [["parrot"], [1, 2], [], "COMPLETED", ["success", "success"]]
_OF_WAVE: list[Any] = [['look_up {"key": "k"}', 'look_up {"key": "l"}'], "COMPLETED", ["denied", "success"]]
EXPECTED: dict[str, dict[str, Any]] = {
    "openai": {
        "whole": ["You said: hello", "stop", [20, 10, 30]],
        "streamed": ["You said: hello there", "stop", []],
        "handed back": ["tool_calls", ["paint", {"color": "red"}], "stop", _BOTH_TOOLS],
        "streamed call": ["I call.", "tool_calls", [["paint", {"color": "red"}]]],
        "models": ["parrot"],
        "unknown model": [
            "NotFoundError",
            404,
            {"message": _NO_MODEL, "type": "invalid_request_error", "param": "model", "code": "model_not_found"},
        ],
        "stranger": [
            "AuthenticationError",
            401,
            {"message": _UNKNOWN_KEY, "type": "authentication_error", "param": None, "code": "invalid_api_key"},
        ],
        "in mid-stream": [
            "You said: one …break",
            "APIError",
            "The model's provider refused this server; its operator has to look at the model's key.",
        ],
    },
    "anthropic": {
        "whole": ["You said: hello", "end_turn", [20, 10]],
        "streamed": ["You said: hello there", "You said: hello there", "end_turn"],
        "handed back": ["tool_use", ["paint", {"color": "red"}], "end_turn", _BOTH_TOOLS],
        "unknown model": [
            "NotFoundError",
            404,
            {"type": "not_found_error", "message": _NO_MODEL},
        ],
        "stranger": [
            "AuthenticationError",
            401,
            {"type": "authentication_error", "message": _UNKNOWN_KEY},
        ],
    },
    "langchain": {
        api: {
            "whole": ["You said: hello", ending, 30],
            "streamed": ["You said: hello there", ending, 30],
            **_OF_LANGCHAIN,
        }
        for api, ending in (
            ("openai", "stop"),
            ("responses", "completed"),
            ("chained", "completed"),
            ("anthropic", "end_turn"),
        )
    },
    "responses": {
        "whole": ["You said: hello", "completed", 30, True],
        "streamed": [
            "You said: hello there",
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed",
            ],
        ],
        "second turn": "You said: one / two",
        "handed back": [["paint", {"color": "red"}], _BOTH_TOOLS],
        "structured": {"city": "Bergen"},
        "parsed": ["Bergen", "Bergen", "response.completed"],
        "in mid-stream": [
            "You said: one …break",
            "The model's provider refused this server; its operator has to look at the model's key.",
        ],
    },
    "responses_newest": {
        "background": [[0, 1, 2], [1, 2], "You said: hello", "completed"],
        "over a WebSocket": ["You said: one", "You said: one / two"],
        "compacted": ["response.compaction", ["message", "compaction"]],
        "counted": ["response.input_tokens", True],
    },
    "agents": {
        "whole": "You said: hello",
        "second turn": ["You said: hello / again", "You said: hello / two", "You said: one / two", "two"],
        "handed back": [f"{_BOTH_TOOLS} red; paint said: painted blue"] * 4,
        "handed over": ["a", 'transfer_to_a said: {"assistant": "a"}'],
        "over a WebSocket": [f"{_BOTH_TOOLS} red; paint said: painted blue"] * 2,
        "streamed": True,
        "structured": {"city": "Bergen"},
    },
    "pydantic_ai": {
        "api": "OpenAIResponsesModel",
        "whole": "You said: hello",
        "streamed": "You said: hello there",
        "second turn": "You said: hello / again",
        "handed back": f"{_BOTH_TOOLS} red; paint said: painted blue",
        "structured": [{"city": "Bergen"}] * 2,
    },
    "litellm": {
        "whole": "You said: one",
        "streamed": "response.completed",
        "second turn": "You said: one / two",
        "bridged": "You said: hello there",
        "handed back": _BOTH_TOOLS,
        "structured": {"city": "Bergen"},
    },
    "mcp": {
        "auto over HTTP": ["2026-07-28", *_OF_STEPS],
        "legacy over HTTP": ["2025-11-25", *_OF_STEPS],
        "auto over stdio": ["2026-07-28", ["parrot"], [1, 2, 1], *_OF_WAVE],
        "legacy over stdio": ["2025-11-25", ["parrot"], [1, 2, 3], *_OF_WAVE],
    },
    "vercel": {
        "whole": ["You said: hello", "stop", 30],
        "second turn": ["You said: hello / again"] * 4,
        "handed back": f"{_BOTH_TOOLS} red; paint said: painted blue",
        "streamed": [f"{_BOTH_TOOLS} red; paint said: painted blue", "stop"],
        "structured": {"city": "Bergen"},
    },
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="graph-agent-compat-") as scratch:
        folder = Path(scratch)
        with serving(folder, environment={"GRAPH_AGENT_API_KEYS": KEY}) as server, ThreadPoolExecutor(AT_ONCE) as pool:
            within_s = float(sys.argv[1])
            clis = pool.submit(coding_clis.faults, server.url, KEY, folder / "clis", within_s)
            suites = [
                pool.submit(open_responses.faults, server.url, KEY, folder / "open-responses"),
                pool.submit(agui.faults, folder / "agui", int(sys.argv[2])),
                pool.submit(acpx.faults, folder / "acpx"),
                pool.submit(lambda: mcp_servers.faults(make_environment(folder / "mcp2", mcp_servers.REQUIREMENTS))),
            ]
            if int(sys.argv[2]) >= _WHOLE:
                suites.append(pool.submit(copilotkit.faults, folder / "copilotkit"))
            checks = {name: pool.submit(reports_of, server, folder, name) for name in CLIENTS}
            wrong = [
                f"{name} ({script})"
                for name, future in checks.items()
                for script, found in future.result().items()
                if not _is_right(name, script, found)
            ]
            others = {**recorded.faults(server.url, KEY), **mcp_conformance.faults(folder / "npm"), **clis.result()}
            others |= coding_clis.faults_of_repeats(KEY, folder / "repeats", within_s)
            for suite in suites:
                others |= suite.result()
            for name, faults in others.items():
                wrong += [name] * bool(faults)
                print(f"{name}: {'as it should be' if not faults else 'not as it should be'}", *faults, sep="\n  ")  # noqa: T201 - a check prints its findings
    if wrong:
        sys.exit(f"These clients received something else than expected: {', '.join(wrong)}.")


def reports_of(server: Served, folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """The server's responses to a client in a new environment, by script."""
    scripts, requirements = CLIENTS[name]
    home = folder / "".join(char for char in name if char.isalnum())
    sources = Path(__file__).parent
    if name == "vercel":
        if shutil.which("npm") is None:
            return {scripts[0]: {"failed": "npm is not installed; install Node.js 20 or newer."}}
        home.mkdir()
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *requirements], check=True, cwd=home)
        # A module is resolved from its own folder.
        program = ["node", str(shutil.copy(sources / "vercel_client.mjs", home))]
        return {scripts[0]: _run(program, server, home)}
    python = make_environment(home, requirements)
    return {script: _run([python, "-m", f"tests.compat.{script}_client"], server, folder) for script in scripts}


def _run(program: list[str], server: Served, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [*program, server.url, KEY],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GRAPH_AGENT_PYTHON": sys.executable,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        },
    )
    if done.returncode:
        return {"failed": done.stderr[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _is_right(name: str, script: str, found: dict[str, Any]) -> bool:
    expected = EXPECTED[script]
    differs = [part for part in {**expected, **found} if found.get(part) != expected.get(part)]
    print(f"{name} ({script}): {'as it should be' if not differs else 'not as it should be'}")  # noqa: T201 - a check prints its findings
    for part in differs:
        print(f"  {part}: {found.get(part)!r}\n  and not {expected.get(part)!r}")  # noqa: T201 - as above
    return not differs


if __name__ == "__main__":
    main()
