"""A program with strict types, run."""

from __future__ import annotations

from tests.typing.accepted import main


async def test_a_program_that_strict_checkers_accept_runs() -> None:
    assert await main() == [
        "3.0",
        '{"total": 3}',
        'COMPLETED: {"total": 3}',
        '{"total": 3}',
        "What is the total?",
        "Again.",
    ]
