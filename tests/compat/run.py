"""Check released clients, official and LangChain's, against a served agent, each in an environment of its own.

It installs them, so it needs a package index; nothing else leaves this machine. `make compat` runs it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.server.process import Served, serving

KEY = "compat-0123456789abcdef"
AT_ONCE = 2
# The oldest with tools need an httpx of their time.
CLIENTS: dict[str, tuple[str, list[str]]] = {
    "openai 1, old": ("openai", ["openai==1.6.1", "httpx<0.28"]),
    "openai 1": ("openai", ["openai<2"]),
    "openai 3": ("openai", ["openai>=3,<4"]),
    "anthropic with x-api-key": ("anthropic", ["anthropic==0.28.1", "httpx<0.28"]),
    "langchain": ("langchain", ["langchain-openai", "langchain-anthropic"]),
}
_NO_MODEL = "There is no model 'banana' here; known: parrot."
_NO_KEY = "An API key is needed: send it as 'Authorization: Bearer' or 'x-api-key'."
_BOTH_TOOLS = "look_up said: the value of k; paint said: painted"
_OF_LANGCHAIN: dict[str, Any] = {
    "batch": ["You said: one", "You said: two"],
    "tools": [[{"color": "red"}, {"color": "blue"}], f"{_BOTH_TOOLS} red; paint said: painted blue"],
    "structured": [{"city": "Bergen"}, {"city": "Bergen"}],
}
TOLD: dict[str, dict[str, Any]] = {
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
            {"message": _NO_KEY, "type": "authentication_error", "param": None, "code": "invalid_api_key"},
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
            {"type": "authentication_error", "message": _NO_KEY},
        ],
    },
    "langchain": {
        api: {
            "whole": ["You said: hello", ending, 30],
            "streamed": ["You said: hello there", ending, 30],
            **_OF_LANGCHAIN,
        }
        for api, ending in (("openai", "stop"), ("anthropic", "end_turn"))
    },
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="graph-agent-compat-") as scratch:
        folder = Path(scratch)
        with serving(folder, environment={"GRAPH_AGENT_API_KEYS": KEY}) as server, ThreadPoolExecutor(AT_ONCE) as pool:
            looked_at = {name: pool.submit(told, server, folder, *client) for name, client in CLIENTS.items()}
            wrong = [name for name, future in looked_at.items() if not _is_right(name, future.result())]
    if wrong:
        sys.exit(f"These clients were not told what they should be: {', '.join(wrong)}.")


def told(server: Served, folder: Path, package: str, requirements: list[str]) -> dict[str, Any]:
    """The server's responses to a client in a new environment."""
    python = _environment(folder / "".join(char for char in requirements[0] if char.isalnum()), requirements)
    script = Path(__file__).with_name(f"{package}_client.py")
    command = [python, str(script), server.url, KEY]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=60)
    if done.returncode:
        return {"failed": done.stderr[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _environment(folder: Path, requirements: list[str]) -> str:
    python = str(folder / "bin" / "python")
    if uv := shutil.which("uv"):
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *requirements], check=True)
    else:
        venv.create(folder)
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "-qq"]
        subprocess.run([*pip, "install", *requirements], check=True)
    return python


def _is_right(name: str, found: dict[str, Any]) -> bool:
    expected = TOLD[CLIENTS[name][0]]
    differs = [part for part in {**expected, **found} if found.get(part) != expected.get(part)]
    print(f"{name}: {'as it should be' if not differs else 'not as it should be'}")  # noqa: T201 - a check prints its findings
    for part in differs:
        print(f"  {part}: {found.get(part)!r}\n  and not {expected.get(part)!r}")  # noqa: T201 - as above
    return not differs


if __name__ == "__main__":
    main()
