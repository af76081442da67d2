"""Calls that end inside a value: never run, whatever the finish reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.tool import invalid_tool_call

from graph_agent.base.finish import cut_off
from graph_agent.calls import read_text_calls
from tests.support.cut_off import AGAIN, ENVELOPE, HALF, Disk, disk, ended, refused_call
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["disk", "openai_stub"]

_TAGGED = '<tool_call>{"name": "write", "arguments": '


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("finish", ["stop", "tool_calls", ""])
@pytest.mark.parametrize(
    ("mode", "reply"),
    [
        ("native", Reply(tool_calls=(("write", HALF),))),
        ("native", Reply(tool_calls=(("write", '{"path": "n", "text": 12'),))),
        ("text", Reply(_TAGGED + HALF)),
        ("text", Reply(_TAGGED + '{"path": "n", "text": 12')),
        ("text", Reply(_TAGGED + '{"path": "n", "text": ')),
        ("text", Reply(_TAGGED + '{"path": {"a": "n"}, "text": tru ')),
        ("text", Reply(ENVELOPE + HALF)),
        ("text", Reply('```json\n{"name": "write", "arguments": {"path": "n", "text": 12')),
        ("text", Reply("<function=write>\n<parameter=path>\nnotes")),
        ("text", Reply("<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>not")),
    ],
)
async def test_a_call_that_ends_inside_a_value_is_not_run(
    openai_stub: StubFactory, disk: Disk, streamed: bool, finish: str, mode: str, reply: Reply
) -> None:
    stub = openai_stub(replace(reply, finish=finish), "No more actions.", "So.")

    got = await ended(stub, disk, streamed=streamed, tool_calling=mode)

    assert (got["files"], got["results"]) == (
        {},
        [("write", "skipped", refused_call("before it was complete", AGAIN))],
    )


@pytest.mark.parametrize(
    ("text", "streamed", "finish", "runs"),
    [
        (_TAGGED + '{"path": "n"', True, "stop", True),
        (_TAGGED + '{"path": "n"}', False, "stop", True),
        # A blocking run streams its requests too, so a missing finish reason may be a lost end.
        (_TAGGED + '{"path": "n"}', False, "", False),
        (_TAGGED + '{"path": "n"', True, "", False),
        (_TAGGED + '{"path": "n"}}', True, "", True),
        (_TAGGED + '{"path": "n"</tool_call>', True, "stop", True),
        ("<function=write><parameter=path>n</parameter>", True, "stop", True),
        ("<function=write><parameter=path>n</parameter>", True, "", False),
        ("<function=write><parameter=path>n</parameter></function>", True, "", True),
    ],
)
async def test_a_call_that_lacks_only_closing_marks_is_run_if_its_reply_ended(
    openai_stub: StubFactory, disk: Disk, text: str, streamed: bool, finish: str, runs: bool
) -> None:
    stub = openai_stub(Reply(text, finish=finish), "No more actions.", "So.")

    got = await ended(stub, disk, streamed=streamed, tool_calling="text")

    status = "success" if runs else "skipped"
    assert (list(got["files"]), [given for _, given, _ in got["results"]]) == (["n"] if runs else [], [status])


@pytest.mark.parametrize(
    ("end", "unclosed", "partial"),
    [
        ("12", True, True),
        ("12}", True, False),
        ("12</tool_call>", False, False),
        ("12\n```", False, False),
        ("12}} and more", False, False),
    ],
)
def test_a_text_ends_inside_a_call_only_if_nothing_follows(end: str, unclosed: bool, partial: bool) -> None:
    read = read_text_calls(f'{_TAGGED}{{"text": {end}', ["write"])

    assert ([call["arguments"] for call in read.calls], read.unclosed, read.partial) == (
        [{"text": 12}],
        unclosed,
        partial,
    )


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "text", [_TAGGED + HALF, '{"status": "done", "tools": [{"id": "a", "tool": "write", "args": {"path": "a ]b']
)
async def test_a_call_of_a_plan_that_ends_inside_a_value_is_not_run(
    openai_stub: StubFactory, disk: Disk, streamed: bool, text: str
) -> None:
    stub = openai_stub(Reply(text, finish="stop"), '{"status": "done", "tools": []}', "Done.")

    got = await ended(stub, disk, streamed=streamed, tool_calling="wave")

    notice = stub.bodies[1]["messages"][-1]["content"]
    assert (got["files"], notice.startswith("The plan "), "Send the whole plan again" in notice) == ({}, True, True)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (HALF, "interrupted"),
        ('{"a": 1', "interrupted"),
        ('{"a": [1, 2\n', "interrupted"),
        ('{"a": tru', "interrupted"),
        ('{"a": "b", "c":', "interrupted"),
        ('{"a": "b", "c"', "interrupted"),
        ('{"a": "b", "c": [', "interrupted"),
        ("{'a': 'b", "interrupted"),
        ('{"a": “b”, "c": 1', "interrupted"),
        ('{"a": "b"', None),
        ('{"a": "b",', None),
        ('{"a": 1,', None),
        ('{"a": [1]', None),
        ("{'a': 'say \"hi'}", None),
        ("not json", None),
    ],
)
def test_arguments_that_end_inside_a_value_were_cut_off(raw: str, expected: str | None) -> None:
    reply = AIMessage("", invalid_tool_calls=[invalid_tool_call(id="1", name="write", args=raw)])

    assert cut_off(reply) == expected
