"""The hotel's offline model, driven without the loop, with the server's real tools."""

from __future__ import annotations

import importlib.util
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from mcp.server.fastmcp import FastMCP
from mcp.server.fastmcp.exceptions import ToolError

from examples.hotel import offline_model
from examples.hotel.offline_model import OfflineHotelModel
from examples.hotel.rooms import Rooms
from examples.hotel.server import make_server

Wave = list[tuple[str, dict[str, Any]]]
FINAL = HumanMessage("Now provide your final response to the user, from the results above.")


class Desk:
    """A conversation: questions go in, waves of calls and the streamed answer come out."""

    def __init__(self, server: FastMCP, schemas: list[dict[str, Any]], aliases: dict[str, str]) -> None:
        self.server = server
        self.schemas = schemas
        self.aliases = aliases
        self.messages: list[BaseMessage] = [SystemMessage("You are a hotel.\n\nToday is 2026-11-21.")]

    async def ask(self, question: str) -> tuple[list[Wave], str, list[str]]:
        """Return the waves, the last planning reply, and the tokens of the answer."""
        model = OfflineHotelModel().bind_tools(self.schemas)
        self.messages.append(HumanMessage(question))
        waves: list[Wave] = []
        reply = await model.ainvoke(self.messages)
        while reply.tool_calls and len(waves) < 8:
            self.messages.append(reply)
            waves.append([(call["name"], call["args"]) for call in reply.tool_calls])
            self.messages += [
                await self._run(call["name"], call["args"], call["id"] or "") for call in reply.tool_calls
            ]
            reply = await model.ainvoke(self.messages)
        tokens = [str(chunk.content) async for chunk in model.astream([*self.messages, FINAL])]
        self.messages.append(AIMessage("".join(tokens)))
        return waves, str(reply.content), tokens

    async def _run(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolMessage:
        try:
            blocks, _ = await self.server.call_tool(self.aliases[name], arguments)
        except ToolError as error:
            return ToolMessage(str(error), tool_call_id=call_id, status="error")
        content: list[str | dict[Any, Any]] = [{"type": "text", "text": block.text} for block in blocks]  # type: ignore[union-attr] # all text
        return ToolMessage(content, tool_call_id=call_id, name=name)


async def open_desk(path: Path, dot: str = ".") -> Desk:
    def today() -> date:
        return date(2026, 11, 21)

    server = make_server(Rooms(path / "hotel.db", today), today)
    tools = await server.list_tools()
    aliases = {tool.name.replace(".", dot): tool.name for tool in tools}
    schemas = [
        {"type": "function", "function": {"name": alias, "description": "", "parameters": tool.inputSchema}}
        for alias, tool in zip(aliases, tools, strict=True)
    ]
    return Desk(server, schemas, aliases)


HANUKKAH = ("calendar.resolve_holiday", {"name": "Hanukkah"})
CHRISTMAS = ("calendar.resolve_holiday", {"name": "Christmas"})
NEXT_WEEKEND = ("calendar.resolve_date_hint", {"phrase": "next weekend"})


def availability(check_in: str, check_out: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "pms.get_availability", {"check_in": check_in, "check_out": check_out, **more}


def booking(check_in: str, check_out: str, room: str, guest: str) -> tuple[str, dict[str, Any]]:
    return "pms.book_room", {"room": room, "check_in": check_in, "check_out": check_out, "guest_name": guest}


FIRST_NIGHT = availability("2026-12-04", "2026-12-05")
WAVES: list[tuple[str, list[Wave]]] = [
    ("Check availability for January 17-19", [[availability("2027-01-17", "2027-01-19")]]),
    ("one night in Hanukkah", [[HANUKKAH], [FIRST_NIGHT]]),
    (
        "Check availability for Hanukkah and also next weekend",
        [
            [HANUKKAH, NEXT_WEEKEND],
            [availability("2026-12-04", "2026-12-12"), availability("2026-11-27", "2026-11-29")],
        ],
    ),
    ("Hanukkah, first night, and January 17", [[HANUKKAH, availability("2027-01-17", "2027-01-18")], [FIRST_NIGHT]]),
    ("the last two nights of Hanukkah", [[HANUKKAH], [availability("2026-12-10", "2026-12-12")]]),
    ("ninth night of Hanukkah", [[HANUKKAH]]),
    (
        "is anything free from Christmas until January 2 for 3 guests?",
        [[CHRISTMAS], [availability("2026-12-25", "2027-01-02", guests=3)]],
    ),
    ("When is Easter 2028?", [[("calendar.resolve_holiday", {"name": "Easter", "year": 2028})]]),
    ("rooms on Feb 30", [[("calendar.resolve_date_hint", {"phrase": "Feb 30"})]]),
    ("Any rooms over Festivus?", [[("calendar.resolve_holiday", {"name": "Festivus"})]]),
    (
        "book the double for Hanukkah first night for Ada",
        [[HANUKKAH], [booking("2026-12-04", "2026-12-05", "double", "Ada")]],
    ),
    ("Please don't book, is the double free on December 4 for Ada?", [[FIRST_NIGHT]]),
    ("hello", []),
    ("what can you do?", []),
    ("", []),
]


@pytest.mark.parametrize(("question", "expected"), WAVES)
async def test_a_question_and_its_waves(question: str, expected: list[Wave], tmp_path: Path) -> None:
    desk = await open_desk(tmp_path)

    waves, last_word, _ = await desk.ask(question)

    assert (waves, last_word) == (expected, "No more actions.")


async def test_the_answer_is_streamed_word_by_word(tmp_path: Path) -> None:
    desk = await open_desk(tmp_path)

    _, _, tokens = await desk.ask("one night in Hanukkah")

    assert tokens[:4] == ["Hanukkah:", " 8", " nights,", " from"]
    assert "".join(tokens) == (
        "Hanukkah: 8 nights, from Friday 4 December 2026 to Friday 11 December 2026.\n"
        "4 rooms are free from Friday 4 December 2026 to Saturday 5 December 2026 (1 night):\n"
        "- Single room, courtyard (single), sleeps 1: 80 EUR a night, 80 EUR in all\n"
        "- Double room, garden view (double), sleeps 2: 120 EUR a night, 120 EUR in all\n"
        "- Family room, two bedrooms (family), sleeps 4: 180 EUR a night, 180 EUR in all\n"
        "- Suite, top floor (suite), sleeps 3: 260 EUR a night, 260 EUR in all"
    )


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("When is Hanukkah?", "Hanukkah: 8 nights, from Friday 4 December 2026 to Friday 11 December 2026."),
        ("What day is tomorrow?", "Tomorrow: Sunday 22 November 2026."),
        ("rooms on Feb 30", "I could not resolve 'Feb 30': There is no 30 February; write a day that exists."),
        (
            "book the suite for November 27-29 for Ada",
            "I could not book from Friday 27 November 2026 to Sunday 29 November 2026 (2 nights): The suite is already "
            "booked from 2026-11-27 to 2026-11-29, so it is not free from 2026-11-27 to 2026-11-29; ask "
            "pms.get_availability for a room that is.",
        ),
        (
            "book the twin for December 10-12 for Grace Hopper",
            "Booked: Twin room, street side (twin) from Thursday 10 December 2026 to Saturday 12 December 2026 "
            "(2 nights) for Grace Hopper, 220 EUR in all. The booking number is HB-0005.",
        ),
        (
            "a room for 50 guests on December 4",
            "No room for 50 guests is free from Friday 4 December 2026 to Saturday 5 December 2026 (1 night).",
        ),
    ],
)
async def test_the_answer_contains_the_tool_results(question: str, answer: str, tmp_path: Path) -> None:
    desk = await open_desk(tmp_path)

    _, _, tokens = await desk.ask(question)

    assert "".join(tokens) == answer


async def test_follow_ups_go_on_from_the_questions_before(tmp_path: Path) -> None:
    desk = await open_desk(tmp_path)
    questions = [
        "Check availability for January 17-19 for 2 guests",
        "and next weekend?",
        "book it",
        "the twin, for Ada Lovelace",
        "hello",
        "When is Hanukkah?",
        "and Christmas?",
    ]

    waves = [(await desk.ask(question))[0] for question in questions]

    weekend = ("2026-11-27", "2026-11-29")
    assert waves == [
        [[availability("2027-01-17", "2027-01-19", guests=2)]],
        [[NEXT_WEEKEND], [availability(*weekend, guests=2)]],
        [[NEXT_WEEKEND], [availability(*weekend, guests=2)]],
        [[NEXT_WEEKEND], [booking(*weekend, "twin", "Ada Lovelace")]],
        [],
        [[HANUKKAH]],
        [[CHRISTMAS]],
    ]


@pytest.mark.parametrize("dot", ["_", "__", "-"])
async def test_tools_are_called_by_the_names_they_were_bound_with(dot: str, tmp_path: Path) -> None:
    desk = await open_desk(tmp_path, dot)

    waves, _, _ = await desk.ask("one night in Hanukkah")

    assert [[name for name, _ in wave] for wave in waves] == [
        [f"calendar{dot}resolve_holiday"],
        [f"pms{dot}get_availability"],
    ]


@pytest.mark.timeout(60)
async def test_a_long_question_without_sense_is_answered_honestly(tmp_path: Path) -> None:
    desk = await open_desk(tmp_path)

    waves, _, tokens = await desk.ask("lorem ipsumdolor 17 in \x00\ud800 " * 4000)

    answer = "".join(tokens)
    assert waves == []
    assert answer.startswith("I am the offline stand-in of this example: a few rules, no language model.")
    assert answer.endswith("I read only the first 4000 characters of your question.")


async def test_steering_is_part_of_the_question(tmp_path: Path) -> None:
    desk = await open_desk(tmp_path)
    reply = OfflineHotelModel().bind_tools(desk.schemas)
    steering = HumanMessage("for 3 guests", additional_kwargs={"graph_agent": "steering"})
    warning = HumanMessage("You repeat yourself on December 24.", id="do-not-render-1")

    message = await reply.ainvoke([*desk.messages, HumanMessage("December 4"), steering, warning])

    assert [(call["name"], call["args"]) for call in message.tool_calls] == [
        availability("2026-12-04", "2026-12-05", guests=3)
    ]


async def test_no_tool_is_called_with_tool_choice_none(tmp_path: Path) -> None:
    desk = await open_desk(tmp_path)
    asked = [*desk.messages, HumanMessage("one night in Hanukkah")]
    models = [OfflineHotelModel().bind_tools(desk.schemas, tool_choice="none"), OfflineHotelModel()]

    replies = [await model.ainvoke(asked) for model in models]

    assert [(reply.content, reply.tool_calls) for reply in replies] == [
        ("I did not get to look up 'Hanukkah'.", [])
    ] * 2


async def test_a_loop_without_a_second_call_gets_its_answer_at_once(tmp_path: Path) -> None:
    desk = await open_desk(tmp_path)
    prompt = SystemMessage("When you need no further tools, answer the user.")

    reply = await OfflineHotelModel().bind_tools(desk.schemas).ainvoke([prompt, HumanMessage("hello")])

    assert str(reply.content).startswith("I am the offline stand-in of this example")


async def test_calls_are_streamed_as_chunks_with_usage(tmp_path: Path) -> None:
    desk = await open_desk(tmp_path)
    model = OfflineHotelModel().bind_tools(desk.schemas)
    asked = [*desk.messages, HumanMessage("Hanukkah and next weekend")]

    whole: AIMessageChunk | None = None
    for chunk in model.stream(asked):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk

    assert whole is not None
    assert whole.usage_metadata is not None
    assert (whole.content, [(call["name"], call["args"]) for call in whole.tool_calls]) == (
        "",
        [HANUKKAH, NEXT_WEEKEND],
    )
    assert min(whole.usage_metadata["input_tokens"], whole.usage_metadata["output_tokens"]) > 0


def test_the_factory_logs_once_that_no_language_model_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    offline_model._announce.cache_clear()

    models = [offline_model.make_model(), offline_model.make_model()]

    output = capsys.readouterr()
    assert [model._llm_type for model in models] == ["offline-rules-of-the-hotel-example"] * 2
    assert (output.out, output.err) == (
        "",
        "Offline model: a few rules for dates, holidays and rooms, no language model. Set OPENAI_API_KEY to use one.\n",
    )


def test_the_module_can_be_loaded_by_its_path() -> None:
    spec = importlib.util.spec_from_file_location("offline_model", Path(offline_model.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)

    spec.loader.exec_module(module)

    assert module.make_model()._llm_type == "offline-rules-of-the-hotel-example"
