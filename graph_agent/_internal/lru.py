"""A cache that stays small, for what depends on values that callers send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Bounded(Generic[K, V]):
    """Keeps what was value last. Any thread may use it.

    Args:
        size: Entries at most; the oldest gives way to a new one.
    """

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._entries: dict[K, V] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forget everything."""
        with self._guard:
            self._entries.clear()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """What belongs to a key, value where it is not there.

        Args:
            key: The key.
            make: Makes it; two threads that ask at the same time may both do so.
        """
        try:
            return self._entries[key]
        except KeyError:
            value = make()
        with self._guard:
            if len(self._entries) >= self._size:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = value
        return value
