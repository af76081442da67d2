"""A remote agent's card: read from the configured address alone, and cut to what is of use."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit, urlunsplit

import httpx
from a2a.client import A2ACardResolver
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH

from graph_agent.a2a.client.http import Origin, origin_of
from graph_agent.errors import ConfigError, OperatorError

_DESCRIPTION_CHARS = 1_000
_SKILLS, _SKILL_CHARS = 20, 200


async def read_card(http: httpx.AsyncClient, url: str, origins: Collection[Origin]) -> AgentCard:
    """Read an agent's card, with those of its interfaces that are on a configured host.

    Args:
        http: The way to the agent.
        url: The agent's address, or its card's own when it ends with `.json`.
        origins: The configured hosts.

    Raises:
        A2AClientError: When there is no card to be read.
        OperatorError: When every interface of the card is elsewhere.
    """
    parsed = urlsplit(url)
    base, path = url, AGENT_CARD_WELL_KNOWN_PATH
    if parsed.path.endswith(".json"):
        base, path = urlunsplit((parsed.scheme, parsed.netloc, "", "", "")), parsed.path
    card = await A2ACardResolver(http, base, path).get_agent_card()
    given = [interface.url for interface in card.supported_interfaces]
    kept = [interface for interface in card.supported_interfaces if _is_at(interface.url, origins)]
    if not kept:
        elsewhere = ", ".join(given) or "nowhere"
        raise OperatorError(
            f"its card says it is to be reached at {elsewhere}, which is not a configured host; "
            "correct the card, or allow that host with 'allowed_origins'"
        )
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(kept)
    return card


def describe(card: AgentCard) -> str:
    """What a card says the agent is good for, in a few lines for a model."""
    said = _line(card.description, _DESCRIPTION_CHARS)
    skills = [_line(f"{each.name}: {each.description}", _SKILL_CHARS).rstrip(".") for each in card.skills[:_SKILLS]]
    return " ".join([said, f"Its skills: {'; '.join(skills)}." if skills else ""]).strip()


def _line(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}…"


def _is_at(url: str, origins: Collection[Origin]) -> bool:
    try:
        return origin_of(url) in origins
    except ConfigError:
        return False
