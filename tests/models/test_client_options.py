"""An agent's settings reach a model whose class takes them in a form of its own, or are left out with a warning."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.server import AgentSource, create_app
from tests.support.agents import echo
from tests.support.openai_stub import StubFactory, openai_stub

__all__ = ["openai_stub"]  # a fixture

SENT = LoopConfig(temperature=0.25, max_output_tokens=77, top_p=0.35, stop=["END"], reasoning_effort="low")


class Plain(BaseChatModel):
    """Answers from a list, and refuses keywords that it does not know, as the clients of many packages do."""

    replies: list[AIMessage]
    sent: list[dict[str, Any]] = []  # noqa: RUF012 - a field, which pydantic copies
    known: frozenset[str] = frozenset({"tools", "tool_choice"})

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **options: Any) -> Any:
        chosen = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **chosen, **options)

    async def _agenerate(self, messages: list[BaseMessage], stop: Any = None, *_: Any, **options: Any) -> ChatResult:
        for name in options:
            if name not in {*self.known, "run_manager"}:
                raise TypeError(f"AsyncClient.chat() got an unexpected keyword argument '{name}'")
        given = {name: value for name, value in options.items() if name not in {"tools", "run_manager"}}
        self.sent.append(given if stop is None else {**given, "stop": stop})
        return ChatResult(generations=[ChatGeneration(message=self.replies[len(self.sent) - 1])])

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    @property
    def _llm_type(self) -> str:
        return "plain"


class Ollama(Plain):
    temperature: float | None = None
    num_ctx: int | None = None
    known: frozenset[str] = frozenset({"tools", "options", "reasoning"})


def as_package(kind: type[Plain], package: str, name: str) -> type[Plain]:
    """The class as one of a package, with a subclass of another name."""
    parent = type(name, (kind,), {"__module__": f"{package}.chat_models"})
    return type(f"House{name}", (parent,), {"__module__": __name__})


async def run(model: BaseChatModel, config: LoopConfig) -> tuple[str, str, list[str]]:
    """Run one input; return its status and answer, and the warnings."""
    graph = create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver())
    talk = Session(graph, "s1")
    result = await talk.run("hi")
    warnings = [event["message"] for event in await talk.events() if event["type"] == "warning"]
    return str(result.status), result.answer, warnings


async def test_each_setting_reaches_ollama_where_its_class_takes_it() -> None:
    kind = as_package(Ollama, "langchain_ollama", "ChatOllama")
    fields: Any = {"num_ctx": 8192, "temperature": 0.9}
    model = kind(replies=[AIMessage("Hi.")], **fields)

    found = await run(model, SENT)

    options = {"num_ctx": 8192, "temperature": 0.25, "num_predict": 77, "top_p": 0.35, "stop": ["END"]}
    assert (found, model.sent) == (("COMPLETED", "Hi.", []), [{"options": options, "reasoning": "low"}])


async def test_a_setting_that_a_class_cannot_send_is_named_once_and_left_out() -> None:
    kind = as_package(Plain, "langchain_cohere", "ChatCohere")
    known = frozenset({"tools", "tool_choice", "temperature", "max_tokens", "p", "request_options"})
    calls = AIMessage("", tool_calls=[{"id": "1", "name": "echo", "args": {"text": "a"}}])
    model = kind(replies=[calls, AIMessage("Done.")], known=known)

    found = await run(model, SENT)

    sent = {"temperature": 0.25, "max_tokens": 77, "p": 0.35, "stop": ["END"], "request_options": {"max_retries": 0}}
    warning = "HouseChatCohere is asked without reasoning_effort: HouseChatCohere has no such option for this model."
    assert (found, model.sent) == (("COMPLETED", "Done.", [warning]), [sent, sent])


async def test_a_setting_that_a_model_is_known_to_refuse_is_named_and_left_out(openai_stub: StubFactory) -> None:
    stub = openai_stub("Hi.")
    async with stub.chat_model("gpt-5-mini", temperature=0) as model:
        found = await run(model, LoopConfig(temperature=0.25, max_output_tokens=77))

    warning = "gpt-5-mini is asked without temperature: ChatOpenAI has no such option for this model."
    assert (found, [body.get("temperature") for body in stub.bodies]) == (("COMPLETED", "Hi.", [warning]), [None])


@pytest.mark.parametrize("package", [None, "langchain_elsewhere"])
async def test_settings_that_an_unknown_class_refuses_are_left_out(package: str | None) -> None:
    kind = Plain if package is None else as_package(Plain, package, "ChatElsewhere")
    model = kind(replies=[AIMessage("Hi."), AIMessage("Again.")])
    talk = Session(create_graph_agent(model, tools=[echo], config=SENT, checkpointer=InMemorySaver()), "s1")

    answers = [(await talk.run(text)).answer for text in ("hi", "again")]

    warnings = [event["message"] for event in await talk.events() if event["type"] == "warning"]
    assert (answers, model.sent, warnings) == (
        ["Hi.", "Again."],
        [{"stop": ["END"]}] * 2,
        [
            "The model's endpoint refused a request and accepted it in another form; later requests have it at once. "
            "To set it, write into `model_rules`: left_out: ['max_tokens', 'reasoning_effort', 'temperature', 'top_p']."
        ],
    )


class ToolsOnly(Plain):
    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        if not all(isinstance(tool, BaseTool) for tool in tools):
            raise ValueError("Unsupported dict type. Tool must be passed in as a BaseTool instance.")
        return super().bind_tools(tools, **options)


async def test_an_agent_runs_on_a_class_that_binds_langchain_tools_only() -> None:
    calls = AIMessage("", tool_calls=[{"id": "1", "name": "echo", "args": {"text": "a"}}])
    model = ToolsOnly(replies=[calls, AIMessage("Done.")])

    assert await run(model, LoopConfig()) == ("COMPLETED", "Done.", [])


async def test_the_apis_take_an_output_limit_for_ollama(tmp_path: Path) -> None:
    kind = as_package(Ollama, "langchain_ollama", "ChatOllama")
    model = kind(replies=[AIMessage("Hi.")] * 2)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield create_graph_agent(model, tools=[echo])

    app = create_app(AgentSource("house", "", f"sqlite:///{tmp_path / 'sessions.db'}", opened))
    body = {"model": "house", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50, "temperature": 0.5}
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
    async with app.router.lifespan_context(app), client:
        answers = [await client.post(path, json=body) for path in ("/v1/messages", "/v1/chat/completions")]

    given = {"options": {"temperature": 0.5, "num_predict": 50}}
    assert ([answer.status_code for answer in answers], model.sent) == ([200, 200], [given, given])
