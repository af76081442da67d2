"""Lists the reasons for which a call waits for a plan that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from fnmatch import fnmatchcase

from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import Call
from graph_agent.core.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Proposal:
    """A call that might begin early, and what decides on it."""

    call: Call
    toolbox: Toolbox
    settings: LoopConfig
    withheld: Container[str]
    """Names of tools that may not run now."""


def _is_asked_about(proposal: Proposal) -> bool:
    name, rules = proposal.call["name"], proposal.settings.approval_rules
    # A rule that is a function is not asked: it may be meant for calls of accepted plans only.
    is_selected = any(not isinstance(rule, str) or fnmatchcase(name, rule) for rule in rules)
    return is_selected or bool(proposal.toolbox.marks(name).get("approve"))


def _may_be_tainted(proposal: Proposal) -> bool:
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
"""Reason for which a call waits for its plan → whether it applies. The reasons are tested in this order, and each one
relies on those before it."""


def reason_to_wait(proposal: Proposal) -> str | None:
    """Return why a call must wait for a plan that asks for it; None if it may begin early."""
    return next((reason for reason, applies in REASONS_TO_WAIT.items() if applies(proposal)), None)
