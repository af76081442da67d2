"""Corrects code in a folder. A person approves edits, and commands that may do harm."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool, ToolException
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.approvals import approve, reject
from graph_agent.calls import Call
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.marks import marked

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


def make_agent(folder: Path, model: BaseChatModel | str) -> CompiledAgentGraph[Any, Any]:
    """Return an agent that works in a folder."""

    def inside(path: str) -> Path:
        found = (folder / path).resolve()
        if not found.is_relative_to(folder.resolve()):
            raise ToolException(f"{path} is outside of the folder.")
        return found

    def list_files() -> list[str]:
        """List the files of the folder."""
        return sorted(str(each.relative_to(folder)) for each in folder.rglob("*.*"))

    def read_file(path: str) -> str:
        """Return the text of a file."""
        return inside(path).read_text(encoding="utf-8")

    def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text in a file. The old text must occur exactly once."""
        text = inside(path).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ToolException(f"The old text occurs {text.count(old)} times in {path}, not once.")
        inside(path).write_text(text.replace(old, new), encoding="utf-8")
        return f"Edited {path}."

    def run(command: str) -> str:
        """Run a shell command in the folder. Returns its exit status and its output."""
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return f"exit status {done.returncode}\n{done.stdout}"

    def needs_approval(call: Call) -> bool:
        if call["name"] == "run":
            return call["arguments"].get("command") not in SAFE
        return call["name"] == "edit_file"

    tools: list[BaseTool | Callable[..., Any]] = [
        marked(list_files, effect="read", kind="listing"),
        marked(read_file, effect="read", kind="file_read"),
        edit_file,
        marked(run, kind="shell", timeout_s=120),
    ]
    return create_graph_agent(
        model,
        tools=tools,
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
    session = Session(make_agent(folder, model), "terminal")
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
