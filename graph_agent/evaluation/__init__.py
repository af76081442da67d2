"""Exports the cases of an evaluation, and the functions that read and write their files.

The public names are imported on first access, because the command line loads the package for other commands, too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph_agent.evaluation.cases import (
        Approval,
        Case,
        CaseFile,
        Expectation,
        ExpectedAnswer,
        ExpectedCall,
        ExpectedCalls,
        Judge,
        Limits,
    )
    from graph_agent.evaluation.formats import read_cases, write_cases

__all__ = [
    "Approval",
    "Case",
    "CaseFile",
    "Expectation",
    "ExpectedAnswer",
    "ExpectedCall",
    "ExpectedCalls",
    "Judge",
    "Limits",
    "read_cases",
    "write_cases",
]

_FUNCTIONS = ("read_cases", "write_cases")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'graph_agent.evaluation' has no attribute {name!r}")
    module = "formats" if name in _FUNCTIONS else "cases"
    return getattr(importlib.import_module(f"graph_agent.evaluation.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
