"""The path of a request as the routes see it."""

from __future__ import annotations

from starlette.types import Scope


def path_of(scope: Scope) -> str:
    """Return a request's path without the mount path of the application."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path
