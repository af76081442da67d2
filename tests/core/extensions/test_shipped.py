"""Every middleware that `langchain` ships, run unchanged in each mode of tool calling."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import middleware as shipped
from langchain.agents.middleware import (
    AgentMiddleware,
    ContextEditingMiddleware,
    FilesystemFileSearchMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    ProviderToolSearchMiddleware,
    ShellToolMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.middleware.context_editing import ClearToolUsesEdit
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graph_agent import LoopConfig, RunResult, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks, dialogue, echo
from tests.support.openai_stub import StubFactory, openai_stub

__all__ = ["openai_stub"]

MODES = ["native", "text", "wave"]
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "middleware.md"
Step = str | list[tuple[str, str, dict[str, Any]]]


def model_of(mode: str, *steps: Step) -> ScriptedChatModel:
    """A model that plans each list of calls in a mode, and answers with each text."""
    replies: list[str | AIMessage] = []
    for step in steps:
        if isinstance(step, str):
            replies.append(json.dumps({"status": "done", "tools": [], "answer": step}) if mode == "wave" else step)
        elif mode == "wave":
            tools = [{"id": id_, "tool": name, "args": args} for id_, name, args in step]
            replies.append(json.dumps({"status": "continue", "tools": tools}))
        else:
            replies.append(asks(*step))
    return ScriptedChatModel(replies)


def session_of(model: Any, mode: Any, *hooks: Any, tools: Sequence[Any] = (echo,)) -> Session:
    saver = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    config = LoopConfig(tool_calling=mode, model_retries=0)
    return Session(
        create_graph_agent(model, tools=list(tools), hooks=list(hooks), config=config, checkpointer=saver), "s1"
    )


def call(name: str, id_: str = "a", **arguments: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [(id_, name, arguments)]


def ended(result: RunResult) -> tuple[str, str]:
    return result.answer, result.status.value


async def messages_of(session: Session) -> list[tuple[str, str]]:
    return dialogue((await session.driver.state()).values["messages"])


async def edits(session: Session) -> list[tuple[str, str, Any]]:
    """The changes of middleware in the history."""
    events: list[dict[str, Any]] = [{**event} for event in await session.events() if event["type"] == "middleware"]
    return [(event["hook"], event.get("jump_to", ""), event.get("removed", 0)) for event in events]


async def human_in_the_loop(mode: str, folder: Path) -> Any:
    model = model_of(mode, [("a", "echo", {"text": "1"}), ("b", "echo", {"text": "2"})], "Done.")
    session = session_of(model, mode, HumanInTheLoopMiddleware({"echo": True}))
    asked = await session.run("go")
    reject = {"type": "reject", "message": "Not that."}
    done = await session.resume({"decisions": [{"type": "approve"}, reject]})
    names = [each["name"] for each in asked.interrupts[0].value["action_requests"]]
    return names, asked.status.value, done.results, done.answer, len(model.requests)


async def model_call_limit(mode: str, folder: Path) -> Any:
    model = model_of(mode, call("echo", text="x"), "never")
    session = session_of(model, mode, ModelCallLimitMiddleware(run_limit=1))
    result = await session.run("go")
    return *ended(result), result.results, await edits(session), len(model.requests)


async def tool_call_limit(mode: str, folder: Path) -> Any:
    model = model_of(mode, [("a", "echo", {"text": "1"}), ("b", "echo", {"text": "2"})], "Done.")
    result = await session_of(model, mode, ToolCallLimitMiddleware(run_limit=1)).run("go")
    return ended(result), result.results["a"], "limit exceeded" in result.results["b"]["error"]


async def todo_list(mode: str, folder: Path) -> Any:
    todos = [{"content": "work", "status": "in_progress"}]
    session = session_of(model_of(mode, call("write_todos", todos=todos), "Done."), mode, TodoListMiddleware())
    result = await session.run("go")
    return ended(result), result.state


async def summarization(mode: str, folder: Path) -> Any:
    summary = SummarizationMiddleware(
        ScriptedChatModel(["All about tea."]), trigger=("messages", 4), keep=("messages", 1)
    )
    session = session_of(model_of(mode, "One.", "Two.", "Three."), mode, summary)
    for text in ("first", "second", "third"):
        result = await session.run(text)
    kept = [text for _, text in await messages_of(session)]
    inputs = [event["content"] for event in await session.events() if event["type"] == "user_message"]
    return ended(result), ["All about tea." in kept[0], *kept[1:]], inputs, await edits(session)


async def pii(mode: str, folder: Path) -> Any:
    @tool
    def look_up() -> str:
        """Look an address up."""
        return "b@x.org"

    guard: Any = PIIMiddleware("email", apply_to_output=True, apply_to_tool_results=True)
    model = model_of(mode, call("look_up"), "Write to c@x.org.")
    session = session_of(model, mode, guard, tools=[look_up])
    result = await session.run("I am a@x.org.")
    sent = "".join(message.text for message in model.requests[-1].messages)
    return ended(result), [name in sent for name in ("a@x.org", "b@x.org")], (await messages_of(session))[0]


async def model_fallback(mode: str, folder: Path) -> Any:
    spare = model_of(mode, call("echo", text="x"), "Done.")
    result = await session_of(ScriptedChatModel([]), mode, ModelFallbackMiddleware(spare)).run("go")
    return ended(result), result.results


async def model_retry(mode: str, folder: Path) -> Any:
    retry: Any = ModelRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    result = await session_of(model_of(mode, call("echo", text="x"), "Done."), mode, retry).run("go")
    return ended(result), result.results


async def tool_retry(mode: str, folder: Path) -> Any:
    tried: list[int] = []

    @tool
    def flaky() -> str:
        """Fail once."""
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError("lost")
        return "back"

    retry = ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    result = await session_of(model_of(mode, call("flaky"), "Done."), mode, retry, tools=[flaky]).run("go")
    return ended(result), result.results


async def tool_error(mode: str, folder: Path) -> Any:
    @tool
    def broken() -> str:
        """Fail."""
        raise ValueError("no")

    guard: Any = ToolErrorMiddleware(lambda error, _: f"It said {error}.")
    result = await session_of(model_of(mode, call("broken"), "Done."), mode, guard, tools=[broken]).run("go")
    return ended(result), result.results


async def tool_selector(mode: str, folder: Path) -> Any:
    @tool
    def unwanted() -> str:
        """Do something else."""
        return ""

    chooser = ScriptedChatModel(['{"tools": ["echo"]}'] * 2)
    model = model_of(mode, call("echo", text="x"), "Done.")
    result = await session_of(model, mode, LLMToolSelectorMiddleware(model=chooser), tools=[echo, unwanted]).run("go")
    first = model.requests[0]
    offered = [each["function"]["name"] for each in first.tools] if mode == "native" else first.messages[0].text
    return ended(result), result.results, "unwanted" in offered


async def tool_emulator(mode: str, folder: Path) -> Any:
    emulator = LLMToolEmulator(model=ScriptedChatModel(["emulated"]))
    result = await session_of(model_of(mode, call("echo", text="x"), "Done."), mode, emulator).run("go")
    return ended(result), result.results


async def context_editing(mode: str, folder: Path) -> Any:
    edit = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0, placeholder="[gone]")])
    model = model_of(mode, call("echo", text="x" * 50), "Done.")
    result = await session_of(model, mode, edit).run("go")
    return ended(result), "[gone]" in "".join(message.text for message in model.requests[-1].messages)


async def shell_tool(mode: str, folder: Path) -> Any:
    steps: list[Step] = [call("shell", "a", command="x=7; cd /"), call("shell", "b", command="echo $x; pwd"), "Done."]
    session = session_of(model_of(mode, *steps), mode, ShellToolMiddleware(workspace_root=folder), tools=[])
    result = await session.run("go")
    return ended(result), result.results["b"], result.state


async def file_search(mode: str, folder: Path) -> Any:
    (folder / "a.txt").write_text("needle")
    search = FilesystemFileSearchMiddleware(root_path=str(folder), use_ripgrep=False)
    steps: list[Step] = [call("glob_search", "a", pattern="*.txt"), call("grep_search", "b", pattern="needle"), "Done."]
    result = await session_of(model_of(mode, *steps), mode, search, tools=[]).run("go")
    return ended(result), result.results


DONE = ("Done.", "COMPLETED")
LIMIT = "Model call limits exceeded: run limit (1/1)"
CASES: dict[type[Any], tuple[Callable[[str, Path], Any], Any]] = {
    HumanInTheLoopMiddleware: (
        human_in_the_loop,
        (
            ["echo", "echo"],
            "RUNNING",
            {"a": "1", "b": {"error": "User rejected the tool call for `echo` with reason: Not that."}},
            "Done.",
            2,
        ),
    ),
    ModelCallLimitMiddleware: (
        model_call_limit,
        (LIMIT, "COMPLETED", {"a": "x"}, [("before_model", "end", 0)], 1),
    ),
    ToolCallLimitMiddleware: (tool_call_limit, (DONE, "1", True)),
    TodoListMiddleware: (todo_list, (DONE, {"todos": [{"content": "work", "status": "in_progress"}]})),
    SummarizationMiddleware: (
        summarization,
        (
            ("Three.", "COMPLETED"),
            [True, "third", "Three."],
            ["first", "second", "third"],
            [("before_model", "", 4)],
        ),
    ),
    PIIMiddleware: (
        pii,
        (("Write to [REDACTED_EMAIL].", "COMPLETED"), [False, False], ("human", "I am [REDACTED_EMAIL].")),
    ),
    ModelFallbackMiddleware: (model_fallback, (DONE, {"a": "x"})),
    ModelRetryMiddleware: (model_retry, (DONE, {"a": "x"})),
    ToolRetryMiddleware: (tool_retry, (DONE, {"a": "back"})),
    ToolErrorMiddleware: (tool_error, (DONE, {"a": {"error": "It said no."}})),
    LLMToolSelectorMiddleware: (tool_selector, (DONE, {"a": "x"}, False)),
    LLMToolEmulator: (tool_emulator, (DONE, {"a": "emulated"})),
    ContextEditingMiddleware: (context_editing, (DONE, True)),
    ShellToolMiddleware: (shell_tool, (DONE, "7\n/\n", {})),
    FilesystemFileSearchMiddleware: (file_search, (DONE, {"a": "/a.txt", "b": "/a.txt"})),
    ProviderToolSearchMiddleware: (pii, None),
}


# langchain's shell session leaves its pipes to the garbage collector when it stops.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [kind for kind in CASES if kind is not ProviderToolSearchMiddleware])
async def test_a_shipped_middleware_runs_unchanged(kind: type[Any], mode: str, tmp_path: Path) -> None:
    scenario, expected = CASES[kind]

    observed = await scenario(mode, tmp_path)

    assert observed == expected


def test_every_shipped_middleware_has_a_scenario_and_a_row_in_the_documentation() -> None:
    kinds = [getattr(shipped, name) for name in shipped.__all__]
    rows = re.findall(r"^\| `(\w+)` \| (runs|runs with a note|refused) \|", PAGE.read_text(), re.MULTILINE)

    found = {each for each in kinds if inspect.isclass(each) and issubclass(each, AgentMiddleware)} - {AgentMiddleware}

    # New in langchain 1.5; the page names them as not tried.
    untried = {"AutoModeMiddleware", "ModelRefusalMiddleware", "ModelRouterMiddleware"}
    found = {each for each in found if each.__name__ not in untried}
    refused = {"ProviderToolSearchMiddleware"}
    assert (
        found,
        {name for name, _ in rows},
        {name for name, state in rows if state == "refused"},
        f"langchain {version('langchain').rpartition('.')[0]}" in PAGE.read_text(),
    ) == ({*CASES}, {each.__name__ for each in CASES}, refused, True)


async def test_tools_that_a_provider_runs_are_refused(openai_stub: StubFactory) -> None:
    search: Any = ProviderToolSearchMiddleware(searchable_tools=["echo"])
    stub = openai_stub("Done.")
    async with stub.chat_model() as model:
        result = await session_of(model, "native", search).run("go")

    assert (result.status, stub.bodies) == ("FAILED", [])
