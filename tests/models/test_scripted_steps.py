"""Steps of a script: consumed once and in order, with an error for unexpected and unused ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.errors import ConfigError, ScriptError
from tests.support.scripted_helpers import call, echo, streamed


def test_copies_read_on_in_the_same_script_and_instances_in_their_own() -> None:
    script = ["1", "2", "3", "4", "5"]
    model, other = ScriptedChatModel(script), ScriptedChatModel(script)

    texts = [
        model.invoke("x").text,
        model.bind_tools([echo]).invoke("x").text,
        model.with_config(tags=["t"]).invoke("x").text,
        model.model_copy().invoke("x").text,
        model.model_copy(deep=True).invoke("x").text,
        other.invoke("x").text,
    ]

    assert texts == ["1", "2", "3", "4", "5", "1"]


def test_the_script_is_given_once_over_many_threads() -> None:
    model = ScriptedChatModel([str(n) for n in range(200)])

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: model.invoke("x").text, range(200)))

    model.assert_spent()
    assert sorted(texts, key=int) == [str(n) for n in range(200)]


def test_an_exhausted_script_names_the_requested_step() -> None:
    model = ScriptedChatModel(["a", "b"])
    model.invoke("1")
    model.invoke("2")

    with pytest.raises(ScriptError) as third:
        model.bind_tools([echo]).invoke([SystemMessage("Be brief."), HumanMessage("And now?")])
    with pytest.raises(ScriptError, match="asked for a 4th"):
        list(model.stream([]))

    assert str(third.value) == (
        'The script has 2 replies and was asked for a 3rd. Last request: human message "And now?", with echo. '
        "Add a reply to the script, or find out why the model was asked once more."
    )


@pytest.mark.parametrize(
    ("size", "asked"), [(0, "1st"), (1, "2nd"), (2, "3rd"), (3, "4th"), (10, "11th"), (11, "12th"), (20, "21st")]
)
def test_steps_are_numbered_from_one(size: int, asked: str) -> None:
    model = ScriptedChatModel(["x"] * size)
    for _ in range(size):
        model.invoke("x")

    with pytest.raises(ScriptError, match=f"asked for a {asked}\\."):
        model.invoke("x")


async def test_an_exhausted_script_raises_from_every_method() -> None:
    model = ScriptedChatModel([])

    for ask in (model.ainvoke("x"), streamed(model), streamed(model.bind_tools([echo]))):
        with pytest.raises(ScriptError):
            await ask
    assert len(model.requests) == 3


def test_steps_left_over_are_named() -> None:
    model = ScriptedChatModel(["a", call(), "No more actions."])
    model.invoke("x")

    with pytest.raises(ScriptError) as caught:
        model.assert_spent()

    assert str(caught.value) == (
        'The script has 3 replies and 2 of them were never asked for: 2nd: calls echo; 3rd: "No more actions.". '
        "Remove what is not needed, or find out why the run ended early."
    )


def test_a_long_list_of_unused_steps_is_shortened() -> None:
    with pytest.raises(ScriptError, match="and 4 more"):
        ScriptedChatModel(["x" * 1000] * 9).assert_spent()


@pytest.mark.parametrize(("asked", "spent"), [(0, False), (1, False), (2, True), (5, True)])
def test_a_cycle_is_spent_after_one_round(asked: int, spent: bool) -> None:
    model = ScriptedChatModel(["a", "b"], cycle=True)
    for _ in range(asked):
        model.invoke("x")

    if spent:
        model.assert_spent()
    else:
        with pytest.raises(ScriptError):
            model.assert_spent()


def test_a_cycle_restarts_with_new_ids() -> None:
    message = AIMessage("a", id="m1", tool_calls=[{"name": "f", "args": {}, "id": "c1"}])
    model = ScriptedChatModel([message, "b"], cycle=True)

    replies = [model.invoke("x") for _ in range(5)]

    assert [reply.text for reply in replies] == ["a", "b", "a", "b", "a"]
    assert replies[0].id == "m1"
    assert len({reply.id for reply in replies}) == 5
    assert [each["id"] for reply in replies for each in reply.tool_calls] == ["c1", "c1-2", "c1-3"]


def test_two_messages_of_one_id_do_not_keep_it_both() -> None:
    message = AIMessage("a", id="m1")
    model = ScriptedChatModel([message, message])

    ids = [model.invoke("x").id for _ in range(2)]

    assert ids[0] == "m1"
    assert ids[1] not in {"m1", None}


def test_a_reply_that_is_changed_does_not_change_the_script() -> None:
    message = AIMessage(
        [{"type": "text", "text": "a"}],
        tool_calls=[{"name": "f", "args": {"deep": {"x": 1}}, "id": "c1"}],
        additional_kwargs={"k": {"v": 1}},
    )
    model = ScriptedChatModel([message], cycle=True)
    first = model.invoke("x")

    first.tool_calls[0]["args"]["deep"]["x"] = 2
    first.additional_kwargs["k"]["v"] = 2
    first.content.append("more")  # type: ignore[union-attr] # it is a list
    message.additional_kwargs["k"]["v"] = 3
    second = model.invoke("x")

    assert (second.content, second.tool_calls[0]["args"], second.additional_kwargs) == (
        [{"type": "text", "text": "a"}],
        {"deep": {"x": 1}},
        {"k": {"v": 1}},
    )


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        (["a", 1], "Step 2 of the script is of type int"),
        ([HumanMessage("a")], "Step 1 of the script is of type HumanMessage"),
        ([{"city": "Bergen"}], "Step 1 of the script is of type dict and no call"),
        ([{}], "Step 1 of the script is of type dict and no call"),
        ([["add"]], "Step 1 of the script has a tool call without a name"),
        ("hello", "a list of replies, and this is one string"),
        (['{"tool_calls": [{"id": "x"}]}'], "Step 1 of the script has a tool call without a name"),
        (['{"tool_calls": ["echo"]}'], "Step 1 of the script has a tool call without a name"),
    ],
)
def test_an_invalid_script_is_refused(responses: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScriptedChatModel(responses)


def test_an_empty_script_cannot_be_cycled() -> None:
    with pytest.raises(ConfigError, match="empty script"):
        ScriptedChatModel([], cycle=True)


def test_a_chunk_is_taken_as_the_message_it_stands_for() -> None:
    chunk = AIMessageChunk(content="a", tool_call_chunks=[{"name": "f", "args": '{"x": 1}', "id": "c", "index": 0}])

    reply = ScriptedChatModel([chunk]).invoke("x")

    assert (type(reply), reply.text, reply.tool_calls[0]["args"]) == (AIMessage, "a", {"x": 1})


def test_a_model_that_the_variable_replaces_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", '["Of the variable."]')
    result = create_graph_agent(ScriptedChatModel(["Of the program."])).run_sync("Who answers?")

    message = "DEBUG_MOCK_RESPONSES replaces the ScriptedChatModel that the program passes; unset it to use that one."
    assert (result.answer, [record.getMessage() for record in caplog.records]) == ("Of the variable.", [message])
