"""Limits JSON text while its bytes arrive, before a parser builds objects.

The cost of parsing and processing grows with the number of values, not with the number of bytes: a body of 10 MB may
hold one image or five million numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

_NUMBER_CHARS = 100
"""Maximum characters of one number, because Python converts longer ones in quadratic time."""
_DIGITS = bytes(0x30 if chr(byte) in "-+.0123456789eE" else 0x20 for byte in range(256))
"""Translation table: characters of numbers become `0`, all other bytes a space."""
_TOO_LONG = b"0" * (_NUMBER_CHARS + 1)
_PIECE = 65_536
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\x00\x00")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class JsonBoundsError(ValueError):
    """A JSON text exceeds a bound; the message names the bound and its value."""


class TooManyValuesError(JsonBoundsError):
    """A JSON text has more values than allowed."""


@dataclass(frozen=True, slots=True)
class JsonBounds:
    """Limits on one JSON text."""

    values: int
    """Maximum values: objects, arrays, strings, numbers, `true`, `false` and `null`; keys do not count."""
    depth: int
    """Maximum nesting of objects and arrays, in levels."""


class JsonMeter:
    """Counts the values and the nesting of one JSON text in UTF-8 while its bytes arrive, and refuses one beyond the
    bounds. It does not validate the JSON. Up to the first invalid byte, where a parser would stop, the counts equal a
    parser's."""

    def __init__(self, bounds: JsonBounds) -> None:
        self._bounds = bounds
        self.values = 1
        """Number of values counted so far."""
        self._depth = 0
        self._in_string = False
        self._escape = b""
        self._number = b""
        self._ended = False

    def feed(self, piece: bytes) -> None:
        """Count the next bytes of the text. Bytes after a closing bracket without an opening one are ignored.

        Raises:
            TooManyValuesError: The text has too many values so far.
            JsonBoundsError: The nesting is too deep, a number is too long, or there is a NUL byte, by which parsers
                recognize UTF-16 and UTF-32.
        """
        if self._ended:
            return
        if b"\0" in piece:
            raise JsonBoundsError("The JSON holds a NUL byte. Send JSON in UTF-8.")
        outside = self._outside_strings(self._escape + piece)
        self._check_depth(outside)
        self._check_numbers(outside)
        # Each value but the outermost follows a comma or an opening bracket.
        self.values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if self.values > self._bounds.values:
            raise TooManyValuesError(
                f"The JSON holds more than {self._bounds.values} JSON values (objects, arrays, strings, "
                "numbers). Send fewer, or several requests."
            )

    def _outside_strings(self, piece: bytes) -> bytes:
        """Return the bytes of a piece that are outside strings; of each string, one quotation mark is kept.

        Records whether the piece ends inside a string, and holds back a backslash at its end for the next piece.
        """
        # An even run of backslashes escapes itself; an odd run escapes the next character.
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        self._escape = b"\\" if backslashes % 2 else b""
        piece = piece.removesuffix(self._escape)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b'"'.join(parts[self._in_string :: 2])
        if self._in_string:
            outside = b'"' + outside
        self._in_string ^= len(parts) % 2 == 0
        return outside

    def _check_numbers(self, outside: bytes) -> None:
        """Raise `JsonBoundsError` for a number that is too long, even if it is divided between two pieces."""
        digits = self._number + outside.translate(_DIGITS)
        if _TOO_LONG in digits:
            raise JsonBoundsError(
                f"The JSON holds a number of more than {_NUMBER_CHARS} characters. Send it as a string."
            )
        self._number = digits.rpartition(b" ")[2]

    def _check_depth(self, outside: bytes) -> None:
        """Count opening and closing brackets, and note if the text has ended; raise `JsonBoundsError` for too deep
        nesting.
        """
        brackets = outside.translate(_STEPS, _NO_BRACKETS)
        if not brackets:
            return
        depths = list(accumulate((1 if step else -1 for step in brackets), initial=self._depth))
        self._depth = depths[-1]
        # Every parser stops at a closing bracket without an opening one.
        before = next((at for at, depth in enumerate(depths) if depth < 0), None)
        self._ended = before is not None
        if max(depths[:before], default=0) > self._bounds.depth:
            raise JsonBoundsError(
                f"The JSON is nested more than {self._bounds.depth} levels deep. Send it with fewer levels."
            )


def count_values(text: str, bounds: JsonBounds) -> int:
    """Return the number of commas and opening brackets outside strings, of which each value but the outermost follows
    one; raise `JsonBoundsError` if the text exceeds a bound."""
    meter = JsonMeter(bounds)
    for at in range(0, len(text), _PIECE):
        # Lone surrogates have no UTF-8 form and do not affect the counts.
        meter.feed(text[at : at + _PIECE].encode(errors="replace"))
    return meter.values
