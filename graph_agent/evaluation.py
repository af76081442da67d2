"""Exports the cases of an evaluation, and the functions that read and write their files.

The public names are imported on first access, because the command line loads the package for other commands, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.devtools.case_formats import read_cases, write_cases
    from graph_agent.devtools.cases import (
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_agent.devtools.cases": (
            "Approval Case CaseFile Expectation ExpectedAnswer ExpectedCall ExpectedCalls Judge Limits"
        ),
        "graph_agent.devtools.case_formats": "read_cases write_cases",
    },
)
