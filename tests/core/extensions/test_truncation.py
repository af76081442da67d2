"""Truncation of outputs: kept text, marker and cost."""

from __future__ import annotations

from typing import Any, SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.core.extensions.truncation import truncate, truncate_texts

KEPT = "the history keeps the whole output …]"


@pytest.mark.parametrize(
    ("text", "limits", "shown"),
    [
        ("short", {"max_chars": 100, "max_lines": 5}, ("short", False)),
        ("a\nb\nc", {"max_chars": 100, "max_lines": 3}, ("a\nb\nc", False)),
        ("a\nb\nc\n", {"max_chars": 100, "max_lines": 3}, ("a\nb\nc\n", False)),
        (
            "1\n2\n3\n4\n5\n6",
            {"max_chars": 100, "max_lines": 4},
            (f"1\n2\n[… 4 characters in 2 lines left out here; {KEPT}\n5\n6", True),
        ),
        (
            "1\n2\n3\n",
            {"max_chars": 100, "max_lines": 2},
            (f"1\n[… 2 characters in 1 line left out here; {KEPT}\n3\n", True),
        ),
        (
            "1\n2\n3\n4",
            {"max_chars": 100, "max_lines": 2, "mode": "tail"},
            (f"[… 4 characters in 2 lines left out here; {KEPT}\n3\n4", True),
        ),
        (
            "abcdefghij",
            {"max_chars": 4, "max_lines": 5},
            (f"ab\n[… 6 characters left out here; {KEPT}\nij", True),
        ),
        ("abcdefghij", {"max_chars": 9, "max_lines": 5}, (f"abcd\n[… 1 character left out here; {KEPT}\nfghij", True)),
        (
            "1\n2\n3\n4\n" * 1000,
            {"max_chars": 20, "max_lines": 4},
            (f"1\n2\n[… 7,992 characters in at least 6 lines left out here; {KEPT}\n3\n4\n", True),
        ),
        ("é🎉" * 3, {"max_chars": 3, "max_lines": 5}, (f"é\n[… 3 characters left out here; {KEPT}\né🎉", True)),
    ],
    ids=[
        "short",
        "just fits",
        "a newline at the end is no line",
        "lines",
        "lines with a newline at the end",
        "tail",
        "characters",
        "one character",
        "characters, then lines",
        "code points",
    ],
)
def test_truncation(text: str, limits: Any, shown: tuple[str, bool]) -> None:
    assert truncate(text, **limits) == shown


def test_the_marker_names_the_offset_of_the_missing_text() -> None:
    text, _ = truncate("abcdefghij", max_chars=4, max_lines=5, hint=lambda offset: f"see {offset}")

    assert text == "ab\n[… 6 characters left out here; the history keeps the whole output; see 2 …]\nij"


MODES = st.sampled_from(["head_tail", "tail"])


@given(st.text(alphabet="ab\né🎉", max_size=400), st.integers(1, 100), st.integers(2, 20), MODES)
def test_truncation_stays_within_limits_and_counts_the_missing_text(
    text: str, max_chars: int, max_lines: int, mode: Any
) -> None:
    shown, cut = truncate(text, max_chars=max_chars, max_lines=max_lines, mode=mode)

    if not cut:
        assert (shown, len(text) <= max_chars, len(text.splitlines()) <= max_lines) == (text, True, True)
        return
    (marker,) = (line for line in shown.split("\n") if line.startswith("[… "))
    head, _, tail = shown.partition(marker)
    missing = int(marker.split()[1].replace(",", ""))
    head, tail = head.removesuffix("\n"), tail.removeprefix("\n")
    kept = len(text) - missing
    assert (
        text.startswith(head),
        text.endswith(tail),
        kept <= max_chars,
        # A newline at a cut belongs to the part left in, and is not shown twice.
        len(head) + len(tail) in (kept - 2, kept - 1, kept),
        len(shown.splitlines()) <= max_lines + 1,
    ) == (True, True, True, True, True)


@given(st.text(alphabet="a\n", max_size=60), st.integers(2, 8), MODES)
def test_where_lines_alone_are_cut_the_marker_counts_them(text: str, max_lines: int, mode: Any) -> None:
    shown, cut = truncate(text, max_chars=100, max_lines=max_lines, mode=mode)

    missing = len(text.split("\n")) - text.endswith("\n") - max_lines
    plural = "s" if missing > 1 else ""
    assert (f" in {missing} line{plural} left out here; " in shown) == cut == (missing > 0)


@given(
    st.lists(st.text(alphabet="ab\n", max_size=30), min_size=1, max_size=12),
    st.integers(1, 100),
    st.integers(2, 20),
    MODES,
)
def test_pieces_are_cut_to_the_limits_together(texts: list[str], max_chars: int, max_lines: int, mode: Any) -> None:
    kept = truncate_texts(texts, max_chars=max_chars, max_lines=max_lines, mode=mode, hint=str)

    lines = sum(len(text.splitlines()) for text in texts)
    size = sum(map(len, texts))
    if kept is None:
        assert (size <= max_chars, lines <= max_lines) == (True, True)
        return
    (marker,) = (line for text in kept for line in (text or "").splitlines() if line.startswith("[… "))
    head, _, tail = "\0".join(text or "" for text in kept).partition(marker)
    missing, offset = int(marker.split()[1].replace(",", "")), int(marker.split("; ")[-1].removesuffix(" …]"))
    whole = "".join(texts)
    shown_lines = sum(len((text or "").splitlines()) for text in kept)
    assert (
        whole.startswith(head.replace("\0", "").removesuffix("\n")),
        whole.endswith(tail.replace("\0", "").removeprefix("\n")),
        len(head.replace("\0", "")) - offset in (-1, 0, 1),
        size - missing <= max_chars,
        shown_lines <= max_lines + 1,
        lines <= max_lines or size > max_chars or f" in {lines - max_lines} line" in marker,
    ) == (True,) * 6


class Measured(str):
    """A text that counts the characters that are read."""

    touched = 0

    def _span(self, start: int | None = None, end: int | None = None) -> None:
        first, last, _ = slice(start, end).indices(len(self))
        self.touched += max(0, last - first)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, slice):
            self._span(key.start, key.stop)
        else:
            self.touched += 1
        return super().__getitem__(key)

    def count(self, sub: str, start: Any = None, end: Any = None) -> int:
        self._span(start, end)
        return super().count(sub, start, end)

    def find(self, sub: str, start: Any = None, end: Any = None) -> int:
        found = super().find(sub, start, end)
        self._span(start, end if found < 0 else found + 1)
        return found

    def rfind(self, sub: str, start: Any = None, end: Any = None) -> int:
        found = super().rfind(sub, start, end)
        self._span(start if found < 0 else found, end)
        return found


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("the whole text was read")


for method in {*dir(str), "__iter__", "__contains__", "__add__"} - {*vars(Measured), "startswith", "endswith"}:
    if not method.startswith("__") or method in ("__iter__", "__contains__", "__add__"):
        setattr(Measured, method, _never)


@pytest.mark.parametrize("mode", ["head_tail", "tail"])
@pytest.mark.parametrize("unit", ["x", "x\n", "\n", "é", "\r\n"], ids=lambda unit: unit.encode("unicode_escape"))
def test_the_work_does_not_grow_with_what_is_left_out(unit: str, mode: Any) -> None:
    touched = []
    for size in (100_000, 10_000_000):
        text = Measured(unit * (size // len(unit)))
        truncate(text, max_chars=30_000, max_lines=256, mode=mode)
        touched.append(text.touched)

    # Each character of the two ends is read a few times at most.
    assert (touched[0] == touched[1], touched[0] <= 4 * 30_000) == (True, True)
