"""Splits the text of a search into words, and finds facts by them in a Store in memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from langgraph.store.base import BaseStore, GetOp, SearchItem

from graph_agent.integrations.memory.facts import Find

_MOST_WORDS = 64


def words_of(text: str) -> list[str]:
    """Return the words of a text for a search, lower case and without repetitions, at most 64."""
    return list(dict.fromkeys(re.findall(r"\w+", text.lower())))[:_MOST_WORDS]


def by_words(store: BaseStore) -> Find:
    """Return a search that counts common words, for the Store in memory, which has no full text.

    An item is found if it has at least one word of the text. Items with more of the words come first.
    """

    async def find(namespace: tuple[str, ...], text: str, limit: int, offset: int) -> list[SearchItem]:
        """Return the items of a namespace with a word of the text, those with the most words first.

        `limit` is the maximum number of items, `offset` the number of items to skip.
        """
        words = set(words_of(text))
        items = await store.asearch(namespace, limit=10_000)
        counts = [(len(words & set(words_of(str(item.value.get("content"))))), item) for item in items]
        # Not by the items themselves, which cannot be compared; equal counts keep the order of the Store.
        found = sorted((pair for pair in counts if pair[0]), key=lambda pair: -pair[0])
        return [item for _, item in found][offset : offset + limit]

    return find


async def items_by_key(store: BaseStore, namespace: tuple[str, ...], keys: Sequence[str]) -> list[SearchItem]:
    """Return the items of a namespace with these keys, in the order of the keys; missing ones are left out."""
    found: list[Any] = await store.abatch([GetOp(namespace, key) for key in keys]) if keys else []
    return [
        SearchItem(item.namespace, item.key, item.value, item.created_at, item.updated_at)
        for item in found
        if item is not None
    ]
