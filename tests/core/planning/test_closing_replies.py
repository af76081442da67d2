"""A reply to the request for the answer that is a plan or a call: its answer is taken out, or it counts as empty."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, RunResult, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks, echo

DONE = "No more actions."
PLAN = '{"status": "done", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "x"}}]}'
MORE = '{"status": "continue", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "x"}}]}'
CALL = '<tool_call>{"name": "echo", "arguments": {"text": "y"}}</tool_call>'
BARE = '{"name": "echo", "arguments": {"text": "y"}}'
NATIVE = asks(("c1", "echo", {"text": "x"}))
ACCOUNT = "The model's answer was empty, and so was the answer to a second request.\n\nDone: echo."


def account(text: str) -> str:
    """The report of a call of `echo` whose answer is missing."""
    return f'{ACCOUNT}\n\nWhat was read, the newest last:\n- echo({{"text": "{text}"}}): {text}'


class City(BaseModel):
    name: str
    status: str = "done"


async def run(script: list[str], *, streamed: bool, user_input: str = "go", **parts: Any) -> tuple[RunResult, str]:
    """The result, and the text of the stream."""
    model = ScriptedChatModel(script)
    config = LoopConfig(**parts.pop("config", {}))
    graph = create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver(), **parts)
    session, shown = Session(graph, "s1"), ""
    if streamed:
        collected = [part async for part in session.stream(user_input)]
        shown = "".join(part.text for part in collected if part.type == "token")
        result = collected[-1].result  # type: ignore[union-attr]  # the last part is Done
    else:
        result = await session.run(user_input)
        shown = result.answer
    model.assert_spent()
    return result, shown


WAVE = {"tool_calling": "wave"}
PLANS = [
    ('{"status": "done", "tools": [], "answer": "Hello."}', "Hello."),
    ('```json\n{"status": "done", "tools": [], "answer": "Hello."}\n```', "Hello."),
    ('<think>Hm.</think>{"status": "done", "answer": "Hello."}', "Hello."),
    ('{"status": "done", "tools": [], "answer": "One\\n\\"two\\"."}', 'One\n"two".'),
    ('{"status": "done", "tools": []}\n\nHello.', "Hello."),
    ('{"status": "done", "answer": "Hello.", "tools": [],}', "Hello."),
    (MORE.replace('"tools"', '"answer": "Hello.", "tools"'), "Hello."),
    ('{"status": "done", "tools": [], "answer": "Hello, yo', "Hello, yo"),
]


@pytest.mark.parametrize(("reply", "answer"), PLANS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_the_answer_of_a_plan_is_the_answer(reply: str, answer: str, streamed: bool) -> None:
    result, shown = await run([PLAN, reply], streamed=streamed, config=WAVE)

    assert (result.answer, shown, result.status) == (answer, answer, "COMPLETED")


@pytest.mark.parametrize(("reply", "answer"), PLANS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_the_answer_of_a_plan_follows_the_sentence_of_a_limit(reply: str, answer: str, streamed: bool) -> None:
    result, shown = await run([MORE, reply], streamed=streamed, config={**WAVE, "max_steps": 1})

    whole = f"Reached maximum reasoning steps (1)\n\n{answer}"
    hint = "Raise `max_steps` (now 1) in the agent's configuration to allow more steps."
    assert (result.answer, shown, result.stop_reason, result.hint) == (whole, whole, "step_limit", hint)


EMPTY = [
    ({"tool_calling": "wave"}, [PLAN], MORE),
    ({"tool_calling": "wave"}, [PLAN], f"```json\n{MORE}\n```"),
    ({"tool_calling": "wave"}, [PLAN], '{"status": "done", "tools": [], "answer": ""}'),
    ({"tool_calling": "wave"}, [PLAN], '{"status": "continue", "tools": [{"id": "t2", "to'),
    ({"tool_calling": "wave"}, [PLAN], CALL),
    ({"tool_calling": "text"}, [NATIVE, DONE], CALL),
    ({"tool_calling": "text"}, [NATIVE, DONE], BARE),
    ({"tool_calling": "text", "finalize": "compose"}, [NATIVE, DONE], CALL),
    ({"tool_calling": "native"}, [NATIVE, DONE], CALL),
    ({"tool_calling": "native", "finalize": "compose"}, [NATIVE, DONE], f"<think>Hm.</think>\n{CALL}"),
]


@pytest.mark.parametrize(("config", "before", "reply"), EMPTY)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_a_reply_of_calls_alone_is_asked_for_once_more(
    config: dict[str, Any], before: list[str], reply: str, streamed: bool
) -> None:
    result, shown = await run([*before, reply, "Hello."], streamed=streamed, config=config)
    failed, report = await run([*before, reply, reply], streamed=streamed, config=config)

    assert (result.answer, shown, result.status) == ("Hello.", "Hello.", "COMPLETED")
    assert (failed.answer, report, failed.status) == (
        f"This request failed. {account('x')}",
        f"This request failed. {account('x')}",
        "FAILED",
    )


@pytest.mark.parametrize(
    ("tool_calling", "first", "reply", "text"),
    [("wave", MORE, MORE, "x"), ("text", CALL, CALL, "y"), ("native", NATIVE, CALL, "x")],
)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_calls_alone_at_a_limit_are_replaced_by_the_account(
    tool_calling: str, first: str, reply: str, text: str, streamed: bool
) -> None:
    config = {"tool_calling": tool_calling, "max_steps": 1}
    result, shown = await run([first, reply, reply], streamed=streamed, config=config)

    whole = f"Reached maximum reasoning steps (1)\n\n{account(text)}"
    assert (result.answer, shown, result.stop_reason) == (whole, whole, "step_limit")


@pytest.mark.parametrize("reply", ["", DONE, MORE])
async def test_a_second_answer_below_a_limit_is_streamed(reply: str) -> None:
    result, shown = await run([MORE, reply, "So far: x."], streamed=True, config={**WAVE, "max_steps": 1})

    assert "So far: x." in result.answer
    assert shown == result.answer


@pytest.mark.parametrize(
    ("config", "before", "user_input", "reply"),
    [
        (WAVE, PLAN, "go", '{"status": "ok", "uptime": 3}'),
        (WAVE, PLAN, "go", '{"tools": ["hammer", "saw"]}'),
        (WAVE, PLAN, "go", f"```python\nplan = {MORE}\n```"),
        (WAVE, PLAN, "go", f"A plan is {MORE}"),
        ({"tool_calling": "text"}, DONE, f"Repeat {BARE}", BARE),
        ({"tool_calling": "native"}, DONE, "go", '{"name": "Oslo", "size": 3}'),
    ],
)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_other_answers_in_json_are_kept(
    config: dict[str, Any], before: str, user_input: str, reply: str, streamed: bool
) -> None:
    result, shown = await run([before, reply], streamed=streamed, user_input=user_input, config=config)

    assert (result.answer, shown, result.status) == (reply, reply, "COMPLETED")


@pytest.mark.parametrize(
    ("reply", "name"),
    [
        ('{"status": "done", "name": "Oslo"}', "Oslo"),
        ('{"status": "done", "tools": [], "answer": "{\\"name\\": \\"Rome\\"}"}', "Rome"),
    ],
)
async def test_a_structured_answer_is_taken_out_of_a_plan_if_the_reply_does_not_fit(reply: str, name: str) -> None:
    result, _ = await run([PLAN, reply], streamed=False, config=WAVE, response_format=City)

    assert (result.structured_response, result.status) == (City(name=name), "COMPLETED")
