"""Random conversations of AG-UI's published client, at its newest version and at the one that CopilotKit uses."""

from __future__ import annotations

import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.agui_conversations import LEGACY, NEWEST, converse, node_client, serving_parrot

_REFUSALS = {"error invalid", "error conflict", "error busy", "error internal"}


def faults(folder: Path, count: int) -> dict[str, list[str]]:
    """What a version of the client complained about, by version.

    Args:
        folder: A folder for the served agent, which may be missing.
        count: Conversations of each version.
    """
    if shutil.which("npm") is None:
        return {"@ag-ui/client": ["npm is not installed; install Node.js 20 or newer."]}
    folder.mkdir(exist_ok=True)
    with serving_parrot(folder) as server, ThreadPoolExecutor() as pool:
        found = pool.map(lambda version: _converse(version, server.url, count), (NEWEST, LEGACY))
        return dict(found)


def _converse(version: str, url: str, count: int) -> tuple[str, list[str]]:
    ends, wrong = Counter[str](), list[str]()
    with node_client(version, url) as client:
        for seed in range(count):
            try:
                ends.update(converse(client, seed, prefix=f"v{version}"))
            except AssertionError as error:
                wrong.append(str(error))
    wrong += sorted(_REFUSALS & ends.keys())
    return f"@ag-ui/client {version} ({count} conversations, {ends.total()} runs)", wrong
