"""Tools that an MCP server adds during a run are offered from the next plan on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.mcp import open_mcp_tools
from tests.support.agents import asks, dialogue, echo, says
from tests.support.mcp_servers import running

RAW = str(Path(running.__file__).with_name("raw_server.py"))


def raw(**extra: Any) -> dict[str, Any]:
    return {"transport": "stdio", "command": "python", "args": [RAW], **extra}


def copy_of_raw(folder: Path, old: str = "", new: str = "") -> Path:
    script = folder / "server.py"
    text = Path(RAW).read_text()
    script.write_text(text.replace(old, new) if old else text)
    return script


def offered(model: ScriptedChatModel) -> list[list[str]]:
    return [sorted(request.tool_names) for request in model.requests]


@pytest.mark.parametrize("mode", ["native", "text"])
async def test_an_added_tool_is_offered_from_the_next_plan_on(mode: Any) -> None:
    model = ScriptedChatModel(
        responses=[asks(("c1", "add", {})), asks(("c2", "extra_3", {})), "No more actions.", "Done."]
    )
    async with open_mcp_tools({"raw": raw()}) as tools:
        agent = create_graph_agent(model, tools=[*tools, echo], config=LoopConfig(tool_calling=mode))
        state = await agent.ainvoke(says("go"))
    assert dialogue(state["messages"])[1:] == [
        ("ai", ""),
        ("tool", "add done"),
        ("ai", ""),
        ("tool", "extra_3 done"),
        ("ai", "Done."),
    ]
    shown = [("extra_3" in str(request.messages) or "extra_3" in request.tool_names) for request in model.requests]
    assert shown[:2] == [False, True]


async def test_pinned_tools_stay_as_they_were() -> None:
    model = ScriptedChatModel(responses=[asks(("c1", "add", {})), "No more actions.", "Done."])
    async with open_mcp_tools({"raw": raw(pin_tools=True)}) as tools:
        await create_graph_agent(model, tools=tools).ainvoke(says("go"))
        assert ([tool.name for tool in tools], tools.lists_change) == (["raw", "hold", "add"], False)
    assert offered(model)[1] == ["add", "hold", "raw"]


async def test_a_list_that_the_user_has_filtered_stays_as_it_is() -> None:
    model = ScriptedChatModel(responses=[asks(("c1", "add", {})), "No more actions.", "Done."])
    async with open_mcp_tools({"raw": raw()}) as tools:
        chosen = [tool for tool in tools if tool.name == "add"]
        await create_graph_agent(model, tools=chosen).ainvoke(says("go"))
    assert offered(model)[1] == ["add"]


async def test_an_added_tool_named_like_an_own_one_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def extra_3() -> str:
        """Be there first."""
        return "own"

    model = ScriptedChatModel(
        responses=[asks(("c1", "add", {})), asks(("c2", "extra_3", {})), "No more actions.", "Done."]
    )
    async with open_mcp_tools({"raw": raw()}) as tools:
        state = await create_graph_agent(model, tools=[*tools, extra_3]).ainvoke(says("go"))
    assert (dialogue(state["messages"])[4], "The new tool 'extra_3' is left out" in caplog.text) == (
        ("tool", "own"),
        True,
    )


async def test_a_server_that_was_opened_again_brings_its_new_tools(tmp_path: Path) -> None:
    script = copy_of_raw(tmp_path)
    async with open_mcp_tools({"raw": raw(args=[str(script)])}) as tools:
        copy_of_raw(tmp_path, '"name": "hold"', '"name": "kept"')
        by_name = {tool.name: tool for tool in tools}
        with pytest.raises(Exception, match="the session ended while 'raw' was running"):
            # A message that the server's own parser cannot stand ends its process.
            await by_name["raw"].ainvoke({"line": {"no": "text"}})
        await by_name["add"].ainvoke({})
        await tools.wait_for_changes()
        assert [tool.name for tool in tools] == ["raw", "kept", "add", "extra_3"]


RENEWING = """TOOLS[0] = {"name": "raw", "description": "Renewed.", "inputSchema": {"type": "object"}}
        number = len(TOOLS)"""
"""What the server's `add` does in addition: `raw` gets another definition."""


@pytest.mark.parametrize("chosen", [{"raw", "hold", "add"}, {"raw", "add"}], ids=["all", "filtered"])
async def test_a_changed_definition_of_a_tool_is_offered_from_the_next_plan_on(
    tmp_path: Path, chosen: set[str]
) -> None:
    script = copy_of_raw(tmp_path, "number = len(TOOLS)", RENEWING)
    model = ScriptedChatModel(responses=[asks(("c1", "add", {})), "No more actions.", "Done."])
    async with open_mcp_tools({"raw": raw(args=[str(script)])}) as tools:
        given = tools if len(chosen) == len(tools) else [tool for tool in tools if tool.name in chosen]
        await create_graph_agent(model, tools=given).ainvoke(says("go"))

    shown = ["Renewed." in str([*request.tools]) for request in model.requests]
    added = {"extra_3"} if len(chosen) == 3 else set()
    assert (shown[:2], offered(model)[1]) == ([False, True], sorted(chosen | added))


@pytest.mark.parametrize("name", ["Hold", "ho ld", "hold ", "ｈｏｌｄ"])
async def test_names_that_differ_only_in_white_space_or_case_are_refused(tmp_path: Path, name: str) -> None:
    script = copy_of_raw(
        tmp_path, '{"name": "add"', f'{{"name": "{name}", "inputSchema": {{"type": "object"}}}},\n    {{"name": "add"'
    )

    with pytest.raises(ConfigError) as caught:
        async with open_mcp_tools({"raw": raw(args=[str(script)])}):
            pass

    assert str(caught.value) == (
        f"MCP server 'raw' has two tools, 'hold' and {name!r}, whose names differ only in white space or case; rename "
        "one of them in the server."
    )


async def test_an_added_tool_whose_name_differs_only_in_case_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = copy_of_raw(tmp_path, 'f"extra_{number}"', '"HOLD"')
    model = ScriptedChatModel(responses=[asks(("c1", "add", {})), "No more actions.", "Done."])
    async with open_mcp_tools({"raw": raw(args=[str(script)])}) as tools:
        await create_graph_agent(model, tools=tools).ainvoke(says("go"))

    assert (offered(model)[1], "'hold' and 'HOLD'" in caplog.text) == (["add", "hold", "raw"], True)
