"""The scripted model's structured output."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from pydantic import ValidationError

from graph_agent import ScriptedChatModel
from tests.support.scripted_helpers import Room, RoomDict


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
@pytest.mark.parametrize(
    "response",
    ['{"name": "Sea", "beds": 2}', '{"tool_calls": [{"name": "Room", "arguments": {"name": "Sea", "beds": 2}}]}'],
)
async def test_structured_output(method: Any, response: str) -> None:
    model = ScriptedChatModel([response] * 4)

    parsed = [
        await model.with_structured_output(Room, method=method).ainvoke("x"),
        model.with_structured_output(Room, method=method, strict=True).invoke("x"),
        await model.with_structured_output(RoomDict, method=method).ainvoke("x"),
        await model.with_structured_output(Room.model_json_schema(), method=method).ainvoke("x"),
    ]

    room = {"name": "Sea", "beds": 2}
    assert parsed == [Room(name="Sea", beds=2), Room(name="Sea", beds=2), room, room]


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ("no room", OutputParserException),
        ('{"name": "Sea"}', OutputParserException),
        ('{"tool_calls": [{"name": "Room", "arguments": {"name": "Sea"}}]}', ValidationError),
    ],
)
async def test_structured_output_that_does_not_fit(response: str, error: type[Exception]) -> None:
    model = ScriptedChatModel([response] * 2)

    with pytest.raises(error):
        await model.with_structured_output(Room).ainvoke("x")
    kept = await model.with_structured_output(Room, include_raw=True).ainvoke("x")

    assert isinstance(kept["raw"], AIMessage)
    assert kept["parsed"] is None
    assert isinstance(kept["parsing_error"], error)


async def test_structured_output_with_the_raw_message() -> None:
    model = ScriptedChatModel(['{"name": "Sea", "beds": 2}'])

    kept = await model.with_structured_output(Room, include_raw=True).ainvoke("x")

    assert (kept["raw"].text, kept["parsed"], kept["parsing_error"]) == (
        '{"name": "Sea", "beds": 2}',
        Room(name="Sea", beds=2),
        None,
    )


def test_the_schema_is_in_the_request() -> None:
    model = ScriptedChatModel(['{"name": "Sea", "beds": 2}'] * 3)

    for method in ("json_schema", "function_calling", "json_mode"):
        model.with_structured_output(Room, method=method).invoke("x")

    formats = [request.kwargs.get("response_format", {}).get("type") for request in model.requests]
    assert (formats, model.requests[1].tool_names, model.requests[1].tool_choice) == (
        ["json_schema", None, "json_object"],
        ["Room"],
        "any",
    )
