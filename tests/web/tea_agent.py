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


PLEASANT: list[dict[str, Any]] = [
    {
        "url": "https://www.britannica.com/topic/tea-beverage",
        "title": "Tea: definition, types and history",
        "cited_text": "Assam is the largest tea-growing region by production, and grows black tea.",
    },
    {"url": "https://en.wikipedia.org/wiki/Assam_tea", "title": "Assam tea"},
]


def make() -> ScriptedChatModel:
    """Return a model that keeps a fact, then cites sources, again and again."""
    return _model(["Drinks no coffee."], "Assam grows black tea.", SOURCES)


def make_for_pictures() -> ScriptedChatModel:
    """Return the same with more facts, and with sources that a reader may know."""
    answer = (
        "Assam grows **black tea**: malty, and strong enough for milk. As you drink no coffee, try a *second flush*."
    )
    return _model(["Drinks no coffee.", "Lives in Bergen.", "Likes tea with milk."], answer, PLEASANT)


def _model(facts: list[str], answer: str, sources: list[dict[str, Any]]) -> ScriptedChatModel:
    """Return a model that keeps facts, then answers from a search, again and again."""
    kept = [{"id": f"m{n}", "name": "manage_memory", "args": {"content": fact}} for n, fact in enumerate(facts)]
    cited: list[str | dict[str, Any]] = [
        {"type": "server_tool_call", "id": "s1", "name": "web_search", "args": {"query": "assam"}},
        {"type": "server_tool_result", "tool_call_id": "s1", "status": "success", "output": "Tea"},
        {
            "type": "text",
            "text": answer,
            "annotations": [{"type": "citation", **source} for source in sources],
        },
    ]
    return ScriptedChatModel([AIMessage("", tool_calls=kept), "I keep that in mind.", AIMessage(cited)], cycle=True)
