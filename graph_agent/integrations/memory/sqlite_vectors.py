"""Gives a connection to SQLite the distance of vectors, also in a Python whose SQLite cannot load sqlite-vec."""

from __future__ import annotations

import math
import struct
from operator import mul

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.sqlite_connection import LockWaitConnection

logger = get_logger("graph_agent.memory")


def cosine_distance(one: bytes, other: bytes) -> float | None:
    """Return the cosine distance of two vectors of 32-bit floats, as sqlite-vec does; None for a vector of zeros.

    Raises `ValueError` for vectors of different lengths.
    """
    if len(one) != len(other):
        raise ValueError(f"vectors of {len(one) // 4} and {len(other) // 4} numbers cannot be compared")
    layout = f"<{len(one) // 4}f"
    left, right = struct.unpack(layout, one), struct.unpack(layout, other)
    norms = math.sqrt(sum(map(mul, left, left)) * sum(map(mul, right, right)))
    return 1.0 - sum(map(mul, left, right)) / norms if norms else None


class PlainVectorConnection(LockWaitConnection):
    """A connection with `vec_distance_cosine` in Python, for a `sqlite3` that was built without loadable extensions.

    It takes about 0.2 ms for each fact of a user with vectors of 1,536 numbers, fifty times what sqlite-vec takes.
    LangGraph's Store loads sqlite-vec through these two methods.
    """

    def enable_load_extension(self, enabled: bool, /) -> None:
        """Do nothing: there is nothing to permit."""

    def load_extension(self, name: str, /, *, entrypoint: str | None = None) -> None:
        """Register the function in place of the extension, and log this at INFO; the arguments are not used."""
        logger.info("This Python's SQLite cannot load sqlite-vec; distances of vectors are computed in Python.")
        self.create_function("vec_distance_cosine", 2, cosine_distance, deterministic=True)


CONNECTION = LockWaitConnection if hasattr(LockWaitConnection, "enable_load_extension") else PlainVectorConnection
"""Class of connections for facts with vectors."""
