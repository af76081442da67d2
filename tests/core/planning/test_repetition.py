"""Repeated calls: a notice to the model; tools withheld and the input ended only if results repeat too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.messages.content import create_text_block
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, SessionStatus, create_graph_agent
from graph_agent.core.planning.compaction import compact
from graph_agent.spec import load_spec, open_agent
from tests.support.agents import add, asks, echo, marked, says

LONG = LoopConfig(max_steps=20)
CALLS = "[Notice from the agent framework, not from the user: the same calls were made {} times: {}. "
SAME = CALLS + "The results were the same each time. "
DIFFERENT = (
    CALLS + "The results were not the same each time. If further results will not help, try something else, or answer.]"
)


def session(script: list[str], tools: list[BaseTool], config: LoopConfig = LONG) -> tuple[Session, ScriptedChatModel]:
    model = ScriptedChatModel(script)
    return Session(create_graph_agent(model, tools=tools, config=config, checkpointer=InMemorySaver()), "s1"), model


def giving(results: Iterator[Any], name: str = "fetch", **marks: Any) -> BaseTool:
    """A tool without arguments that gives one result after another."""

    def fetch() -> Any:
        """Fetch what is next."""
        return next(results)

    made: BaseTool = StructuredTool.from_function(fetch, name=name)
    return marked(made, **marks) if marks else made


def same(count: int) -> list[str]:
    """Waves of the same call; they are equal despite key order, `1` and `1.0`, and white space."""
    spelt: list[dict[str, Any]] = [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}, {"a": 1, "b": 2.0}]
    return [asks((f"c{n}", "add", spelt[n % 3])) for n in range(count)]


def fetches(times: int) -> list[str]:
    return [asks((f"f{n}", "fetch", {})) for n in range(times)]


def offered(request: Any) -> list[str]:
    return [schema["function"]["name"] for schema in request.tools]


async def detected(talk: Session) -> list[tuple[list[str], int, str]]:
    return [(e["pattern"], e["count"], e["repeated"]) for e in await talk.events() if e["type"] == "loop_detected"]


async def notices(talk: Session) -> list[str]:
    """The messages of the history that are for the model alone."""
    state = await talk.driver.state()
    return [m.text for m in state.values["messages"] if (m.id or "").startswith("do-not-render-")]


async def test_equal_results_lead_to_a_warning_then_withhold_the_tool_then_end_the_input() -> None:
    talk, model = session([*same(5), "What I know."], [add, echo])

    result = await talk.run("go")

    assert {
        "result": (result.answer, result.status, result.stop_reason),
        "calls": [("error" if isinstance(value, dict) else value) for value in result.results.values()],
        "detected": await detected(talk),
        "offered": [offered(request) for request in model.requests],
        "notices": await notices(talk),
    } == {
        "result": (
            "Stopped: the same calls were made again and again\n\nWhat I know.",
            SessionStatus.ROUND_LIMIT,
            "loop",
        ),
        "calls": [3, 3, 3, 3, "error"],
        "detected": [
            (["add"], 3, "calls and results"),
            (["add"], 4, "calls and results"),
            (["add"], 5, "calls"),
        ],
        "offered": [["add", "echo"]] * 4 + [["echo"]] * 2,
        "notices": [
            SAME.format(3, "add") + "Try something else, or answer.]",
            SAME.format(4, "add") + "add can no longer be called for this task. Try something else, or answer.]",
        ],
    }


@pytest.mark.parametrize("period", [1, 2, 3])
async def test_different_results_of_equal_calls_cause_one_notice_only(period: int) -> None:
    """A cursor, read alone or alternating with tools whose results are constant."""
    cursor = giving(f"page {n}" for n in count())
    turn = [("fetch", {}), ("echo", {"text": "a"}), ("echo", {"text": "b"})][:period]
    script = [asks((f"c{n}", *turn[n % period])) for n in range(5 * period)]
    talk, model = session([*script, "No more actions.", "Done."], [cursor, echo])

    result = await talk.run("go")

    pattern = [name for name, _ in turn]
    last_page = [value for value in result.results.values() if value.startswith("page")][-1]
    assert {
        "result": (result.answer, result.stop_reason, last_page),
        "detected": await detected(talk),
        "offered": {tuple(offered(request)) for request in model.requests},
        "notices": await notices(talk),
    } == {
        "result": ("Done.", "completed", "page 4"),
        "detected": [(pattern, 3, "calls")],
        "offered": {("fetch", "echo")},
        "notices": [DIFFERENT.format(3, ", ".join(pattern))],
    }


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ("abcdddd", [(3, "calls"), (3, "calls and results"), (4, "calls and results")]),
        ("aaabccc", [(3, "calls and results"), (3, "calls and results")]),
        ("aabbccd", [(3, "calls")]),
        ("aaaaxxx", [(3, "calls and results"), (4, "calls and results"), (5, "calls")]),
    ],
    ids=["stops changing", "changes between", "changes now and then", "withheld for good"],
)
async def test_only_equal_results_in_a_row_count(results: str, expected: list[tuple[int, str]]) -> None:
    talk, _ = session([*fetches(len(results)), "Done.", "Done."], [giving(iter(results)), echo])

    await talk.run("go")

    assert [(times, repeated) for _, times, repeated in await detected(talk)] == expected


async def test_another_call_with_an_equal_result_is_not_counted() -> None:
    script = [asks(("o", "other", {})), *fetches(3)]
    talk, _ = session([*script, "Done.", "Done."], [giving(repeat("ok")), giving(repeat("ok"), "other")])

    await talk.run("go")

    assert (await detected(talk), await notices(talk)) == (
        [(["fetch"], 3, "calls and results")],
        [SAME.format(3, "fetch") + "Try something else, or answer.]"],
    )


async def test_a_notice_counts_the_results_that_were_the_same() -> None:
    talk, _ = session([*fetches(5), "No more actions.", "Done."], [giving(iter("abccc"))])

    await talk.run("go")

    assert await notices(talk) == [
        DIFFERENT.format(3, "fetch"),
        SAME.format(3, "fetch") + "Try something else, or answer.]",
    ]


@pytest.mark.parametrize("block", [True, False], ids=["blocks with new ids", "plain text"])
async def test_equal_long_results_are_equal(block: bool) -> None:
    """An id that LangChain gives to a content block anew is no difference."""
    text = "x" * 40_000
    results: Iterator[Any] = iter([[create_text_block(text)] if block else text for _ in range(5)])
    config = LoopConfig(max_steps=20, max_output_chars=100)
    talk, _ = session([*fetches(5), "Done."], [giving(results), echo], config)

    assert (await talk.run("go")).stop_reason == "loop"


async def test_long_results_that_differ_at_their_end_differ() -> None:
    config = LoopConfig(max_steps=20, max_output_chars=100, max_output_lines=2)
    results = (("x" * 40_000) + "y" * n + "z" * 200 for n in count())
    talk, _ = session([*fetches(6), "No more actions.", "Done."], [giving(results), echo], config)

    assert (await talk.run("go")).stop_reason == "completed"


async def test_equal_calls_of_a_wave_are_compared_by_all_their_results() -> None:
    script = [asks((f"a{n}", "fetch", {}), (f"b{n}", "fetch", {})) for n in range(5)]
    results: Iterator[str] = (text for n in count() for text in (f"page {n}", "the end"))
    lock = asyncio.Lock()

    @tool
    async def fetch() -> str:
        """Fetch what is next."""
        async with lock:
            return next(results)

    talk, _ = session([*script, "No more actions.", "Done."], [fetch])

    await talk.run("go")

    assert await detected(talk) == [(["fetch"], 3, "calls")]


async def test_the_next_input_resets_detection() -> None:
    talk, model = session([*same(4), "No more actions.", "One.", *same(1), "No more actions.", "Two."], [add, echo])
    await talk.run("go")

    result = await talk.run("again")

    assert (result.answer, offered(model.requests[-1]), [times for _, times, _ in await detected(talk)]) == (
        "Two.",
        ["add", "echo"],
        [3, 4],
    )


@pytest.mark.parametrize("period", [2, 3])
async def test_longer_patterns_are_found_where_they_do_not_divide_the_window(period: int) -> None:
    pattern = [asks((f"c{n}", "echo", {"text": "abc"[n % period]})) for n in range(3 * period)]
    talk, _ = session([*pattern, "No more actions.", "Done."], [echo])

    result = await talk.run("go")

    assert (result.answer, await detected(talk)) == ("Done.", [(["echo"] * period, 3, "calls and results")])


async def test_polling_is_no_loop() -> None:
    talk, _ = session([*same(9), "No more actions.", "Done."], [marked(add, poll=True)])

    result = await talk.run("go")

    assert (result.answer, await detected(talk), await notices(talk)) == ("Done.", [], [])


async def test_a_poll_after_the_warning_does_not_make_the_pattern_go_on() -> None:
    @tool
    async def wait() -> str:
        """Wait for the job."""
        return "not yet"

    script = [*same(3), asks(("w", "wait", {})), asks(("v", "wait", {})), "No more actions.", "Done."]
    talk, _ = session(script, [add, marked(wait, poll=True)])

    await talk.run("go")

    assert [times for _, times, _ in await detected(talk)] == [3]


@pytest.mark.parametrize("marks", [{}, {"effect": "write"}, {"effect": "read"}], ids=["unmarked", "write", "read"])
async def test_equal_results_of_different_arguments_are_an_event_only(marks: dict[str, Any]) -> None:
    @tool
    async def look(at: str) -> str:
        """Look somewhere."""
        return "nothing"

    script = [asks((at, "look", {"at": at})) for at in "abcdef"]
    talk, model = session([*script, "No more actions.", "Done."], [marked(look, **marks)])

    result = await talk.run("go")

    roles = {message.type for request in model.requests for message in request.messages[2:-1]}
    warnings = [e for e in await talk.events() if e["type"] == "warning"]
    assert (result.answer, await detected(talk), await notices(talk), roles, warnings) == (
        "Done.",
        [(["look"], 3, "results")],
        [],
        {"ai", "tool"},
        [],
    )


def _wave(number: int) -> str:
    plan = '{"status": "continue", "tools": [{"id": "c%s", "tool": "add", "args": {"a": 1, "b": 2}}]}'
    return plan % number


@pytest.mark.parametrize("mode", ["native", "text", "wave"])
async def test_every_mode_sends_the_notice_and_withholds(mode: Any) -> None:
    config = LoopConfig(max_steps=20, tool_calling=mode)
    calls = [_wave(n) for n in range(4)] if mode == "wave" else same(4)
    over = '{"status": "done", "tools": []}' if mode == "wave" else "No more actions."
    talk, model = session([*calls, over, "Done."], [add, echo], config)

    result = await talk.run("go")

    def offers(request: Any) -> bool:
        return "add" in offered(request) if mode == "native" else "## add" in str(request.messages[0].content)

    seen = [sum(message.text.startswith("[Notice from") for message in r.messages) for r in model.requests]
    assert (result.answer, seen, [offers(request) for request in model.requests]) == (
        "Done.",
        [0, 0, 0, 1, 2, 2],
        [True] * 4 + [False] * 2,
    )


async def test_the_only_tool_stays_offered_and_is_refused() -> None:
    talk, model = session([*same(5), "Done."], [add])

    result = await talk.run("go")

    assert (
        result.stop_reason,
        [offered(request) for request in model.requests],
        list(result.results.values())[-1],
    ) == (
        "loop",
        [["add"]] * 6,
        {
            "error": "add is withheld until the user's next message, because its calls and their results repeated. Use "
            "something else, or answer from what you know."
        },
    )


async def _off_in_the_configuration(tmp_path: Path, model: ScriptedChatModel) -> None:
    config = LoopConfig(max_steps=20, loop_detection=False)
    await create_graph_agent(model, tools=[add], config=config).ainvoke(says("go"))


async def _off_in_the_context(tmp_path: Path, model: ScriptedChatModel) -> None:
    graph = create_graph_agent(model, tools=[add], config=LONG, checkpointer=InMemorySaver())
    await Session(graph, "s1").run("go", context={"loop_detection": False})


async def _off_in_the_file(tmp_path: Path, model: ScriptedChatModel) -> None:
    (tmp_path / "own.py").write_text("from tests.support.agents import add\nmodel = None\n")
    file = tmp_path / "agent.yaml"
    file.write_text("name: a\nmodel: own:model\ntools: ['own:add']\nconfig: {max_steps: 20, loop_detection: false}\n")
    spec = load_spec(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graph_agent.agent_file.factory._model", lambda spec: model)
        async with open_agent(spec, db="") as graph:
            await graph.ainvoke(says("go"))


@pytest.mark.parametrize("run", [_off_in_the_configuration, _off_in_the_context, _off_in_the_file])
async def test_detection_can_be_switched_off(tmp_path: Path, run: Callable[..., Any]) -> None:
    model = ScriptedChatModel([*same(9), "No more actions.", "Done."])

    await run(tmp_path, model)

    model.assert_spent()
    assert [message.text for message in model.requests[-1].messages if "Notice" in message.text] == []


async def test_switching_detection_off_offers_the_tools_again() -> None:
    gate, waits = asyncio.Event(), asyncio.Event()

    @tool
    async def pause() -> str:
        """Wait for the test."""
        waits.set()
        await gate.wait()
        return "on"

    talk, model = session(
        [*same(4), asks(("p", "pause", {})), *same(1), "No more actions.", "Done."], [add, marked(pause, poll=True)]
    )
    running = asyncio.create_task(talk.run("go"))
    await asyncio.wait_for(waits.wait(), 60)
    await talk.configure(loop_detection=False)
    gate.set()

    result = await running

    assert (offered(model.requests[4]), offered(model.requests[5]), result.stop_reason) == (
        ["pause"],
        ["add", "pause"],
        "completed",
    )


def test_a_compacted_request_does_not_attribute_a_notice_to_the_user() -> None:
    inputs = [HumanMessage(f"{n} " + "word " * 400, id=f"m{n}") for n in range(6)]
    notice = HumanMessage("[Notice from the agent framework]", id="do-not-render-1")

    made = compact([inputs[0], notice, *inputs[1:]])

    assert made is not None
    assert re.findall(r"- (.*) said: \[Notice", made.messages[0].text) == ["A notice of the agent framework"]
