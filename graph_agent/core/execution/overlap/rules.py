"""Decides whether a call may begin before a plan asks for it, by a list of reasons against that."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from fnmatch import fnmatchcase

from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import Call
from graph_agent.core.extensions.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Proposal:
    """A call that might begin before a plan asks for it, and the settings that decide on that."""

    call: Call
    toolbox: Toolbox
    settings: LoopConfig
    withheld: Container[str]
    """Names of tools that may not run now, e.g. because of a detected loop."""


def _is_asked_about(proposal: Proposal) -> bool:
    """Whether a person may be asked about the call: its tool has the mark `approve`, a pattern selects its name, or any
    rule is a function.
    """
    name, rules = proposal.call["name"], proposal.settings.approval_rules
    # A rule that is a function is not asked: it may be meant for calls of accepted plans only.
    is_selected = any(not isinstance(rule, str) or fnmatchcase(name, rule) for rule in rules)
    return is_selected or bool(proposal.toolbox.marks(name).get("approve"))


def _may_be_tainted(proposal: Proposal) -> bool:
    """Whether origins are traced and the tool has arguments that decide where data is sent (`sinks`)."""
    return proposal.settings.origins and bool(proposal.toolbox.marks(proposal.call["name"]).get("sinks"))


REASONS_TO_WAIT: dict[str, Callable[[Proposal], bool]] = {
    "it is no call of a tool of the agent": lambda of: "fault" in of.call or of.call["name"] not in of.toolbox.tools,
    "its tool may write": lambda of: of.toolbox.writes(of.call["name"]),
    "a person may be asked about it": _is_asked_about,
    "untrusted text may decide where it sends something": _may_be_tainted,
    "its tool is withheld": lambda of: of.call["name"] in of.withheld or of.toolbox.refused(of.call) is not None,
    "its tool takes more than arguments": lambda of: not of.toolbox.takes_only_arguments(of.call["name"]),
    "its arguments do not fit": lambda of: (
        of.toolbox.arguments_fault(of.call["name"], of.call["arguments"]) is not None
    ),
}
"""Reason for which a call waits for its plan → function that returns whether it applies.

The reasons are tested in this order, and each one relies on those before it.
"""


def reason_to_wait(proposal: Proposal) -> str | None:
    """Return the first reason for which a call must wait for a plan that asks for it; None if it may begin early."""
    return next((reason for reason, applies in REASONS_TO_WAIT.items() if applies(proposal)), None)
