"""Drives `graph-agent acp` by the newest `acpx` of npm, through a permission that is granted and one that is denied."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.interfaces.server.process import ROOT
from tests.support.acp import call, calls, prepare, variables

# Without the tag, npm takes the newest version for its own Node.js, which may be older.
_PACKAGES = ["acpx@latest", "node@22"]
_INSTALL_S = 300
_RUN_S = 120
_SCRIPT = [calls(call("a", "send", to="ana")), "No more actions.", "Done."]
_EXPECTED = {
    "--approve-all": ["allow", "completed", "Done.", "end_turn", ["ana"]],
    "--deny-all": ["reject", "failed", "Done.", "end_turn", []],
}
"""Option of acpx → its decision, the end of the call, the answer, the stop reason, and who got a mail."""


def faults(folder: Path) -> dict[str, list[str]]:
    """The faults of each run of acpx, by its option.

    Args:
        folder: A folder for the packages and the agents, which may be missing.
    """
    if shutil.which("npm") is None:
        return {"acpx": ["npm is not installed; install Node.js 20 or newer."]}
    folder.mkdir(exist_ok=True)
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", *_PACKAGES]
    subprocess.run(install, cwd=folder, check=True, timeout=_INSTALL_S)
    modules = folder / "node_modules"
    version = json.loads((modules / "acpx" / "package.json").read_text())["version"]
    found: dict[str, list[str]] = {}
    for option, expected in _EXPECTED.items():
        seen = _run(modules / ".bin", folder / option.strip("-"), option)
        found[f"acpx {version} {option}"] = [] if seen == expected else [f"{seen!r}, not {expected!r}"]
    return found


def _run(programs: Path, folder: Path, option: str) -> list[object]:
    folder.mkdir()
    prepare(folder)
    agent = shlex.join([sys.executable, "-m", "graph_agent.cli", "acp"])
    done = subprocess.run(
        # It needs a newer Node.js than the other clients.
        [programs / "node", (programs / "acpx").resolve(), "--agent", agent, option, "--format", "json", "exec", "hi"],
        check=False,  # it exits with 5 after a denied permission
        cwd=folder,
        env={**variables(_SCRIPT), "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_RUN_S,
    )
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    results = [message["result"] for message in messages if "result" in message]
    updates = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    sent = folder / "sent"
    try:
        return [
            *(each["outcome"]["optionId"] for each in results if "outcome" in each),
            [each["status"] for each in updates if "status" in each][-1],
            "".join(each["content"]["text"] for each in updates if each["sessionUpdate"] == "agent_message_chunk"),
            results[-1]["stopReason"],
            sent.read_text().split() if sent.exists() else [],
        ]
    except (KeyError, IndexError) as error:
        return [repr(error), done.stdout[-1000:], done.stderr[-1000:]]
