"""The bounded cache of results."""

from __future__ import annotations

from graph_agent.base._internal.lru import BoundedCache


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache, made = BoundedCache[str, str](size=2), list[str]()

    def read(key: str) -> None:
        cache.get(key, lambda: made.append(key) or key)  # type: ignore[func-returns-value]  # records the miss

    for key in ("a", "b", "a", "c", "a", "b"):
        read(key)

    assert made == ["a", "b", "c", "b"]


def test_concurrent_misses_of_one_key_evict_no_other_entry() -> None:
    cache, made = BoundedCache[str, str](size=2), list[str]()

    def make_while_another_thread_does() -> str:
        cache.get("b", lambda: "first")
        return "second"

    cache.get("a", lambda: "kept")
    cache.get("b", make_while_another_thread_does)
    cache.get("a", lambda: made.append("a") or "again")  # type: ignore[func-returns-value]  # records the miss

    assert (made, len(cache)) == ([], 2)
