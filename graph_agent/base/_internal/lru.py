"""Caches a limited number of results that depend on values from callers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A thread-safe cache of at most `size` entries that evicts the least recently used entry first."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._entries: dict[K, V] = {}
        """Least recently used entry first."""
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Remove all entries."""
        with self._guard:
            self._entries.clear()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made on a miss; concurrent misses of two threads may both call `make`."""
        with self._guard:
            if key in self._entries:
                value = self._entries[key] = self._entries.pop(key)
                return value
        value = make()
        with self._guard:
            self._entries.pop(key, None)
            if len(self._entries) >= self._size:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = value
        return value
