"""Provider-compatible aliases of tool names, and their reversal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.errors import ConfigError
from graph_agent.models.sanitize import ToolAliases

LONG = "calendar." + "x" * 80


def test_names_go_out_under_an_alias_and_come_back() -> None:
    names = ["calendar.resolve_holiday", "pms.book_room", "echo", "delegate_to_researcher", "a b/ü", "x" * 64, LONG]
    aliases = ToolAliases(names)

    sent = [aliases.to_alias(name) for name in names]

    assert (sent, [aliases.to_name(alias) for alias in sent]) == (
        [
            "calendar_resolve_holiday",
            "pms_book_room",
            "echo",
            "delegate_to_researcher",
            "a_b__",
            "x" * 64,
            "calendar_" + "x" * 46 + "_d6a57bea",
        ],
        names,
    )


@pytest.mark.parametrize("name", ["calendar.resolve_holiday", "nothing_of_ours", "", "echo"])
def test_true_and_unknown_names_come_back_unchanged(name: str) -> None:
    assert ToolAliases(["calendar.resolve_holiday", "echo"]).to_name(name) == name


def test_a_tool_of_an_old_history_is_made_to_fit_too() -> None:
    assert ToolAliases(["echo"]).to_alias("gone.tool") == "gone_tool"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.b", "a_b"], r"'a.b' and 'a_b' are both 'a_b'"),
        (["a_b", "a.b"], r"'a_b' and 'a.b' are both 'a_b'"),
        (["a.b", "a/b"], r"'a.b' and 'a/b' are both 'a_b'"),
        ([LONG, "calendar_" + "x" * 46 + "_d6a57bea"], "are both"),
        (["echo", "echo"], "Two tools are called 'echo'"),
        (["echo", ""], "empty name"),
    ],
)
def test_two_tools_of_one_alias_are_refused_at_construction(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ToolAliases(names)


@given(st.lists(st.text(min_size=1, max_size=120), unique=True, max_size=20))
def test_round_trip(names: list[str]) -> None:
    try:
        aliases = ToolAliases(names)
    except ConfigError:
        return  # two of them collide, which was reported

    sent = [aliases.to_alias(name) for name in names]

    assert [aliases.to_name(alias) for alias in sent] == names
    assert len(set(sent)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", alias) for alias in sent)
