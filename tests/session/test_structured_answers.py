"""Structured answers: instances of the given class, enforced by the provider where possible."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import pytest
from langchain.agents.structured_output import (
    AutoStrategy,
    StructuredOutputError,
    StructuredOutputValidationError,
    ToolStrategy,
)
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, computed_field
from typing_extensions import TypedDict

from graph_agent import LoopConfig, RunResult, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.models.schema_modes import strict_schema
from graph_agent.persistence import open_saver
from graph_agent.session.results import run_result, typed_result
from tests.support.agents import asks, echo, says, thread
from tests.support.openai_stub import Failure, OpenAIStub, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]


class City(BaseModel):
    """A city."""

    name: str
    people: int = Field(ge=0)


@dataclass
class Town:
    """A town."""

    name: str
    people: int


class Village(TypedDict):
    """A village."""

    name: str
    people: int


PARIS: Any = {"name": "Paris", "people": 2_100_000}
TEXT = json.dumps(PARIS)
JSON_SCHEMA = City.model_json_schema()
STRICT = {**JSON_SCHEMA, "additionalProperties": False}
PROFILE = {"tool_calling": True, "structured_output": True}
NO_PROFILE = {"tool_calling": True, "structured_output": False}


def session(model: Any, shape: Any, **options: Any) -> Session:
    return Session(create_graph_agent(model, response_format=shape, checkpointer=InMemorySaver(), **options), "s1")


async def streamed(talk: Session) -> tuple[list[str], RunResult]:
    """The tokens of one run, and its result."""
    parts = [part async for part in talk.stream("go")]
    (result,) = [part.result for part in parts if part.type == "done"]
    return [part.text for part in parts if part.type == "token"], result


@pytest.mark.parametrize(
    ("shape", "made"),
    [(City, City(**PARIS)), (Town, Town(**PARIS)), (Village, PARIS), (JSON_SCHEMA, PARIS)],
    ids=["pydantic", "dataclass", "TypedDict", "JSON schema"],
)
async def test_the_answer_is_an_instance_of_the_class_and_plain_json_in_the_state(shape: Any, made: Any) -> None:
    talk = session(ScriptedChatModel([TEXT]), shape)

    result = await talk.run("go")

    state = await talk.graph.aget_state(thread())
    output = await create_graph_agent(ScriptedChatModel([TEXT]), response_format=shape).ainvoke(says("go"))
    assert (
        result.structured_response,
        type(result.structured_response),
        state.values["structured_response"],
        output["structured_response"],
    ) == (made, type(made), PARIS, PARIS)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("shape", [dict[str, Any], dataclass], ids=["JSON schema", "dataclass"])
async def test_a_number_that_json_does_not_have_is_sent_back(shape: Any, number: str) -> None:
    @dataclass
    class Rain:
        mm: float

    schema = {"type": "object", "properties": {"mm": {"type": "number"}}, "required": ["mm"]}
    model = ScriptedChatModel([f'{{"mm": {number}}}', '{"mm": 2.5}'])
    talk = session(model, Rain if shape is dataclass else schema)

    result = await talk.run("go")

    assert (result.structured_response, model.requests[1].messages[-1].text) == (
        Rain(2.5) if shape is dataclass else {"mm": 2.5},
        "That does not fit: A number is NaN, infinite or out of range; it must be finite. Send the corrected object.",
    )


class Doubled(BaseModel):
    """Fields that a plain dump would lose or add."""

    model_config = ConfigDict(extra="forbid", strict=True)

    on: datetime.date = Field(validation_alias="day", serialization_alias="date")
    times: tuple[int, ...] = ()
    secret: SecretStr = Field(exclude=True)

    @computed_field
    def year(self) -> int:
        """Compute the year."""
        return self.on.year


async def test_an_instance_survives_aliases_secrets_and_computed_fields(tmp_path: Path) -> None:
    reply = '{"day": "2026-12-04", "times": [1, 2], "secret": "s3"}'
    address = f"sqlite:///{tmp_path}/answers.db"
    async with open_saver(address) as saver:
        model = ScriptedChatModel([reply])
        graph = create_graph_agent(model, response_format=Doubled, checkpointer=saver)
        result = await Session(graph, "s1").run("go")

    made = result.structured_response
    assert made is not None
    assert (made, made.secret.get_secret_value()) == (Doubled.model_validate_json(reply), "s3")


@pytest.mark.parametrize("reasoning", ['<think>Perhaps {"name": "Rome", "people": 1}?</think>\n', "Rome?</think>"])
async def test_a_draft_in_reasoning_is_not_the_answer(reasoning: str) -> None:
    graph = create_graph_agent(
        ScriptedChatModel([f"{reasoning}```json\n{TEXT}\n```"]), response_format=City, checkpointer=InMemorySaver()
    )

    result = await Session(graph, "s1").run("Which city?")

    assert result.structured_response == City(**PARIS)


async def test_defaults_are_filled_in() -> None:
    class Place(BaseModel):
        town_name: str = Field(alias="townName")
        country: str = "France"

    talk = session(ScriptedChatModel(['{"townName": "Lyon"}']), Place)

    result = await talk.run("go")

    state = (await talk.graph.aget_state(thread())).values["structured_response"]
    assert (result.structured_response, state) == (Place(townName="Lyon"), {"townName": "Lyon", "country": "France"})


async def test_an_answer_stored_under_an_earlier_class_stays_plain() -> None:
    class Older(BaseModel):
        name: str

    saver = InMemorySaver()
    older = create_graph_agent(ScriptedChatModel(['{"name": "Bergen"}']), response_format=Older, checkpointer=saver)
    await Session(older, "s1").run("go")

    newer = create_graph_agent(ScriptedChatModel([]), response_format=City, checkpointer=saver)

    stored = run_result(await newer.aget_state(thread()))
    assert typed_result(stored, newer, None).structured_response == {"name": "Bergen"}


async def test_an_answer_to_a_runs_own_schema_is_plain() -> None:
    talk = session(ScriptedChatModel([TEXT]), City)

    result = await talk.run("go", context={"response_schema": JSON_SCHEMA})

    assert result.structured_response == PARIS


async def of_stub(stub: OpenAIStub, *, stream: bool, shape: Any = City, **options: Any) -> tuple[list[str], RunResult]:
    """The outcome of one run against a stub, with its tokens."""
    profile = options.pop("profile", PROFILE)
    async with stub.chat_model(profile=profile, **options.pop("model", {})) as model:
        talk = session(model, shape, **options)
        return await streamed(talk) if stream else ([], await talk.run("go"))


NO_STRICT = Failure(400, "Invalid schema for response_format 'response': 'minimum' is not permitted.")
NO_SCHEMA = Failure(400, "'response_format' of type 'json_schema' is not supported with this model.")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("tools", [[], [echo]], ids=["no tools", "tools"])
@pytest.mark.parametrize("mode", ["native", "text", "wave"])
async def test_the_provider_holds_the_answer_to_the_schema(
    openai_stub: StubFactory, mode: Any, tools: list[Any], stream: bool
) -> None:
    done = {"native": "No more actions.", "text": "No more actions.", "wave": '{"status": "done"}'}[mode]
    stub = openai_stub(*([done] if tools else []), TEXT)

    tokens, result = await of_stub(
        stub, stream=stream, tools=tools, config=LoopConfig(tool_calling=mode, finalize="compose")
    )

    body = stub.bodies[-1]
    assert (
        body["response_format"],
        bool(body.get("tools")),
        [request for request in stub.bodies[:-1] if "response" in str(request.get("response_format", {}).get("name"))],
        result.structured_response,
        "".join(tokens),
        len(tokens) > 1,
    ) == (
        {"type": "json_schema", "json_schema": {"name": "response", "schema": STRICT, "strict": True}},
        bool(tools) and mode == "native",
        [],
        City(**PARIS),
        TEXT if stream else "",
        stream,
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("finalize", ["auto", "direct"])
async def test_a_planning_reply_that_is_the_answer_is_held_to_the_schema(
    openai_stub: StubFactory, finalize: Any, stream: bool
) -> None:
    stub = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), TEXT)

    tokens, result = await of_stub(stub, stream=stream, tools=[echo], config=LoopConfig(finalize=finalize))

    sent = [(len(body["tools"]), body["response_format"]["json_schema"]["strict"]) for body in stub.bodies]
    assert (sent, result.structured_response, "".join(tokens), len(tokens) > 1) == (
        [(1, True), (1, True)],
        City(**PARIS),
        TEXT if stream else "",
        stream,
    )


async def test_a_planning_reply_that_was_streamed_and_does_not_fit_is_replaced(openai_stub: StubFactory) -> None:
    stub = openai_stub('{"name": "Paris", "people": -1}', TEXT)
    async with stub.chat_model(profile=PROFILE) as model:
        talk = session(model, City, tools=[echo])
        tokens, result = await streamed(talk)
        events = await talk.events()

    warned = [event["message"][:74] for event in events if event["type"] == "warning"]
    assert ("".join(tokens), len(tokens), result.answer, result.structured_response, warned) == (
        '{"name": "Paris", "people": -1}' + TEXT,
        5,
        TEXT,
        City(**PARIS),
        ["The answer did not fit the response format, and another takes its place. C"],
    )


async def test_an_answer_that_resembles_a_call_is_an_answer_if_it_fits_the_schema(openai_stub: StubFactory) -> None:
    class Call(BaseModel):
        name: str
        arguments: dict[str, str]

    reply = '{"name": "echo", "arguments": {"text": "a"}}'
    stub = openai_stub(reply)

    tokens, result = await of_stub(stub, stream=True, shape=Call, tools=[echo])

    assert (len(stub.requests), result.structured_response, "".join(tokens)) == (
        1,
        Call(name="echo", arguments={"text": "a"}),
        reply,
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_schema_that_is_refused_with_tools_leaves_the_calls(openai_stub: StubFactory, stream: bool) -> None:
    stub = openai_stub(NO_STRICT, NO_SCHEMA, Reply(tool_calls=(("echo", {"text": "a"}),)), TEXT)

    tokens, result = await of_stub(stub, stream=stream, tools=[echo])

    sent = ["response_format" in body for body in stub.bodies]
    assert (sent, result.results, result.structured_response, "".join(tokens)) == (
        [True, True, False, False],
        {"call_1": "a"},
        City(**PARIS),
        TEXT if stream else "",
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_without_the_mode_in_the_profile_the_answer_is_repaired_and_not_streamed(
    openai_stub: StubFactory, stream: bool
) -> None:
    stub = openai_stub("Paris, I think.", TEXT)

    tokens, result = await of_stub(stub, stream=stream, profile=NO_PROFILE)

    sent = ["response_format" in body for body in stub.bodies]
    assert (sent, "".join(tokens), len(tokens), result.structured_response) == (
        [False, False],
        TEXT if stream else "",
        int(stream),
        City(**PARIS),
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("tools", [[], [echo]], ids=["no tools", "tools"])
async def test_a_schema_that_the_provider_refuses_is_asked_for_another_way_from_then_on(
    openai_stub: StubFactory, tools: list[Any], stream: bool
) -> None:
    planned = ["No more actions."] if tools else []
    stub = openai_stub(*planned, NO_STRICT, NO_SCHEMA, "Paris.", TEXT, *planned, TEXT)
    async with stub.chat_model(profile=PROFILE) as model:
        talk = session(model, City, tools=tools, config=LoopConfig(finalize="compose"))
        first = (await streamed(talk))[1] if stream else await talk.run("go")
        second = await talk.run("again")

    answers = [body for body in stub.bodies if "Now provide your final response" in str(body["messages"])]
    strict = [body.get("response_format", {}).get("json_schema", {}).get("strict") for body in answers]
    assert (strict, first.structured_response, second.structured_response) == (
        [True, False, None, None, None],
        City(**PARIS),
        City(**PARIS),
    )


async def test_a_schema_without_a_strict_form_is_sent_as_it_stands(openai_stub: StubFactory) -> None:
    free = {"type": "object", "properties": {"counts": {"type": "object"}}, "required": ["counts"]}
    stub = openai_stub('{"counts": {"a": 1}}')

    _, result = await of_stub(stub, stream=True, shape=free)

    assert (stub.bodies[0]["response_format"]["json_schema"], result.structured_response) == (
        {"name": "response", "schema": free, "strict": False},
        {"counts": {"a": 1}},
    )


async def test_an_answer_that_was_streamed_and_does_not_fit_is_replaced_with_a_warning(
    openai_stub: StubFactory,
) -> None:
    stub = openai_stub('{"name": "Paris", "people": -1}', TEXT)
    async with stub.chat_model(profile=PROFILE) as model:
        talk = session(model, City)
        tokens, result = await streamed(talk)
        events = await talk.events()
        messages = (await talk.graph.aget_state(thread())).values["messages"]

    warned = [event["message"] for event in events if event["type"] == "warning"]
    assert ("".join(tokens), result.answer, result.structured_response, warned, len(messages)) == (
        '{"name": "Paris", "people": -1}' + TEXT,
        TEXT,
        City(**PARIS),
        [
            "The answer did not fit the response format, and another takes its place. City: people=-1: Input should "
            "be greater than or equal to 0."
        ],
        2,
    )


async def test_the_options_of_the_model_itself_stay(openai_stub: StubFactory) -> None:
    stub = openai_stub(TEXT)

    await of_stub(stub, stream=False, model={"extra_body": {"top_k": 4}})

    assert (stub.bodies[0]["top_k"], stub.bodies[0]["response_format"]["type"]) == (4, "json_schema")


async def test_the_responses_api_is_sent_the_schema_in_its_own_form(openai_stub: StubFactory) -> None:
    stub = openai_stub()

    await of_stub(stub, stream=False, model={"use_responses_api": True})

    # The stub has no such path: the request alone counts.
    assert (stub.requests[0].path, stub.bodies[0]["text"]) == (
        "/v1/responses",
        {"format": {"type": "json_schema", "name": "response", "schema": STRICT, "strict": True}},
    )


async def test_a_reply_that_was_cut_off_is_repaired(openai_stub: StubFactory) -> None:
    stub = openai_stub(Reply('{"name": "Par', finish="length"), TEXT)

    _, result = await of_stub(stub, stream=False)

    assert (len(stub.requests), result.structured_response, result.status) == (2, City(**PARIS), "COMPLETED")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_limit_sentence_precedes_the_structure(openai_stub: StubFactory, stream: bool) -> None:
    stub = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), TEXT)

    tokens, result = await of_stub(stub, stream=stream, tools=[echo], config=LoopConfig(max_steps=1))

    answer = f"Reached maximum reasoning steps (1)\n\n{TEXT}"
    assert (result.answer, result.structured_response, "".join(tokens)) == (
        answer,
        City(**PARIS),
        answer if stream else "",
    )


async def test_a_model_of_another_provider_is_sent_langchains_own_option() -> None:
    model = ScriptedChatModel([asks(("c", "echo", {"text": "a"})), "No more actions.", AIMessage(TEXT)])

    _, result = await streamed(session(model, City, tools=[echo], config=LoopConfig(finalize="compose")))

    assert ([request.kwargs.get("response_format") for request in model.requests], result.structured_response) == (
        [
            None,
            None,
            {"type": "json_schema", "json_schema": {"name": "response", "schema": JSON_SCHEMA, "strict": False}},
        ],
        City(**PARIS),
    )


def field(schema: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": list(required)}


def strict_field(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (field({"type": "string"}, "a"), strict_field({"type": "string"})),
        (field({"type": "string"}), None),
        (field({"type": "string", "default": "x"}), strict_field({"type": "string"})),
        (field({"type": ["string", "null"]}), strict_field({"type": ["string", "null"]})),
        (
            field({"type": "array", "items": {"type": "integer"}}),
            strict_field({"type": "array", "items": {"type": "integer"}}),
        ),
        (field({"type": "array", "minItems": 1, "items": {"type": "integer"}}), None),
        (field({"type": "array"}, "a"), None),
        (field({}, "a"), None),
        (field({"type": "object"}, "a"), None),
        (field({"type": "object", "additionalProperties": {"type": "string"}}, "a"), None),
        (field({"allOf": [{"type": "string"}]}, "a"), None),
        (field({"$ref": "https://example.org/a"}, "a"), None),
        (field({"type": "string", "format": "date"}, "a"), strict_field({"type": "string", "format": "date"})),
        (field({"type": "string", "format": "uri"}, "a"), strict_field({"type": "string"})),
        (
            field({"oneOf": [{"const": 1}, {"type": "null"}], "discriminator": {}}, "a"),
            strict_field({"anyOf": [{"const": 1}, {"type": "null"}]}),
        ),
        (
            {**field({"$ref": "#/$defs/B", "title": "B"}, "a"), "$defs": {"B": field({"type": "null"})}},
            {**strict_field({"$ref": "#/$defs/B"}), "$defs": {"B": strict_field({"type": "null"})}},
        ),
        ({"type": "array", "items": {"type": "string"}}, None),
    ],
)
def test_the_strict_form_of_a_schema(schema: dict[str, Any], strict: dict[str, Any] | None) -> None:
    assert strict_schema(schema) == strict


# What create_agent takes: unions and strategies


class Approve(BaseModel):
    """The request is fine."""

    reason: str


@dataclass
class Refuse:
    """The request is not fine."""

    reason: str


class Forward(TypedDict):
    """Others decide."""

    response_type: str


REFUSED: Any = {"response_type": "Refuse", "reason": "x"}


@pytest.mark.parametrize("strategy", [lambda union: union, AutoStrategy, ToolStrategy])
@pytest.mark.parametrize("union", [Approve | Refuse, Union[Approve, Refuse]], ids=["or", "Union"])  # noqa: UP007 - both
async def test_an_answer_of_a_union_is_an_instance_of_the_class_that_it_names(strategy: Any, union: Any) -> None:
    model = ScriptedChatModel([json.dumps(REFUSED)])
    talk = session(model, strategy(union))

    result = await talk.run("go")

    state = await talk.graph.aget_state(thread())
    asked = str(model.requests[0].messages)
    assert (result.structured_response, state.values["structured_response"], "Approve" in asked) == (
        Refuse("x"),
        REFUSED,
        True,
    )


async def test_an_answer_that_names_no_class_of_the_union_is_sent_back() -> None:
    replies = ['{"reason": "x"}', '{"response_type": "Approve"}', '{"response_type": "Approve", "reason": "y"}']
    model = ScriptedChatModel(replies)

    result = await session(model, Approve | Refuse).run("go")

    assert ([request.messages[-1].text for request in model.requests[1:]], result.structured_response) == (
        [
            "That does not fit: The field 'response_type' must be one of: Approve, Refuse. Send the corrected object.",
            "That does not fit: Approve: the field 'reason' is missing. Send the corrected object.",
        ],
        Approve(reason="y"),
    )


async def test_the_field_that_names_the_class_leaves_a_field_of_the_same_name_alone() -> None:
    reply = {"_response_type": "Forward", "response_type": "law"}

    result = await session(ScriptedChatModel([json.dumps(reply)]), Forward | Approve).run("go")

    assert result.structured_response == {"response_type": "law"}


async def test_the_provider_is_sent_the_schemas_of_a_union(openai_stub: StubFactory) -> None:
    stub = openai_stub(json.dumps(REFUSED))

    _, result = await of_stub(stub, stream=False, shape=Approve | Refuse)

    sent = stub.bodies[0]["response_format"]["json_schema"]
    named = [each["properties"]["response_type"] for each in sent["schema"]["anyOf"]]
    assert (sent["strict"], sent["schema"]["type"], named, result.structured_response) == (
        False,
        "object",
        [{"const": "Approve", "type": "string"}, {"const": "Refuse", "type": "string"}],
        Refuse("x"),
    )


async def test_a_strategy_takes_an_answer_that_fits_several_schemas() -> None:
    either: Any = {"oneOf": [{"title": name, "type": "object", "properties": {"a": {}}} for name in ("A", "B")]}

    result = await session(ScriptedChatModel(['{"a": 1}']), ToolStrategy(either)).run("go")

    assert result.structured_response == {"a": 1}


def explained(error: Exception) -> str:
    assert isinstance(error, StructuredOutputValidationError)
    return f"{type(error.source).__name__}: {error.ai_message.text}"


@pytest.mark.parametrize(
    ("handle_errors", "correction"),
    [
        (True, "That does not fit: The reply holds no JSON. Send the corrected object."),
        ("Again, please.", "Again, please."),
        (StructuredOutputError, "That does not fit: The reply holds no JSON. Send the corrected object."),
        ((KeyError, ValueError, StructuredOutputError), "That does not fit: The reply holds no JSON. Send the"),
        (explained, "ValueError: Paris."),
        (False, None),
        (KeyError, None),
        ((KeyError, TypeError), None),
    ],
    ids=["True", "text", "class", "classes", "function", "False", "other class", "other classes"],
)
async def test_handle_errors_decides_what_sends_an_answer_back(handle_errors: Any, correction: str | None) -> None:
    model = ScriptedChatModel(["Paris.", TEXT])

    result = await session(model, ToolStrategy(City, handle_errors=handle_errors)).run("go")

    sent = [request.messages[-1].text for request in model.requests[1:]]
    fault = "The answer did not fit the response format: The reply holds no JSON."
    assert ([text.startswith(correction or "-") for text in sent], result.status, fault in (result.error or "")) == (
        ([], "FAILED", True) if correction is None else ([True], "COMPLETED", False)
    )


async def test_a_failure_of_handle_errors_ends_the_run_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def fails(error: Exception) -> str:
        raise KeyError("reason")

    talk = session(ScriptedChatModel(["Paris."]), ToolStrategy(City, handle_errors=fails))

    with pytest.raises(ConfigError, match=r"^ToolStrategy: handle_errors failed: KeyError: 'reason'"):
        await talk.run("go")

    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith("handle_errors of the ToolStrategy failed: KeyError: 'reason'\nTraceback")


class Names(RootModel[list[str]]):
    """A list."""


def renamed() -> Any:
    return type("City", (BaseModel,), {"__annotations__": {"mayor": str}})


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (ToolStrategy(City, tool_message_content="Noted."), "tool_message_content has no use here, because the answer"),
        (City | None, "response_format takes a pydantic class, a dataclass, a TypedDict class, a Union of these or a"),
        (City | Names, "response_format: Names has no fields; each class of a Union needs some."),
        (Union[City, renamed()], "have one name; rename one."),  # noqa: UP007 - the class is made at run time
    ],
    ids=["tool_message_content", "None", "no fields", "one name"],
)
def test_a_format_without_an_equivalent_is_refused_with_the_reason(given: Any, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        create_graph_agent(ScriptedChatModel([]), response_format=given)

    assert fault in str(refused.value)
