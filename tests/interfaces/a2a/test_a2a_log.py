"""The log of `graph-agent a2a`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.a2a_client import a2a_client, message_request, send
from tests.support.a2a_process import a2a_process


@pytest.mark.parametrize("options", [["-v"], ["--log-level", "info"]], ids=" ".join)
async def test_steps_are_logged_at_the_info_level(tmp_path: Path, options: list[str]) -> None:
    with a2a_process(tmp_path, "--db", "memory:", *options) as (url, _):
        async with a2a_client(url, streaming=False) as client:
            await send(client, message_request("hello"))

    assert "INFO graph_agent.nodes.plan: Agentic iteration 1/" in (tmp_path / "log").read_text()


async def test_steps_are_not_logged_by_default(tmp_path: Path) -> None:
    with a2a_process(tmp_path, "--db", "memory:") as (url, _):
        async with a2a_client(url, streaming=False) as client:
            await send(client, message_request("hello"))

    assert "Agentic iteration" not in (tmp_path / "log").read_text()
