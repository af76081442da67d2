"""A remote agent's card, read from the configured address only and reduced to usable interfaces."""

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
    """Read an agent's card, and keep only its interfaces on configured hosts.

    Args:
        http: The HTTP client for the agent.
        url: The agent's address, or its card's address if it ends with `.json`.
        origins: The configured hosts.

    Raises:
        A2AClientError: If the card cannot be read.
        OperatorError: If no interface of the card is on a configured host.
    """
    parsed = urlsplit(url)
    base, path = url, AGENT_CARD_WELL_KNOWN_PATH
    if parsed.path.endswith(".json"):
        base, path = urlunsplit((parsed.scheme, parsed.netloc, "", "", "")), parsed.path
    card = await A2ACardResolver(http, base, path).get_agent_card()
    urls = [interface.url for interface in card.supported_interfaces]
    kept = [interface for interface in card.supported_interfaces if _is_at(interface.url, origins)]
    if not kept:
        elsewhere = ", ".join(urls) or "no address"
        raise OperatorError(
            f"its card names {elsewhere}, which is not a configured host; "
            "correct the card, or allow that host with 'allowed_origins'"
        )
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(kept)
    return card


def describe(card: AgentCard) -> str:
    """Summarize a card's description and skills for a model."""
    description = _line(card.description, _DESCRIPTION_CHARS)
    skills = [_line(f"{each.name}: {each.description}", _SKILL_CHARS).rstrip(".") for each in card.skills[:_SKILLS]]
    return " ".join([description, f"Its skills: {'; '.join(skills)}." if skills else ""]).strip()


def _line(text: str, max_chars: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def _is_at(url: str, origins: Collection[Origin]) -> bool:
    try:
        return origin_of(url) in origins
    except ConfigError:
        return False
