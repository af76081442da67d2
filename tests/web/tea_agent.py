"""An agent with a memory, whose provider searches the web: its answers cite sources."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage

from graph_agent import ScriptedChatModel

SOURCES: list[dict[str, Any]] = [
    {"url": "https://tea.example/assam", "title": "Teas of <b>Assam</b>", "cited_text": "Assam grows black tea."},
    {"url": "https://tea.example/assam", "title": "The same page again"},
    {"url": "javascript:document.title='owned'", "title": "A trap"},
    {"title": "notes.pdf"},
]
TEA: dict[str, Any] = {
    "name": "tea",
    "description": "Knows teas, and what you like.",
    "model": "tests.web.tea_agent:make",
    "tools": [{"type": "web_search"}],
    "memory": True,
}
KEYS = {name: f"{name}-0123456789abcdef" for name in ("alice", "bob")}


def make() -> ScriptedChatModel:
    """Return a model that keeps a fact, then cites sources, again and again."""
    kept = [{"id": "m1", "name": "manage_memory", "args": {"content": "Drinks no coffee."}}]
    cited: list[str | dict[str, Any]] = [
        {"type": "server_tool_call", "id": "s1", "name": "web_search", "args": {"query": "assam"}},
        {"type": "server_tool_result", "tool_call_id": "s1", "status": "success", "output": "Tea"},
        {
            "type": "text",
            "text": "Assam grows black tea.",
            "annotations": [{"type": "citation", **source} for source in SOURCES],
        },
    ]
    return ScriptedChatModel([AIMessage("", tool_calls=kept), "I keep that in mind.", AIMessage(cited)], cycle=True)
