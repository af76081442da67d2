"""Names the public path where a program imports an inner module by a path that no longer exists."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

_PUBLIC_PATHS = {
    **dict.fromkeys(
        ["agent", "assembly", "delegates", "deps", "execution", "planning", "prompts", "runs", "settings", "types"],
        "graph_agent",
    ),
    **dict.fromkeys(["_compat", "_internal", "acp", "tools", "usage"], "graph_agent"),
    **dict.fromkeys(["checkpoints", "inputs", "locks"], "graph_agent.persistence"),
    "parsing": "graph_agent.calls",
    **{name: f"graph_agent.{name}" for name in ("cli", "engines", "hooks", "server", "state", "testing")},
}
"""First part of a path below `graph_agent` that may be looked for in vain → the path with the public names."""


class InnerPaths:
    """A finder of modules that comes last, so that it is asked only for modules that do not exist."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raise `ModuleNotFoundError` with the public path for an inner module of this package; find nothing."""
        package, _, rest = name.partition(".")
        public = _PUBLIC_PATHS.get(rest.partition(".")[0])
        if package == "graph_agent" and public is not None:
            raise ModuleNotFoundError(
                f"There is no module {name!r}: inner modules move between versions. Import public names, which "
                f"{public!r} has; the reference of the API lists them.",
                name=name,
            )


def explain_inner_paths() -> None:
    """Add the finder, once."""
    if InnerPaths not in sys.meta_path:
        sys.meta_path.append(InnerPaths)
