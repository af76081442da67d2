"""A program with strict types, run."""

from __future__ import annotations

from graph_agent import AgentContext, ContextFields
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


def test_a_context_that_is_a_dict_is_checked_by_the_fields_of_the_context() -> None:
    assert set(ContextFields.__annotations__) == set(AgentContext.model_fields)
