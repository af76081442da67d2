"""Caches a limited number of results whose keys come from callers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A thread-safe cache of at most `size` entries; when it is full, the least recently used entry is removed."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._entries: dict[K, V] = {}
        """The entries, the least recently used one first."""
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Remove all entries."""
        with self._guard:
            self._entries.clear()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value for a key; if there is none, call `make` and keep what it returns.

        If the cache is full, the entry that was not used for the longest time is dropped. Two threads that miss at once
        may both call `make`; the later value is kept. An exception of `make` is raised and nothing is kept.
        """
        with self._guard:
            if key in self._entries:
                value = self._entries[key] = self._entries.pop(key)
                return value
        # Outside the lock, because `make` may take long, or use this cache itself.
        value = make()
        with self._guard:
            self._entries.pop(key, None)
            if len(self._entries) >= self._size:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = value
        return value
