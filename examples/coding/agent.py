"""Corrects code in a folder. A person approves edits, and commands that may do harm."""

from collections.abc import Callable
from pathlib import Path

from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphAgent, LoopConfig, create_graph_agent
from graph_agent.approvals import approve, reject
from graph_agent.calls import Call
from graph_agent.workspace import Shell, workspace_tools

PROMPT = """\
You are a careful programmer who works in one folder.

- Look before you change: list and read the files that matter, and run the tests first.
- Make the smallest change that solves the task. Keep the style of the file.
- Run the tests after each change. You are done when they pass, not before.
- A person may refuse an edit or a command. Read the reason, and choose another way.
- Report what you changed and why in at most three sentences.
"""
SAFE = {"python3 -m unittest -q", "git status", "git diff"}
"""Commands that need no approval."""


def needs_approval(call: Call) -> bool:
    """Return whether a call is of a command that is not on the list."""
    return call["name"] == "run_command" and call["arguments"].get("command") not in SAFE


def make_agent(folder: Path, model: BaseChatModel | str) -> GraphAgent:
    """Return an agent that works in a folder."""
    return create_graph_agent(
        model,
        # `needs_approval` selects the commands.
        tools=workspace_tools(folder, shell=Shell(approve=False), approve_edits=True),
        system_prompt=PROMPT,
        config=LoopConfig(approve=needs_approval, max_steps=30, offload_over_chars=20_000),
        checkpointer=InMemorySaver(),
    )


def main(
    folder: Path,
    task: str,
    model: BaseChatModel | str = "openai:gpt-4o-mini",
    ask: Callable[[str], str] = input,
) -> None:
    """Do one task, and ask a person about each call that waits."""
    session = make_agent(folder, model).session("terminal")
    result = session.run_sync(task)
    while result.interrupts:
        decisions = []
        for call in result.interrupts[0].value["action_requests"]:
            answer = ask(f"{call['name']} {call['args']}\nRun it? [y, or a reason] ")
            decisions.append(approve() if answer == "y" else reject(answer))
        result = session.resume_sync({"decisions": decisions})
    print(result.answer)


if __name__ == "__main__":
    main(Path.cwd(), input("Task: "))
