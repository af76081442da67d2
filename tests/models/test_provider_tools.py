"""Which tools of a provider an agent accepts, and what their calls cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from google.genai import types
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, build_graph, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.models.wire.provider_calls import text_with_calls
from graph_agent.session.results import Done
from tests.support.agents import echo

KEY: Any = "k"
GPT = ChatOpenAI(model="gpt-5", api_key=KEY)
CLAUDE = ChatAnthropic(model_name="claude-sonnet-4-6", api_key=KEY, timeout=None, stop=None)
GEMINI = ChatGoogleGenerativeAI(model="gemini-3-pro-preview", api_key=KEY)
SEARCH = {"type": "web_search"}
OF_CLAUDE = {"type": "web_search_20250305", "name": "web_search"}
RAN: list[Any] = [
    {"type": "server_tool_call", "id": "s1", "name": "web_search", "args": {"query": "tea"}},
    {"type": "server_tool_result", "tool_call_id": "s1", "status": "success", "output": "Assam"},
    {"type": "server_tool_call", "id": "s2", "name": "web_search", "args": {"query": "rice"}},
    {"type": "server_tool_result", "tool_call_id": "s2", "status": "error", "output": "unavailable"},
    {"type": "text", "text": "Assam."},
]


def refusal(model: Any, tools: list[Any], **config: Any) -> str:
    """Return the text of the error that an agent with these tools is refused with."""
    with pytest.raises(ConfigError) as refused:
        create_graph_agent(model, tools, config=LoopConfig(**config))
    return str(refused.value)


@pytest.mark.parametrize(
    ("model", "tools"),
    [
        (GPT, [SEARCH, {"type": "code_interpreter", "container": {"type": "auto"}}, echo]),
        (GPT, [{"type": "file_search", "vector_store_ids": ["vs_1"]}]),
        (
            GPT,
            [{"type": "mcp", "server_label": "hotel", "server_url": "https://h.example", "require_approval": "never"}],
        ),
        (CLAUDE, [OF_CLAUDE, {"type": "code_execution_20250825", "name": "code_execution"}, echo]),
        (CLAUDE, [{"type": "mcp_toolset", "mcp_server_name": "hotel"}]),
        (GEMINI, [{"google_search": {}, "url_context": {}}]),
        (GEMINI, [types.Tool(google_search=types.GoogleSearch())]),
    ],
    ids=["openai", "files", "openai's mcp", "anthropic", "anthropic's mcp", "gemini", "an object"],
)
def test_a_provider_that_has_the_tools_is_offered_them(model: Any, tools: list[Any]) -> None:
    assert create_graph_agent(model, tools).builder.deps.client.has_provider_tools


@pytest.mark.parametrize(
    ("model", "tools", "config", "words"),
    [
        (CLAUDE, [SEARCH], {}, "is one of OpenAI's Responses API, and claude-sonnet-4-6 is served by 'anthropic'"),
        (
            ChatOpenAI(model="m", base_url="http://h.example/v1", api_key=KEY),
            [SEARCH],
            {},
            "no tools that it runs itself",
        ),
        (ChatOpenAI(model="gpt-4o", api_key=KEY, use_responses_api=False), [SEARCH], {}, "needs the Responses API"),
        (GEMINI, [{"google_search": {}}, echo], {}, "accepts no tools of the agent in a request"),
        (GPT, [{"type": "websearch"}], {}, "is no tool"),
        (GPT, [{"type": "function", "name": "f"}], {}, "is no tool"),
        (CLAUDE, [{"type": "bash_20250124", "name": "bash"}], {}, "is not run by the provider, but by your program"),
        (GPT, [{**SEARCH, "approve": True}], {}, "cannot wait for approval"),
        (GPT, [SEARCH], {"approve": ["web_search"]}, "cannot wait for approval"),
        (GPT, [SEARCH], {"approve": ["web_*"]}, "cannot wait for approval"),
        (
            GPT,
            [{"type": "mcp", "server_label": "h", "server_url": "https://h.example"}],
            {},
            "'require_approval': 'never'",
        ),
        (GPT, [SEARCH], {"tool_calling": "wave"}, "asks for calls in the model's text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tool_that_does_not_fit_is_refused_with_its_reason(
    model: Any, tools: list[Any], config: dict[str, Any], words: str
) -> None:
    assert words in refusal(model, tools, **config)


def test_each_model_is_offered_the_tools_of_its_own_api() -> None:
    agent = create_graph_agent(GPT, [SEARCH, OF_CLAUDE], config=LoopConfig(fallback_models=(CLAUDE,)))

    models = agent.builder.deps.models
    chain = asyncio.run(models.chain(agent.builder.deps.config))
    assert [model.client.has_provider_tools for model in chain] == [True, True]


async def test_calls_that_did_not_fail_are_counted_in_the_cost() -> None:
    usage: Any = {"input_tokens": 1_000_000, "output_tokens": 0, "total_tokens": 1_000_000}
    model = ScriptedChatModel([AIMessage(RAN, usage_metadata=usage)])
    prices = {"scripted": {"input": 2.0, "output": 0.0, "provider_calls": {"web_search": 0.01}}}
    agent = create_graph_agent(model, [SEARCH], config=LoopConfig(prices=prices), checkpointer=InMemorySaver())

    result = await Session(agent, "s1").run("tea?")

    assert (result.cost, result.answer) == (2.01, "Assam.")


@pytest.mark.parametrize(
    ("tools", "path", "own_form"),
    [([SEARCH], "/v1/responses", True), ([echo], "/v1/chat/completions", False)],
    ids=["Responses API", "chat completions"],
)
async def test_chat_completions_receive_what_the_responses_api_ran_as_text(
    tools: list[Any], path: str, own_form: bool
) -> None:
    requests: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(401)

    searched = AIMessage(
        [{"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "tea"}}, RAN[-1]],
        response_metadata={"model_provider": "openai"},
    )
    async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as http:
        model = ChatOpenAI(model="gpt-5", api_key=KEY, http_async_client=http, max_retries=0)
        agent = create_graph_agent(model, tools, config=LoopConfig(model_retries=0))
        await agent.run([HumanMessage("Which tea?"), searched, HumanMessage("And rice?")])

    [request] = requests
    body = request.content.decode()
    assert (request.url.path, "web_search_call" in body, "[Call of web_search: " in body) == (
        path,
        own_form,
        not own_form,
    )


def test_a_call_that_a_reply_has_twice_is_written_once() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "tea"}}
    reply = AIMessage([search, search, RAN[-1]], response_metadata={"model_provider": "openai"})

    call, result, *texts = text_with_calls(reply).split("\n\n")

    assert (call, result[:22], texts) == (
        '[Call of web_search: {"type": "search", "query": "tea"}]',
        "[Result of web_search:",
        [reply.text],
    )


def cited(text: str) -> AIMessage:
    """A reply after a search, whose text cites a page for the word Assam."""
    begin = text.index("Assam")
    place = {"start_index": begin, "end_index": begin + len("Assam")}
    source = {"type": "citation", "url": "https://tea.example", "title": "Tea", **place}
    return AIMessage([*RAN[:2], {"type": "text", "text": text, "annotations": [source]}])


ONE_STEP: list[Any] = [
    AIMessage("", tool_calls=[{"name": "echo", "args": {"text": "a"}, "id": "e1"}]),
    cited("It is Assam."),
]


@pytest.mark.parametrize(
    ("replies", "tools", "answer"),
    [
        ([cited("\n\n  Tea grows in Assam.")], [SEARCH], "Tea grows in Assam."),
        ([cited("\n\n  Tea grows in Assam.")], [SEARCH, echo], "Tea grows in Assam."),
        ([cited("Tea grows in Assam.\nNo more actions.")], [SEARCH, echo], "Tea grows in Assam."),
        (ONE_STEP, [SEARCH, echo], "Reached maximum reasoning steps (1)\n\nIt is Assam."),
    ],
    ids=["white space", "with a tool of the agent", "sentinel", "step limit"],
)
async def test_citations_have_their_places_in_the_answer(replies: list[Any], tools: list[Any], answer: str) -> None:
    agent = create_graph_agent(ScriptedChatModel(replies), tools, config=LoopConfig(max_steps=1))

    result = await agent.run("Where does tea grow?")

    found = [(each["title"], result.answer[each["start"] : each["end"]]) for each in result.citations]
    calls = [event["name"] for event in result.events if event["type"] == "provider_call"]
    assert (result.answer, found, calls) == (answer, [("Tea", "Assam")], ["web_search"])


@pytest.mark.parametrize("piece", [[RAN[0]], ""], ids=["after a call", "while a call may run unseen"])
async def test_an_answer_at_a_limit_is_not_requested_again_once_the_provider_may_have_run_a_tool(piece: Any) -> None:
    class Breaking(ScriptedChatModel):
        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
            async for chunk in super()._astream(*args, **kwargs):
                if self.requests[1:]:
                    yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
                    raise ConnectionError("connection lost")
                yield chunk

    model = Breaking(responses=[*ONE_STEP, "Never asked for."])
    agent = create_graph_agent(model, [SEARCH, echo], config=LoopConfig(max_steps=1))

    parts = [part async for part in agent.run_stream("Where does tea grow?")]

    assert isinstance(done := parts[-1], Done)
    assert (len(model.requests), done.result.error_kind) == (2, "transient")


async def test_an_iterator_of_tools_is_read_once_for_all_readers() -> None:
    model = ScriptedChatModel(["Assam."])
    mixed: Any = (each for each in (SEARCH, echo))
    agent = create_graph_agent(model, mixed, config=LoopConfig(tool_calling="native"))
    built = build_graph(model, (each for each in [SEARCH]))  # type: ignore[arg-type]  # as untyped programs do

    await agent.run("tea?")

    offered = [each if "type" in each and each["type"] != "function" else "echo" for each in model.requests[0].tools]
    assert (sorted(map(str, offered)), built.deps.client.has_provider_tools) == (sorted(["echo", str(SEARCH)]), True)


async def test_a_tool_that_is_given_twice_is_offered_once() -> None:
    model = ScriptedChatModel(["Assam."])
    agent = create_graph_agent(model, [SEARCH, {**SEARCH}], config=LoopConfig(tool_calling="native"))

    await agent.run("tea?")

    assert model.requests[0].tools == [SEARCH]
