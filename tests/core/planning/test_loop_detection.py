"""Loop detection: repeated calls at the end of any history, for any window."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from langchain_core.messages.content import create_text_block

from graph_agent.base.history.call_events import call_event, result_event
from graph_agent.calls import Call, fingerprint
from graph_agent.core.planning.loop_detection import (
    REPEATS,
    KnownCalls,
    Loop,
    RecentCalls,
    find_loop,
    recent_calls,
    repetitions,
    unchanging,
)
from graph_agent.state.events import event


def found(calls: str, *, window: int = 10, max_period: int = 3) -> tuple[str, int] | None:
    """The loop in a history whose calls are letters, as `(pattern, count)`."""
    loop = find_loop(calls, window=window, max_period=max_period)
    return ("".join(loop.pattern), loop.count) if loop else None


@pytest.mark.parametrize(
    ("calls", "window", "max_period", "loop"),
    [
        ("", 10, 3, None),
        ("a", 10, 3, None),
        ("aa", 10, 3, None),
        ("aaa", 10, 3, ("a", 3)),
        ("xaaaa", 10, 3, ("a", 4)),
        ("aaax", 10, 3, None),
        ("abab", 10, 3, None),
        ("ababab", 10, 3, ("ab", 3)),
        ("abcabcabc", 10, 3, ("abc", 3)),
        ("abcabcabca", 10, 3, ("bca", 3)),
        ("abcdabcdabcd", 20, 3, None),
        ("abcdabcdabcd", 20, 4, ("abcd", 3)),
        ("aaaaaaaaaaaaaaa", 10, 3, ("a", 10)),
        ("xyzzabcabcabc", 8, 3, ("abc", 2)),
        ("abcabc", 8, 3, None),
        ("xaa", 2, 3, ("a", 2)),
        ("abab", 4, 2, ("ab", 2)),
        ("abab", 3, 2, None),
        ("aabaabaab", 10, 3, ("aab", 3)),
    ],
)
def test_the_loop_at_the_end(calls: str, window: int, max_period: int, loop: tuple[str, int] | None) -> None:
    assert found(calls, window=window, max_period=max_period) == loop


def oracle(calls: str, window: int, max_period: int) -> tuple[str, int] | None:
    """The definition, implemented directly: build the expected end of the history and compare."""
    seen = calls[max(0, len(calls) - window) :]
    for period in range(1, max_period + 1):
        pattern = seen[len(seen) - period :] if period <= len(seen) else None
        if pattern is None:
            continue
        count = 0
        while seen.endswith(pattern * (count + 1)):
            count += 1
        whole_window = len(seen) == window and (pattern * window).endswith(seen) and count >= 2
        if count >= 3 or (3 * period > window and whole_window):
            return pattern, count
    return None


@given(st.text(alphabet="abc", max_size=30), st.integers(2, 14), st.integers(1, 5))
def test_detection_agrees_with_its_definition(calls: str, window: int, max_period: int) -> None:
    assert found(calls, window=window, max_period=max_period) == oracle(calls, window, max_period)


@given(
    st.text(alphabet="abcdef", max_size=20),
    st.text(alphabet="abcdef", min_size=1, max_size=5),
    st.integers(0, 4),
    st.integers(2, 40),
)
def test_any_repeated_pattern_is_found_in_any_window_that_holds_it(
    before: str, pattern: str, rest: int, window: int
) -> None:
    period = len(pattern)
    assume(2 * period <= window)
    calls = before + pattern * max(REPEATS, -(-window // period)) + pattern[: rest % period]

    loop = find_loop(calls, window=window, max_period=period)

    # A shorter pattern may hide in the one repeated, or begin before it.
    assert loop is not None
    assert (len(loop.pattern) <= period, calls.endswith("".join(loop.pattern) * loop.count)) == (True, True)


@given(st.lists(st.integers(), unique=True, max_size=30), st.integers(2, 40), st.integers(1, 10))
def test_calls_without_repetition_are_no_loop(calls: list[int], window: int, max_period: int) -> None:
    assert find_loop([str(call) for call in calls], window=window, max_period=max_period) is None


@given(st.text(alphabet="abc", min_size=1, max_size=3), st.integers(0, 2), st.integers(3, 5))
def test_the_key_names_the_loop_wherever_in_it_the_history_ends(pattern: str, turned: int, times: int) -> None:
    at = turned % len(pattern)
    one, other = (
        find_loop(written * times, window=40, max_period=3) for written in (pattern, pattern[at:] + pattern[:at])
    )

    assert one is not None
    assert other is not None
    assert one.key == other.key


def test_different_loops_have_different_keys() -> None:
    patterns = ["a", "b", "ab", "abc", "acb", "aab"]
    loops = [find_loop(pattern * 3, window=10, max_period=3) for pattern in patterns]

    assert len({loop.key for loop in loops if loop}) == len(patterns)


@given(st.text(alphabet="ab", max_size=30), st.integers(2, 14), st.integers(1, 5))
def test_results_are_counted_like_calls(results: str, window: int, period: int) -> None:
    """Where a pattern is found, it stands as often as is counted; where none is, none of its length is counted."""
    loop = find_loop(results, window=window, max_period=period)

    counted = [repetitions(results, length, window=window) for length in range(1, period + 1)]
    assert next(((length, count) for length, count in enumerate(counted, 1) if count), None) == (
        (len(loop.pattern), loop.count) if loop else None
    )


class Window(list[str]):
    """A history that can be read at its end only."""

    def __getitem__(self, key: Any) -> Any:
        assert key == slice(-10, None, None)
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        raise AssertionError("the whole history was read")


def test_no_more_than_the_window_is_read() -> None:
    assert find_loop(Window("ab" * 5000), window=10, max_period=3) == Loop(
        ("a", "b"),
        5,
        find_loop("ab" * 5, window=10, max_period=3).key,  # type: ignore[union-attr] # it is a loop
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
        ({"n": 1, "list": [{"n": 2}]}, {"n": 1.0, "list": [{"n": 2.0}]}),
        ({"q": "x", "deep": [{"q": ["y"]}]}, {"q": " x\n", "deep": [{"q": ["\ty "]}]}),
        ({"n": -0.0}, {"n": 0}),
    ],
    ids=["key order", "1 and 1.0", "white space", "minus nought"],
)
def test_how_arguments_are_written_does_not_hide_a_repeat(one: dict[str, Any], other: dict[str, Any]) -> None:
    calls = [fingerprint({"id": "", "name": "t", "arguments": arguments}) for arguments in (one, other, one)]

    loop = find_loop(calls, window=10, max_period=3)

    assert loop is not None
    assert (loop.pattern, loop.count) == ((calls[0],), 3)


SAME = "no results"


@pytest.mark.parametrize(
    ("results", "window", "reported", "tool"),
    [
        ([("t", "1", SAME), ("t", "2", SAME), ("t", "3", SAME)], 10, (), "t"),
        ([("t", "1", SAME), ("u", "1", "x"), ("t", "2", SAME), ("u", "2", "y"), ("t", "3", SAME)], 10, (), "t"),
        ([("t", "1", SAME), ("t", "2", SAME), ("t", "3", SAME), ("u", "1", "x")], 10, (), "t"),
        ([("t", "1", SAME), ("t", "2", SAME), ("t", "3", SAME)], 10, ("t",), None),
        ([("t", "1", SAME), ("t", "2", SAME), ("t", "3", SAME)], 2, (), None),
        ([("t", "1", SAME), ("t", "2", SAME), ("t", "3", "other")], 10, (), None),
        ([("t", "1", SAME), ("t", "1", SAME), ("t", "2", SAME)], 10, (), None),
        ([("t", "0", "other"), ("t", "1", SAME), ("t", "2", SAME), ("t", "3", SAME)], 10, (), "t"),
        ([("t", str(i), [{"type": "text", "text": SAME}]) for i in range(3)], 10, (), "t"),
        ([("t", "1", SAME), ("t", "2", SAME), ("u", "3", SAME)], 10, (), None),
        ([], 10, (), None),
    ],
    ids=[
        "three",
        "others between",
        "another last",
        "reported before",
        "window too short",
        "another result",
        "same arguments",
        "another result before",
        "blocks",
        "two tools",
        "nothing",
    ],
)
def test_results_that_do_not_change(
    results: list[tuple[str, str, Any]], window: int, reported: tuple[str, ...], tool: str | None
) -> None:
    assert unchanging(results, window=window, reported=reported) == tool


def history(*calls: tuple[str, str], results: bool = True) -> list[dict[str, Any]]:
    """The events of an input with one wave a call, each `(name, argument)`; the result contains both."""
    events = [event("user_message", 0, content="go")]
    for step, (name, argument) in enumerate(calls, 1):
        key = "task" if name.startswith("delegate_to_") else "key"
        call: Call = {"id": f"c{step}", "name": name, "arguments": {key: argument}}
        events += [event("plan", step, calls=[]), call_event(call, step)]
        if results:
            events.append(result_event(call["id"], name, "success", f"{name} says {argument}", step))
    return events


def named(name: str, argument: str) -> str:
    key = "task" if name.startswith("delegate_to_") else "key"
    return fingerprint({"id": "", "name": name, "arguments": {key: argument}})


MARKS: dict[str, dict[str, Any]] = {"poll": {"poll": True}, "save": {"effect": "write"}, "look": {"effect": "read"}}


def marks(name: str) -> dict[str, Any]:
    return MARKS.get(name, {})


def test_the_recent_calls_of_an_input() -> None:
    events = [
        *history(("look", "of the input before")),
        *history(("look", "a"), ("poll", "p"), ("save", "b"), ("delegate_to_r", "t")),
        *history(("other", "c"), results=False)[1:],
    ]
    prints = [named("look", "a"), named("save", "b"), named("delegate_to_r", "t"), named("other", "c")]

    look, save, delegation = (("success", text) for text in ("look says a", "save says b", "delegate_to_r says t"))
    assert recent_calls(events, marks, 10) == RecentCalls(
        prints,
        [(look,), (save,), (delegation,), ()],
        [("look", prints[0], look), ("save", prints[1], save), ("delegate_to_r", prints[2], delegation)],
        frozenset({prints[3]}),
    )


def test_a_wave_is_read_in_call_order() -> None:
    calls: list[Call] = [{"id": id_, "name": "look", "arguments": {"key": id_}} for id_ in "abc"]
    events = [
        event("user_message", 0, content="go"),
        *(call_event(call, 1) for call in calls),
        *(result_event(call["id"], "look", "success", call["id"], 1) for call in calls),
    ]

    assert recent_calls(events, marks, 2).fingerprints == [named("look", id_) for id_ in "bc"]


def test_equal_calls_of_one_wave_are_no_loop() -> None:
    def wave(step: int) -> list[Any]:
        calls: list[Call] = [{"id": f"{step}{n}", "name": "look", "arguments": {"key": "a"}} for n in range(3)]
        return [
            event("plan", step, calls=[]),
            *(call_event(call, step) for call in calls),
            *(result_event(call["id"], "look", "success", "same", step) for call in calls),
        ]

    found = recent_calls([event("user_message", 0, content="go"), *wave(1), *wave(2)], marks, 10)

    same = ("success", "same")
    assert found == RecentCalls(
        [named("look", "a")] * 2,
        [(same, same, same)] * 2,
        [("look", named("look", "a"), same)] * 2,
        frozenset({named("look", "a")}),
    )


def test_content_block_ids_do_not_distinguish_results() -> None:
    def wave(step: int, text: str) -> list[Any]:
        content: Any = [create_text_block(text), "a bare text"]
        call: Call = {"id": f"c{step}", "name": "look", "arguments": {}}
        return [
            event("plan", step, calls=[]),
            call_event(call, step),
            result_event(f"c{step}", "look", "success", content, step),
        ]

    events = [event("user_message", 0, content="go"), *wave(1, "x"), *wave(2, "x"), *wave(3, "y")]

    first, second, third = recent_calls(events, marks, 10).outcomes
    assert (first == second, second == third) == (True, False)


class CountedEvents(list[dict[str, Any]]):
    read = 0

    def __reversed__(self) -> Any:
        for entry in super().__reversed__():
            self.read += 1
            yield entry


@pytest.mark.parametrize("name", ["look", "poll"])
def test_a_long_history_is_read_at_its_end_only(name: str) -> None:
    events = CountedEvents(history(*((name, str(i)) for i in range(10_000))))

    calls = recent_calls(events, marks, 10)

    assert (len(calls.fingerprints), events.read <= 10 * 8 * 3 + 1) == (10 if name == "look" else 0, True)


_ENTRIES = st.one_of(
    st.just(("user_message", "", "")),
    st.just(("plan", "", "")),
    st.tuples(st.sampled_from(["call", "result"]), st.sampled_from(["look", "save", "poll"]), st.sampled_from("ab")),
)


@given(entries=st.lists(_ENTRIES, max_size=40), reads=st.lists(st.integers(0, 40), max_size=5))
def test_a_later_read_of_the_new_events_finds_what_a_read_of_all_events_finds(
    entries: list[tuple[str, str, str]], reads: list[int]
) -> None:
    events: list[Any] = []
    for kind, name, key in entries:
        if kind == "call":
            events.append(call_event({"id": name + key, "name": name, "arguments": {"key": key}}, 1))
        elif kind == "result":
            events.append(result_event(name + key, name, "success", f"{len(events) // 9}", 1))
        else:
            events.append(event(kind, 1))
    known = KnownCalls()
    for length in sorted(reads):
        recent_calls(events[:length], marks, 50, known)

    assert recent_calls(events, marks, 50, known) == recent_calls(events, marks, 50)
