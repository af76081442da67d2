"""Exports tools for files and commands in one folder (extra `workspace`).

`workspace_tools` is imported on first access, so that `Shell` needs no extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graph_agent._internal.extras import missing_extra
from graph_agent.workspace.shell import Shell

if TYPE_CHECKING:
    from graph_agent.workspace.tools import workspace_tools

__all__ = ["Shell", "workspace_tools"]


def __getattr__(name: str) -> Any:
    if name != "workspace_tools":
        raise AttributeError(f"module 'graph_agent.workspace' has no attribute {name!r}")
    try:
        from graph_agent.workspace.tools import workspace_tools
    except ImportError as error:
        raise missing_extra("A workspace", "workspace", error) from None
    return workspace_tools
