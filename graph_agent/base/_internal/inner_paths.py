"""Names the public path when a program imports an inner module that does not exist."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

_PUBLIC_PATHS = {
    **dict.fromkeys(["agent", "assembly", "delegates", "deps", "execution", "planning", "prompts"], "graph_agent"),
    **dict.fromkeys(["_compat", "_internal", "acp", "runs", "settings", "tools", "types", "usage"], "graph_agent"),
    **dict.fromkeys(["core", "core.runs", "core.tools", "devtools", "models"], "graph_agent"),
    **dict.fromkeys(["checkpoints", "inputs", "locks", "storage"], "graph_agent.persistence"),
    **dict.fromkeys(["parsing", "models.parsing"], "graph_agent.calls"),
    **{name: f"graph_agent.{name}" for name in ("cli", "engines", "hooks", "server", "state", "testing")},
    "core.approvals": "graph_agent.approvals",
    "core.state": "graph_agent.state.events",
    "core.waves": "graph_agent.waves",
    "devtools.evaluation": "graph_agent.evaluation",
    "devtools.testing": "graph_agent.testing",
    "core.hooks": "graph_agent.hooks",
}
"""Begin, below `graph_agent`, of the path of a module that no longer exists → public module that has its names."""


class InnerPaths:
    """A finder of modules that is last in `sys.meta_path`, so that it is called only for modules that do not exist."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raise `ModuleNotFoundError` with the public path for a former module of this package, or one below it.

        Returns None for any other module, so that Python raises its usual error.
        """
        package, _, rest = name.partition(".")
        parts = rest.split(".")
        begins = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        public = next((_PUBLIC_PATHS[begin] for begin in begins if begin in _PUBLIC_PATHS), None)
        if package == "graph_agent" and public is not None:
            raise ModuleNotFoundError(
                f"There is no module {name!r}: inner modules move between versions. Import public names, which "
                f"{public!r} has; the reference of the API lists them.",
                name=name,
            )


def explain_inner_paths() -> None:
    """Add the finder to `sys.meta_path`, unless it is there already."""
    if InnerPaths not in sys.meta_path:
        sys.meta_path.append(InnerPaths)
