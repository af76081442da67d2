"""The tools of the specialists: a small book of the planets, and a calculator."""

from __future__ import annotations

import operator
from collections.abc import Callable

from langchain_core.tools import ToolException, tool

FACTS: dict[str, tuple[int, str]] = {
    "mass": (0, "10^24 kg"),
    "diameter": (1, "km"),
    "day": (2, "hours"),
    "moons": (3, ""),
}
"""Fact → its column in `PLANETS`, and its unit."""

PLANETS: dict[str, tuple[float, float, float, float]] = {
    "Mercury": (0.330, 4879, 4222.6, 0),
    "Venus": (4.87, 12104, 2802, 0),
    "Earth": (5.97, 12756, 24, 1),
    "Mars": (0.642, 6792, 24.7, 2),
    "Jupiter": (1898, 142984, 9.9, 95),
    "Saturn": (568, 120536, 10.7, 274),
    "Uranus": (86.8, 51118, 17.2, 28),
    "Neptune": (102, 49528, 16.1, 16),
}

_OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


@tool
async def look_up(planet: str, fact: str) -> str:
    """Look one fact about a planet up: its mass, diameter, day or moons."""
    row, column = PLANETS.get(planet.strip().title()), FACTS.get(fact.strip().lower())
    if row is None:
        raise ToolException(f"Unknown planet {planet!r}; known: {', '.join(PLANETS)}.")
    if column is None:
        raise ToolException(f"Unknown fact {fact!r}; known: {', '.join(FACTS)}.")
    at, unit = column
    return f"{planet.strip().title()}: {fact.strip().lower()} {row[at]:g} {unit}".strip()


@tool
async def calculate(left: float, operation: str, right: float) -> str:
    """Calculate with two numbers; the operation is one of + - * /."""
    if operation not in _OPERATIONS:
        raise ToolException(f"Unknown operation {operation!r}; known: {' '.join(_OPERATIONS)}.")
    if operation == "/" and right == 0:
        raise ToolException("Nothing can be divided by zero.")
    return f"{left:g} {operation} {right:g} = {_OPERATIONS[operation](left, right):.4g}"


look_up.metadata = calculate.metadata = {"effect": "read"}
