"""The result of one check of `graph-agent doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """One result."""

    check: str
    """Name of the check."""
    status: Literal["ok", "warning", "problem"]
    """`warning` if agents work, but not as may be expected."""
    text: str
    """What was found."""
    fix: str = ""
    """What to do about it; empty for `ok`."""
