"""Servers that accept tools and leave them out of the prompt, which the reported input tokens show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.models.dropped_tools import drops_tools, fewest_tokens_of_tools
from graph_agent.models.wire import table
from tests.support import doors
from tests.support.doors import PLAIN, Client, doors_of, from_session
from tests.support.openai_stub import OpenAIStub, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bergen"}}</tool_call>'
INVENTED, ANSWER = "It is sunny in Bergen.", "Take an umbrella."
WARNING = (
    "The server of stub-model accepts tools and leaves them out of the prompt, as the input tokens of its reply show; "
    "calls are asked for in text from now on. Set tool_calling: text to begin with it."
)


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"It rains in {city}."


def tokens(*texts: str) -> int:
    """The tokens of texts, as common tokenizers count them: words in pieces, and punctuation."""
    return sum(len(re.findall(r"\w{1,6}|[^\w\s]", text)) for text in texts)


def messages_of(body: dict[str, Any]) -> int:
    """An honest count of a request's messages, with what a chat template adds to each."""
    return sum(tokens(message["content"] or "") + 4 for message in body["messages"])


def dropping(*texts: str) -> list[Callable[[dict[str, Any]], Reply]]:
    """Replies of a server that leaves tools out of the prompt."""
    return [lambda body, text=text: Reply(text, prompt_tokens=messages_of(body)) for text in texts]  # type: ignore[misc] # bound


def counting(text: str) -> Callable[[dict[str, Any]], Reply]:
    """A reply of a server that has the tools in the prompt, each in few words."""

    def reply(body: dict[str, Any]) -> Reply:
        written = [
            f"{tool['function']['name']}({', '.join(tool['function']['parameters']['properties'])}): "
            f"{tool['function']['description']}"
            for tool in body.get("tools", ())
        ]
        return Reply(text, prompt_tokens=messages_of(body) + tokens("You may call these tools:", *written) + 20)

    return reply


def agent_of(model: BaseChatModel, **config: Any) -> Any:
    return create_graph_agent(model, tools=[weather], config=LoopConfig(**config), checkpointer=InMemorySaver())


async def facts_of(session: Session) -> tuple[list[str], list[str]]:
    """The warnings of a session, and the results of its calls."""
    events: list[Any] = list(await session.events())
    return (
        [event["message"] for event in events if event["type"] == "warning"],
        [event["content"] for event in events if event["type"] == "tool_result"],
    )


def offered(stub: OpenAIStub) -> list[bool]:
    return ["tools" in body for body in stub.bodies]


@pytest.mark.parametrize("streaming", [False, True])
async def test_dropped_tools_are_asked_for_in_text(openai_stub: StubFactory, streaming: bool) -> None:
    stub = openai_stub(*dropping(INVENTED, CALL, ANSWER, "Hello."))
    async with stub.chat_model(streaming=streaming) as model:
        session = Session(agent_of(model), "s1")

        first, second = await session.run("Do I need an umbrella in Bergen?"), await session.run("Hi")

    assert (first.answer, second.answer, offered(stub), await facts_of(session)) == (
        ANSWER,
        "Hello.",
        [True, False, False, False],
        ([WARNING], ["It rains in Bergen."]),
    )
    assert first.usage["model_calls"] == 3


async def test_another_session_of_the_agent_begins_in_text(openai_stub: StubFactory) -> None:
    stub = openai_stub(*dropping(INVENTED, "Hello.", CALL, ANSWER))
    async with stub.chat_model() as model:
        agent = agent_of(model)
        await Session(agent, "s1").run("Do I need an umbrella in Bergen?")
        session = Session(agent, "s2")

        result = await session.run("Do I need an umbrella in Bergen?")

    assert (result.answer, offered(stub), await facts_of(session)) == (
        ANSWER,
        [True, False, False, False],
        ([WARNING], ["It rains in Bergen."]),
    )


async def test_streamed_words_become_commentary(openai_stub: StubFactory) -> None:
    stub = openai_stub(*dropping(INVENTED, CALL, ANSWER))
    async with stub.chat_model() as model:
        stream = Session(agent_of(model), "s1").stream("Do I need an umbrella in Bergen?")
        parts = [part async for part in stream]

    shown = [(part.type, getattr(part, "text", "")) for part in parts if part.type in ("token", "plan_text")]
    joined = [[text for kind, text in shown if kind == "plan_text"], "".join(t for k, t in shown if k == "token")]
    assert joined == [[INVENTED], INVENTED + ANSWER]


async def answers_at_doors(openai_stub: StubFactory, replies: list[str], stream: bool) -> list[Any]:
    """The answers of a server that drops tools at each door, streamed or whole."""
    stub, found = openai_stub(), []
    async with stub.chat_model() as model:
        for door in ("openai_chat", "anthropic_messages", "responses", "session"):
            graph = agent_of(model)
            stub.serve_from_now(*dropping(*replies))
            async with doors_of(graph, PLAIN) as (_, http):
                client = Client(http, door, stream, False)
                send = partial(from_session, graph) if door == "session" else getattr(doors, door)
                found.append(await send(client, "Rain?"))
    return found


@pytest.mark.parametrize("second", [CALL, "It may rain."])
async def test_commentary_is_the_same_at_every_door(openai_stub: StubFactory, second: str) -> None:
    answer = ANSWER if second == CALL else second
    replies = [INVENTED, *([CALL, ANSWER] if second == CALL else [second])]
    found = []
    for stream in (True, False):
        found += await answers_at_doors(openai_stub, replies, stream)

    items = [("message", "commentary", [f"{INVENTED}\n\n"]), ("message", "final_answer", [answer])]
    one = [
        f"{INVENTED}\n\n{answer}",
        [INVENTED, answer],
        (items, f"{INVENTED}\n\n{answer}"),
        (answer, None),
    ]
    assert found == [*one, *one]


async def test_an_honest_count_keeps_native_tools(openai_stub: StubFactory) -> None:
    stub = openai_stub(counting("Hello."), counting("Bye."))
    async with stub.chat_model() as model:
        session = Session(agent_of(model), "s1")

        await session.run("Hi")
        await session.run("Bye")

    assert (offered(stub), await facts_of(session)) == ([True, True], ([], []))


@pytest.mark.parametrize("given", [(3, 400), (140, 139)], ids=["cached in addition", "cached within"])
async def test_cached_tokens_count(openai_stub: StubFactory, given: tuple[int, int]) -> None:
    prompt, cached = given
    stub = openai_stub(Reply("Hello.", prompt_tokens=prompt, cached_tokens=cached), "Hello.")
    async with stub.chat_model() as model:
        await Session(agent_of(model), "s1").run("Hi")

    assert offered(stub) == [True]


async def test_a_count_that_cannot_be_one_of_the_request_proves_nothing(openai_stub: StubFactory) -> None:
    stub = openai_stub(Reply("Hello.", prompt_tokens=11))
    async with stub.chat_model() as model:
        await Session(agent_of(model), "s1").run("Hi")

    assert offered(stub) == [True]


async def test_a_native_call_proves_that_tools_arrive(openai_stub: StubFactory) -> None:
    call = Reply(tool_calls=(("weather", {"city": "Bergen"}),))
    stub = openai_stub(call, ANSWER, *dropping("Hello.", "Hello."))
    async with stub.chat_model() as model:
        saver = InMemorySaver()
        for text in ("Rain?", "Hi"):
            # Each input in a process of its own, as it were: what the agent remembers is not what decides.
            agent = create_graph_agent(model, tools=[weather], checkpointer=saver)
            await Session(agent, "s1").run(text)

    assert offered(stub) == [True, True, True]


async def test_a_known_endpoint_is_trusted(openai_stub: StubFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = openai_stub(*dropping("Hello.", "Hello."))
    monkeypatch.setitem(table.PORTS, int(stub.base_url.rpartition(":")[2].removesuffix("/v1")), "ollama")
    async with stub.chat_model() as model:
        await Session(agent_of(model), "s1").run("Hi")

    assert offered(stub) == [True]


async def test_a_limit_leaves_the_first_reply(openai_stub: StubFactory) -> None:
    stub = openai_stub(*dropping(INVENTED))
    async with stub.chat_model() as model:
        session = Session(agent_of(model, max_turns=1), "s1")

        result = await session.run("Rain?")

    assert (result.answer, offered(stub), await facts_of(session)) == (INVENTED, [True], ([WARNING], []))


NAMES = st.text("abcdefghij_", min_size=1, max_size=24)
TEXTS = st.text(max_size=200)
SCHEMAS = st.lists(
    st.builds(
        lambda name, text, arguments: {
            "type": "function",
            "function": {
                "name": name,
                "description": text,
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": "string", "description": about} for key, about in arguments.items()},
                },
            },
        },
        NAMES,
        TEXTS,
        st.dictionaries(NAMES, TEXTS, max_size=4),
    ),
    min_size=1,
    max_size=20,
)


@given(SCHEMAS, st.lists(TEXTS, min_size=1, max_size=2), st.sampled_from([2, 3, 4]))
def test_no_honest_count_looks_like_dropped_tools(schemas: list[Any], prompt: list[str], per_token: int) -> None:
    reported = sum(len(text) for text in [*prompt, json.dumps(schemas, ensure_ascii=False)]) // per_token

    assert not drops_tools(reported, prompt, fewest_tokens_of_tools(schemas))
