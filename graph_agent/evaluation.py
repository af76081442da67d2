"""Exports the cases of an evaluation, and the functions that read and write their files.

The public names are imported on first access, because the command line loads the package for other commands, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.devtools.evaluation.cases import (
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
    from graph_agent.devtools.evaluation.formats import read_cases, write_cases

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
        "graph_agent.devtools.evaluation.cases": (
            "Approval Case CaseFile Expectation ExpectedAnswer ExpectedCall ExpectedCalls Judge Limits"
        ),
        "graph_agent.devtools.evaluation.formats": "read_cases write_cases",
    },
)
