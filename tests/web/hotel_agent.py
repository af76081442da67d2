"""An agent whose model writes slowly, and whose calls begin before it has written the plan."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.outputs import ChatGenerationChunk

from graph_agent import ScriptedChatModel
from graph_agent.marks import marked

HOTELS: dict[str, Any] = {
    "name": "hotels",
    "description": "Finds hotels.",
    "model": "tests.web.hotel_agent:make",
    "tools": [f"tests.web.hotel_agent:{name}" for name in ("search_hotels", "weather", "details", "hold_room")],
    "config": {"tool_calling": "wave", "dispatch": "streamed"},
}
PACE_S = 0.06
"""Seconds between two pieces of a reply."""


async def _search_hotels(city: str) -> dict[str, Any]:
    """Search hotels in a city."""
    await asyncio.sleep(0.9)
    return {"hotels": [{"id": "B-1", "name": "Fjordblick"}, {"id": "B-2", "name": "Bryggen"}]}


async def _weather(city: str) -> str:
    """Return the weather in a city."""
    await asyncio.sleep(1.6)
    return f"It rains in {city}."


async def _details(hotel: str) -> dict[str, Any]:
    """Return the details of a hotel."""
    await asyncio.sleep(1.2)
    return {"hotel": hotel, "breakfast": True, "price": 189}


async def hold_room(hotel: str) -> str:
    """Hold a room for an hour."""
    await asyncio.sleep(0.3)
    return f"Held a room in {hotel}."


search_hotels = marked(_search_hotels, effect="read").model_copy(update={"name": "search_hotels"})
weather = marked(_weather, effect="read").model_copy(update={"name": "weather"})
details = marked(_details, effect="read").model_copy(update={"name": "details"})


class SlowWriter(ScriptedChatModel):
    """Waits before each piece of a reply."""

    async def _astream(self, *given: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        async for chunk in super()._astream(*given, **kwargs):
            await asyncio.sleep(PACE_S)
            yield chunk


def make() -> ScriptedChatModel:
    """Return a model that looks around, holds a room, and answers, again and again."""

    def plan(*calls: dict[str, Any], **fields: str) -> str:
        return json.dumps({"status": "continue", "tools": list(calls), **fields})

    def use(id_: str, tool: str, **arguments: str) -> dict[str, Any]:
        return {"id": id_, "tool": tool, "args": arguments, "needs": []}

    look = plan(
        use("find", "search_hotels", city="Bergen"),
        use("sky", "weather", city="Bergen"),
        use("first", "details", hotel="${find.hotels[0].id}"),
        use("second", "details", hotel="${find.hotels[1].id}"),
        action="Look for hotels in Bergen, and at the weather.",
        reasoning="The user wants a hotel with breakfast in Bergen for the weekend, and asks about an umbrella. "
        "I compare the first two hotels, and hold a room in the better one afterwards.",
    )
    hold = plan(use("hold", "hold_room", hotel="B-1"), action="Hold a room.", reasoning="It has breakfast.")
    done = plan(status="done", answer="I hold a room in the **Fjordblick** for an hour. Take an umbrella: it rains.")
    return SlowWriter(responses=[look, hold, done], cycle=True, streaming=True)
