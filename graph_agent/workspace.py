"""Exports tools for files and commands in one folder; commands need the extra `workspace`.

`workspace_tools` is imported on first access, because an agent file without a workspace needs `Shell` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.integrations.workspace.shell import Shell
    from graph_agent.integrations.workspace.tools import workspace_tools

__all__ = ["Shell", "workspace_tools"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_agent.integrations.workspace.shell": "Shell",
        "graph_agent.integrations.workspace.tools": "workspace_tools",
    },
)
