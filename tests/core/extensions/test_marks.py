"""Marks are set on a copy of a tool, and a misspelt one is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from graph_agent.core.extensions.argument_checks import checked_tool
from graph_agent.errors import ConfigError
from graph_agent.marks import marked
from tests.support.agents import echo


def weather(city: str) -> str:
    """Return the weather."""
    return f"It rains in {city}."


async def test_marks_are_laid_on_a_copy() -> None:
    once = marked(weather, effect="read")
    twice = marked(once, timeout_s=5, effect="write")

    assert (once.metadata, twice.metadata, await twice.ainvoke({"city": "Bergen"})) == (
        {"effect": "read"},
        {"effect": "write", "timeout_s": 5},
        "It rains in Bergen.",
    )


def test_the_metadata_of_a_function_is_that_of_its_tool() -> None:
    def look(text: str) -> str:
        """Look up."""
        return text

    look.metadata = {"effect": "read"}  # type: ignore[attr-defined]  # as a tool has it

    assert [marked(look, timeout_s=5).metadata, checked_tool(look, "tools[0]").metadata] == [
        {"effect": "read", "timeout_s": 5},
        {"effect": "read"},
    ]


def test_a_misspelt_mark_is_refused_and_the_tool_is_as_it_was() -> None:
    with pytest.raises(ConfigError, match=r"Unknown mark 'efect' on a tool; did you mean 'effect'\? Known: "):
        marked(echo, efect="read")  # type: ignore[call-arg]  # the error is under test

    assert echo.metadata is None


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"effect": "writes"}, "The mark effect='writes' on a tool: use 'read' or 'write'."),
        ({"truncate": "head"}, "The mark truncate='head' on a tool: use 'head_tail' or 'tail'."),
        ({"timeout_s": "soon"}, "The mark timeout_s='soon' on a tool: use a positive number of seconds, or None."),
    ],
)
def test_a_value_that_a_mark_cannot_have_is_refused(marks: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        marked(echo, **marks)
