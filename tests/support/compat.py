"""What the scripts of tests/compat share. Each runs in an environment of its own, which may lack all but `typing`."""

from __future__ import annotations

import json
import sys
from typing import Any

BOTH = '!call look_up {"key": "k"}\n!call paint {"color": "red"}\n!call paint {"color": "blue"}'
"""An order to the parrot: a call of the agent's own tool, and two of the client's."""
ONE_OF_EACH = '!call look_up {"key": "k"}\n!call paint {"color": "red"}'
CITY = '!json Here: {"city": "Bergen"}'
CITY_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
COLOR_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"color": {"type": "string"}}}


def paint(color: str) -> str:
    """Paint."""
    return f"painted {color}"


def results(text: Any) -> str:
    """The results of calls in the parrot's answer."""
    return str(text).partition("; ")[2]


def write(report: dict[str, Any]) -> None:
    """Write the report of a script to its output."""
    json.dump(report, sys.stdout)
