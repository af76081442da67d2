"""The pace of the pieces of streamed answers."""

from __future__ import annotations

import pytest

from graph_agent.server.chat.handler import between_pieces_s


@pytest.mark.parametrize(("runs", "expected"), [(1, 0.016), (8, 0.016), (32, 0.064), (1_000, 0.1)])
def test_active_runs_share_the_pieces_of_a_second(runs: int, expected: float) -> None:
    assert between_pieces_s(runs) == expected
