"""Errors in an agent file: one line that names the file, the field, the value and the fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import AgentContext, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError, InputError
from graph_agent.spec import load_spec, open_agent
from tests.support.agents import echo

MODULE = """
from graph_agent import ScriptedChatModel

NUMBER = 5

def search(text: str) -> str:
    'Search.'
    return text

def make():
    return ScriptedChatModel(["Hello."], cycle=True)

def make_with(argument):
    return None

def fail():
    raise RuntimeError("no licence")

class Hook:
    def should_run(self, *_):
        return False, None

    def build_plan(self, *_):
        return None

class Empty:
    pass

class kept:
    class inner:
        hook = Hook()
"""
HEAD = "name: a\nmodel: parts:make\n"
"""The beginning of a file whose model can be made."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "DEBUG_MOCK_RESPONSES", "NOT_SET"):
        monkeypatch.delenv(name, raising=False)


def written(folder: Path, content: str) -> Path:
    (folder / "parts.py").write_text(MODULE)
    (folder / "broken.py").write_text("import no_such_package\n")
    (folder / "exits.py").write_text("raise SystemExit(3)\n")
    (folder / "agent.yaml").write_text(content)
    return folder / "agent.yaml"


DOUBLING = "".join(f"v{number}: &v{number} [*v{number - 1}, *v{number - 1}]\n" for number in range(1, 40))
TOO_LARGE = "it has more than 100,000 values, those that aliases repeat included"
TOO_DEEP = "it is nested more than 100 levels deep"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (f"v0: &v0 x\n{DOUBLING}", TOO_LARGE),
        ("v0: &v0 {k: 1}\n" + DOUBLING.replace("[", "{<<: [").replace("]", "]}"), TOO_LARGE),
        (f"name: {'[' * 100_000}", TOO_DEEP),
        (f"name: {'{a: ' * 5_000}", TOO_DEEP),
        ("".join(f"{' ' * level}a:\n" for level in range(1_000)), TOO_DEEP),
        ("name: &n [*n]\n", "the alias '*n' is inside the value that it repeats"),
        ("config: {max_steps: 2026-99-99}\n", "month must be in 1..12"),
        (f"config: {{max_steps: {'9' * 5_000}}}\n", "Exceeds the limit (4300 digits)"),
    ],
    ids=["aliases", "merges", "lists", "mappings", "blocks", "itself", "date", "digits"],
)
def test_yaml_that_cannot_be_read_is_an_error_of_one_line(tmp_path: Path, content: str, fault: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(content)

    with pytest.raises(ConfigError) as caught:
        load_spec(file)

    assert (fault in str(caught.value), "\n" in str(caught.value)) == (True, False)


@pytest.mark.parametrize(
    "content",
    [
        HEAD + "tools: ['parts:search']\nhooks: ['parts:Hook', 'parts.Hook', {use: 'parts:kept.inner.hook'}]",
        HEAD + "tools: ['parts.search']",
        "name: a\nmodel: parts.make\ndelegates: [{name: b, graph: parts.compiled}, {name: c, graph: 'parts:compiled'}]",
        HEAD + "response_format: parts.Shape",
    ],
    ids=["colons", "dots", "model and delegates", "response format"],
)
async def test_a_dotted_name_has_a_colon_or_a_dot_everywhere(tmp_path: Path, content: str) -> None:
    file = written(tmp_path, content)
    (tmp_path / "parts.py").write_text(
        MODULE + "from graph_agent import create_graph_agent\ncompiled = create_graph_agent(make())\n"
        "from pydantic import BaseModel\nclass Shape(BaseModel):\n    word: str\n"
    )

    async with open_agent(load_spec(file), db="") as graph:
        assert graph.get_name() == "a"


async def test_a_wrong_attribute_is_answered_with_the_names_that_a_file_can_use(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + "tools: ['noisy:x']")
    noise = "from __future__ import annotations\nimport json\nfrom graph_agent import approvals\n_hidden = 1\n"
    (tmp_path / "noisy.py").write_text(noise + "def search(text: str) -> str:\n    'Search.'\n    return text\n")

    with pytest.raises(ConfigError, match=r"'noisy' has no 'x'; known: search\.$"):
        async with open_agent(load_spec(file), db=""):
            pass


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            HEAD + "tools: ['parts:serch']",
            ": tools.0: 'parts:serch': 'parts' has no 'serch'; did you mean 'search'? Known: Empty, Hook, NUMBER, …",
        ),
        (HEAD + "tools: ['part.search']", ": tools.0: 'part.search': there is no module 'part'; looked in …"),
        (HEAD + "tools: [search]", ": tools.0: 'search' is no dotted name; write 'module:attribute' or …"),
        (
            HEAD + "tools: ['parts:NUMBER']",
            ": tools.0: 'parts:NUMBER'=5 is no tool; give a LangChain tool, or a function.",
        ),
        (
            HEAD + "tools: ['broken:x']",
            ": tools.0: 'broken:x': importing 'broken' failed: No module named 'no_such_package'.",
        ),
        (HEAD + "tools: ['exits:x']", ": tools.0: 'exits:x': importing 'exits' failed: SystemExit: 3."),
        (
            HEAD + "tools: [parts: search]",
            ": tools.0={'parts': 'search'}: Input should be a valid string. YAML reads a colon before a space as a "
            "mapping; write 'parts:search'.",
        ),
        (
            HEAD + "tools: [python: 'parts:search']",
            ": tools.0={'python': 'parts:search'}: Input should be a valid string. Write the name alone: 'parts:search'"
            ".",
        ),
        (
            HEAD + "tools: parts:search",
            ": tools='parts:search': Input should be a valid list. Write it as a list: ['parts:search'].",
        ),
        (HEAD + "tools:", ": tools=None: Input should be a valid list. Leave it out, or give it a value."),
        (HEAD + "config: {max_stepz: 1}", ": config: unknown field 'max_stepz'; did you mean 'max_steps'? Known: …"),
        (
            HEAD + "config: {max_cost: 1, prices: {x: {input: 1, output: 1, cache: 1}}}",
            ": config: unknown field 'prices.x.cache'; known: cached_input, input, output.",
        ),
        (
            "name: a\nmodel: []",
            ": model=[]: name a model as 'provider:name' or 'module:factory', or give a list of these.",
        ),
        ("name: a\nmodel: {x: 1}", ": model={'x': 1}: name a model as 'provider:name' or 'module:factory', or give …"),
        (
            "name: a\nmodel: opnai:gpt-4o",
            ": model='opnai:gpt-4o': Unknown model provider 'opnai' in 'opnai:gpt-4o'; known: …",
        ),
        (
            "name: a\nmodel: parts:fail",
            ": model='parts:fail': 'parts:fail': calling it without arguments failed: RuntimeError: no licence.",
        ),
        (
            "name: a\nmodel: parts:make_with",
            ": model='parts:make_with': 'parts:make_with': calling it without arguments failed: TypeError: …",
        ),
        (
            "name: a\nmodel: parts:NUMBER",
            ": model='parts:NUMBER': 'parts:NUMBER' is 5; name a chat model, or a function …",
        ),
        (
            HEAD + "delegates: [{agent: other.yaml}]",
            ": delegates.0: Agent file …",
        ),
        (
            HEAD + "delegates: [{agent: agent.yaml}]",
            ": delegates.0: agent='agent.yaml': agent files delegate to each other (agent.yaml → agent.yaml); …",
        ),
        (
            HEAD + "delegates: [{agent: other.yaml, graph: 'parts:make'}]",
            ": delegates.0={'agent': 'other.yaml', 'graph': 'parts:make'}: delegate '': give its 'agent' (an agent …",
        ),
        (
            HEAD + "delegates: [{graph: 'parts:make'}]",
            ": delegates.0={'graph': 'parts:make'}: a delegate has a 'name'; only that …",
        ),
        (
            HEAD + "delegates: [other]",
            ": delegates.0='other': a delegate is a mapping: {agent: other.yaml} for another agent file, …",
        ),
        (
            HEAD + "middleware: [TodoMiddleware]",
            ": middleware.0: 'langchain.agents.middleware.TodoMiddleware': 'langchain.agents.middleware' has no "
            "'TodoMiddleware'; did you mean 'TodoListMiddleware'? Known: …",
        ),
        (
            HEAD + "middleware: [{use: ModelRetryMiddleware, with: {retries: 2}}]",
            ": middleware.0: 'langchain.agents.middleware.ModelRetryMiddleware': calling it with retries failed: …",
        ),
        (
            HEAD + "delegates: [{name: b, grahp: 'parts:make'}]",
            ": unknown field 'delegates.0.grahp'; did you mean 'graph'? Known: agent, …",
        ),
        (
            HEAD + "delegates: [{name: b, graph: 'parts:fail'}]",
            ": delegates.0: 'parts:fail': calling it without arguments failed: RuntimeError: no licence.",
        ),
        (
            HEAD + "delegates: [{name: b, url: '${NOT_SET}'}]",
            ": delegates.0: delegate 'b': the environment variable NOT_SET in '${NOT_SET}' is not set",
        ),
        (
            HEAD + "delegates: [{name: b, url: 'http://127.0.0.1:9', auth: {bearer: X}}]",
            ": delegates.0: delegate 'b': auth: unknown field 'bearer'; known: api_key_env, bearer_env, header. Did "
            "you mean 'bearer_env'?",
        ),
        (HEAD + "hooks: ['parts:Empty']", ": hooks.0: 'parts:Empty': hooks: <…"),
        (HEAD + "hooks: [{uses: parts.Hook}]", ": the field 'hooks.0.use' is missing.\n…"),
        (
            HEAD + "mcp_servers: {calendar: {transport: stdio, command: python, cwd: 5}}",
            ": mcp_servers: MCP server 'calendar': 'cwd' must be a path; got 5.",
        ),
        (
            HEAD + "mcp_servers: {calendar: {transport: stdio, command: python, args: 5}}",
            ": mcp_servers: MCP server 'calendar': 'args' must be a list of texts, such as ['server.py']; got 5.",
        ),
        (HEAD + "system_prompt: no.yaml", ": system_prompt: Prompt file …"),
        (HEAD + "prompts: {planner: no.yaml}", ": prompts.planner: Prompt file …"),
        (HEAD + "response_format: 'parts:NUMBER'", ": response_format takes a pydantic class, …"),
        (HEAD + "db: ''", ": db='': String should have at least 1 character. Leave it out, or give it a value."),
        (
            "name: [a\nmodel: x",
            ", line 2, column 6: not valid YAML: expected ',' or ']', but got ':' (while parsing a …",
        ),
        (
            "name: a\n\tmodel: x",
            ", line 2, column 1: not valid YAML: found character '\\t' that cannot start any token …",
        ),
        ("name: a\nname: b", ", line 2, column 1: not valid YAML: the key 'name' is given twice."),
        ("name: a\n---\nname: b", ", line 2, column 1: not valid YAML: but found another document …"),
        ("name: !!python/object/apply:os.system ['ls']", ", line 1, column 7: not valid YAML: could not determine a …"),
    ],
    ids=str,
)
async def test_a_fault_is_one_line_with_its_place(tmp_path: Path, content: str, fault: str) -> None:
    file = written(tmp_path, content)

    with pytest.raises(ConfigError) as caught:
        async with open_agent(load_spec(file), db=""):
            pass

    text, expected = str(caught.value), f"Agent file {file}{fault}"
    begun = expected.removesuffix("…")
    assert (text[: len(begun)], len(text) == len(begun) or expected.endswith("…")) == (begun, True)


async def test_a_program_of_an_mcp_server_that_is_missing_is_named_with_its_field(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + "mcp_servers: {calendar: {transport: stdio, command: no-such-program}}")

    async with open_agent(load_spec(file), db="memory:") as graph:
        session = Session(graph, "s1")
        await session.run("hello")
        warnings = [event["message"] for event in await session.events() if event["type"] == "warning"]

    assert warnings == [
        "The MCP server 'calendar' is down, its tools are missing: MCP server 'calendar' cannot be reached: "
        "command='no-such-program': there is no such program; install it, or use its full path."
    ]


def session() -> Session:
    return Session(create_graph_agent(ScriptedChatModel(["Hello."]), checkpointer=InMemorySaver()), "s1")


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"max_stepz": 1}, "context (AgentContext): unknown field 'max_stepz'; did you mean 'max_steps'? Known: "),
        ({"max_steps": "x"}, "context (AgentContext): max_steps='x': Input should be a valid integer, "),
        ({"credentials": "sk-123"}, "context (AgentContext): credentials: Input should be a valid dictionary."),
        ({"credentials": {"key": 5}}, "context (AgentContext): credentials.key: Input should be a valid string."),
        (LoopConfig(), "context: got a LoopConfig; pass an AgentContext, or a mapping of its fields."),
    ],
    ids=["typo", "type", "credentials", "credential", "another class"],
)
async def test_a_context_that_does_not_fit_is_refused_by_field(context: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await session().run("hello", context=context)

    assert str(caught.value).startswith(message)


def test_a_context_built_by_hand_suggests_the_nearest_field() -> None:
    with pytest.raises(ConfigError, match=r"unknown field 'max_stepz'; did you mean 'max_steps'\? Known: "):
        AgentContext(max_stepz=1)  # type: ignore[call-arg]  # the error is under test


@pytest.mark.parametrize("given", [[5], [{"rol": "user"}], [object()]], ids=["number", "mapping", "object"])
async def test_invalid_messages_are_refused_with_the_given_value(given: list[object]) -> None:
    with pytest.raises(InputError, match=r"A run takes messages, such as HumanMessage\('hello'\); got \["):
        await session().run(given)  # type: ignore[arg-type]  # the broken hint is under test


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (lambda: None, "system_prompt: the function <lambda> returned None; return text or a SystemMessage."),
        (lambda: 1 / 0, "system_prompt: the function <lambda> failed: ZeroDivisionError: division by zero"),
        (lambda: sys.exit(2), "system_prompt: the function <lambda> failed: SystemExit: 2"),
    ],
    ids=["no text", "failing", "exiting"],
)
async def test_a_prompt_function_that_gives_no_text_is_named(prompt: Any, message: str) -> None:
    graph = create_graph_agent(
        ScriptedChatModel(["Hello."]),
        tools=[echo],
        system_prompt=prompt,
        checkpointer=InMemorySaver(),
    )

    with pytest.raises(ConfigError) as caught:
        await Session(graph, "s1").run("hello")

    assert str(caught.value) == message
