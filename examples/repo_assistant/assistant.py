"""The agent of `agent.yaml`, written in Python. `python assistant.py [REQUEST]` asks it once."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from graph_agent import GraphDelegate, LoopConfig, RunResult, create_graph_agent
from graph_agent.approvals import Decision, approve, reject
from graph_agent.mcp import open_mcp_tools
from graph_agent.persistence import open_saver

sys.path.insert(0, str(Path(__file__).parent))
from offline_model import make_assistant, make_reviewer
from repo_tools import Report, count_lines, search

FOLDER = Path(__file__).parent
PROMPT = """You work on the repository that your tools read. Look before you answer. Have the reviewer check the new
text of a file before you write it. Change nothing that was not asked for."""
REVIEW = 'You review one change of a file. Name each fault of the new text in one line, or answer "No objections."'
CONFIG = LoopConfig(approve=("write_*",), max_steps=12, max_tokens_total=60_000, deadline_s=300, summarize_at=0.7)


def ask(name: str, arguments: object) -> Decision:
    """Ask on the terminal whether a call may run."""
    answer = input(f"Run {name}({arguments})? [y/n] ")
    return approve() if answer.lower().startswith("y") else reject("The user does not want this.")


async def answer(request: str) -> RunResult:
    """Answer one request, and ask about each call that waits for approval."""
    online = bool(os.environ.get("OPENAI_API_KEY"))
    model, reviewing = ("openai:gpt-4o-mini",) * 2 if online else (make_assistant(), make_reviewer())
    reviewer = create_graph_agent(reviewing, system_prompt=REVIEW, name="reviewer")
    files = {
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(FOLDER / "files_server.py")],
        "env": {name: value for name in ("REPO",) if (value := os.environ.get(name))},
    }
    async with open_mcp_tools({"files": files}) as file_tools, open_saver("sqlite:///repo_assistant.db") as saver:
        agent = create_graph_agent(
            model,
            tools=[search, count_lines, *file_tools],
            delegates=[GraphDelegate("reviewer", "Reviews the new text of a file.", reviewer)],
            system_prompt=PROMPT,
            response_format=Report,
            config=CONFIG,
            checkpointer=saver,
            name="repo_assistant",
        )
        session = agent.session("terminal")
        result = await session.run(request)
        while result.interrupts:
            waiting = result.interrupts[0].value["action_requests"]
            decisions = [await asyncio.to_thread(ask, each["name"], each["args"]) for each in waiting]
            result = await session.resume({"decisions": decisions})
    return result


if __name__ == "__main__":
    result = asyncio.run(answer(" ".join(sys.argv[1:]) or "Correct the spelling mistake in the sample."))
    print(result.structured_response)
