"""The shipped web search hook, and hooks named in an agent file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.hooks.web_search import WebSearchInterception
from graph_agent.spec import load_spec, open_agent
from tests.support.agents import asks, dialogue, echo, says
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

SEARCH = Reply(tool_calls=(("web_search", {"query": "tides"}),))


def find(query: str) -> str:
    return f"All about {query}."


async def find_async(query: str) -> dict[str, str]:
    return {"found": query}


def find_later(query: str) -> Any:
    return find_async(query)


def fail(query: str) -> str:
    raise ConnectionError("no network")


def shown(body: dict[str, Any]) -> list[Any]:
    """A request's messages behind the system prompt: their text, or the names of their calls."""
    return [
        message["content"] or [call["function"]["name"] for call in message["tool_calls"]]
        for message in body["messages"]
        if message["role"] != "system"
    ]


@pytest.mark.parametrize(
    ("search", "found"),
    [
        (find, "All about tides."),
        (find_async, '{"found": "tides"}'),
        (find_later, '{"found": "tides"}'),
        (lambda query: "", "Nothing was found."),
        (fail, "The search failed: ConnectionError: no network"),
    ],
    ids=["blocking", "coroutine", "gives a coroutine", "nothing", "failing"],
)
async def test_a_search_call_is_answered_by_the_hook(openai_stub: StubFactory, search: Any, found: str) -> None:
    stub = openai_stub(SEARCH, "No more actions.", "It turns at six.")
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, hooks=[WebSearchInterception(search)])

        state = await graph.ainvoke(says("go"))

    *searched, answered = [shown(body) for body in stub.bodies]
    assert (
        [tool["function"]["name"] for tool in stub.bodies[0]["tools"]],
        searched,
        answered[:3],
        dialogue(state["messages"]),
    ) == (
        ["web_search"],
        [["go"], ["go", ["web_search"], found]],
        ["go", ["web_search"], found],
        [("human", "go"), ("ai", "It turns at six.")],
    )


async def test_other_calls_with_a_search_are_requested_again(openai_stub: StubFactory) -> None:
    both = Reply(tool_calls=(("echo", {"text": "early"}), ("web_search", {"query": "tides"})))
    stub = openai_stub(both, Reply(tool_calls=(("echo", {"text": "late"}),)), "No more actions.", "Done.")
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], hooks=[WebSearchInterception(find)])

        await graph.ainvoke(says("go"))

    assert [shown(body)[:5] for body in stub.bodies][1:3] == [
        ["go", ["web_search"], "All about tides."],
        ["go", ["web_search"], "All about tides.", ["echo"], "late"],
    ]


async def test_a_tool_of_the_agent_is_taken_over() -> None:
    @tool
    def web_search(query: str) -> str:
        """Search."""
        raise AssertionError("never run")

    script = [asks(("c1", "web_search", {"query": "tides"})), "No more actions.", "Done."]
    graph = create_graph_agent(ScriptedChatModel(script), tools=[web_search], hooks=[WebSearchInterception(find)])

    assert (await graph.ainvoke(says("go")))["messages"][-1].text == "Done."


@pytest.mark.parametrize(
    ("tool_calling", "call"),
    [
        ("text", asks(("c1", "web_search", {"query": "tides"}))),
        ("wave", '{"status": "continue", "tools": [{"id": "t1", "tool": "web_search", "args": {"query": "tides"}}]}'),
    ],
)
async def test_a_search_in_other_modes(openai_stub: StubFactory, tool_calling: Any, call: str) -> None:
    stub = openai_stub(call, '{"status": "done"}' if tool_calling == "wave" else "No more actions.", "Six.")
    async with stub.chat_model() as model:
        config = LoopConfig(tool_calling=tool_calling)
        graph = create_graph_agent(model, hooks=[WebSearchInterception(find)], config=config)

        state = await graph.ainvoke(says("go"))

    included = ["All about tides." in json.dumps(body["messages"]) for body in stub.bodies]
    listed = ["web_search" in body["messages"][0]["content"] for body in stub.bodies]
    assert (state["messages"][-1].text, included, listed) == ("Six.", [False, True, True], [True, True, True])


async def test_a_search_without_a_query_is_an_error_for_the_model(openai_stub: StubFactory) -> None:
    stub = openai_stub(Reply(tool_calls=(("web_search", {"q": "tides"}),)), "No more actions.", "Done.")
    async with stub.chat_model() as model:
        await create_graph_agent(model, hooks=[WebSearchInterception(find)]).ainvoke(says("go"))

    assert shown(stub.bodies[1])[2] == "web_search takes the query as text: {'query': '…'}, not {'q': 'tides'}."


async def test_a_repeated_search_is_passed_through() -> None:
    search = [asks((f"c{i}", "web_search", {"query": "tides"})) for i in range(2)]
    graph = create_graph_agent(
        ScriptedChatModel([*search, "No more actions.", "Done."]),
        hooks=[WebSearchInterception(find)],
        checkpointer=InMemorySaver(),
    )
    session = Session(graph, "s1")

    result = await session.run("go")

    results = [event["content"] for event in await session.events() if event["type"] == "tool_result"]
    assert (result.answer, results) == (
        "Done.",
        ["web_search did not run: no hook executed it."],
    )


MODULE = """
from graph_agent import LoopHook, LoopPlan, ScriptedChatModel

def make():
    return ScriptedChatModel(['{"tool_calls": [{"id": "c1", "name": "web_search", "arguments": {"query": "x"}}]}',
                              "No more actions.", "Done."])

def search(query):
    return "found"

class Says(LoopHook):
    def __init__(self, text="by default"):
        self.text = text
    def should_run(self, response, request):
        return True, None
    def build_plan(self, context, response, request):
        return LoopPlan(response_override=self.text)

ready = Says("ready made")

def calling(make: "TypeOnly | Callable[[], str] | None" = None, items: "list[Callable[[], str]]" = (), *, label: "str"):
    return Says(f"{make()} {[each() for each in items]} {label}")

def now() -> str:
    return "now"

def failing(**_):
    raise ValueError("No index. Build one.")
"""


@pytest.mark.parametrize(
    ("hooks", "answer"),
    [
        ('["my_hooks.Says"]', "by default"),
        ('["my_hooks:Says"]', "by default"),
        ("[{use: my_hooks.Says, with: {text: by its arguments}}]", "by its arguments"),
        ('["my_hooks.ready"]', "ready made"),
        (
            "[{use: graph_agent.hooks.web_search.WebSearchInterception, with: {search: {use: my_hooks.search}}}]",
            "Done.",
        ),
        ("[{use: web_search, with: {search: 'my_hooks:search'}}, history_compression]", "Done."),
        (
            "[{use: my_hooks.calling, with: {make: my_hooks.now, items: ['my_hooks:now'], label: my_hooks.now}}]",
            "now ['now'] my_hooks.now",
        ),
        (
            "[{use: langchain.agents.middleware.ToolRetryMiddleware, with: {max_retries: 1}}, my_hooks.ready]",
            "ready made",
        ),
    ],
    ids=["class", "colon", "arguments", "object", "shipped", "short name", "functions", "middleware"],
)
async def test_hooks_of_an_agent_file(tmp_path: Path, hooks: str, answer: str) -> None:
    (tmp_path / "my_hooks.py").write_text(MODULE)
    file = tmp_path / "agent.yaml"
    file.write_text(f"name: a\nmodel: 'my_hooks:make'\nhooks: {hooks}\n")

    async with open_agent(load_spec(file), db="") as graph:
        state = await graph.ainvoke(says("go"))

    assert state["messages"][-1].text == answer


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (
            '["web_serch"]',
            "'web_serch' is no dotted name and no hook of this package; known: history_compression, web_search. "
            "Did you mean 'web_search'? Write 'module.Class', e.g. 'my_module.MyHook'.",
        ),
        (
            "[{use: my_hooks.failing, with: {a: 1}}]",
            "hooks.0: 'my_hooks.failing': calling it with a failed: ValueError: No index. Build one.",
        ),
        (
            "[{use: web_search, with: {search: search}}]",
            "hooks.0: 'search' is no dotted name; write 'module:attribute'",
        ),
        ('["my_hooks.Say"]', "'my_hooks' has no 'Say'; did you mean 'Says'? Known: "),
        ("[{use: my_hooks.Says, with: {txt: x}}]", "hooks.0: 'my_hooks.Says': calling it with txt failed: TypeError: "),
        ("[{use: my_hooks.ready, with: {text: x}}]", "hooks.0: 'my_hooks.ready' is no class, so it takes no 'with'."),
        ("[{name: my_hooks.Says}]", "unknown field 'hooks.0.name'"),
        (
            "[{use: my_hooks.Says, with: {text: {use: nowhere.x}}}]",
            "hooks.0: 'nowhere.x': there is no module 'nowhere'",
        ),
        ("[{use: my_hooks.Says, with: {text: {use: x}}}]", "hooks.0: 'x' is no dotted name"),
    ],
    ids=[
        "no module",
        "period",
        "no function",
        "attribute",
        "argument",
        "object",
        "key",
        "argument's module",
        "argument's name",
    ],
)
async def test_hooks_that_cannot_be_made(tmp_path: Path, hooks: str, message: str) -> None:
    (tmp_path / "my_hooks.py").write_text(MODULE)
    file = tmp_path / "agent.yaml"
    file.write_text(f"name: a\nmodel: 'my_hooks:make'\nhooks: {hooks}\n")

    with pytest.raises(ConfigError) as caught:
        async with open_agent(load_spec(file), db=""):
            pass

    assert message in str(caught.value)
    assert ".." not in str(caught.value)
