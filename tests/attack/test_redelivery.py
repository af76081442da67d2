"""A run that a real `langgraph dev` delivers again, after the server was restarted in the middle of a call."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client

from tests.support.dev_server import ROOT, dev_process
from tests.support.result_texts import UNKNOWN

pytestmark = pytest.mark.attack

_WITHIN_S = 180


async def test_a_run_that_the_dev_server_delivers_again_repeats_neither_its_input_nor_its_call(tmp_path: Path) -> None:
    config = tmp_path / "langgraph.json"
    graph = f"{ROOT / 'tests' / 'support' / 'paying_graph.py'}:graph"
    config.write_text(json.dumps({"dependencies": ["."], "graphs": {"agent": graph}}))
    given: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}]}
    with dev_process(tmp_path, config, {}) as (process, url):
        async with get_client(url=url) as client:
            thread = (await client.threads.create())["thread_id"]
            run = (await client.runs.create(thread, "agent", input=given))["run_id"]
        async with asyncio.timeout(_WITHIN_S):
            while not (tmp_path / "payments").exists():
                await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, _WITHIN_S)
    (tmp_path / "leave").touch()
    with dev_process(tmp_path, config, {}) as (_, url):
        async with get_client(url=url) as client, asyncio.timeout(_WITHIN_S):
            await client.runs.join(thread, run)
            state: Any = await client.threads.get_state(thread)

    messages = [(message["type"], message["content"]) for message in state["values"]["messages"]]
    assert (messages, state["metadata"]["run_id"], (tmp_path / "payments").read_text()) == (
        [("human", "go"), ("ai", ""), ("tool", UNKNOWN), ("ai", "Done.")],
        run,
        "paid\n",
    )
