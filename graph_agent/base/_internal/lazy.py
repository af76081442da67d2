"""Imports the public names of a package on first access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from sys import modules
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], *, extra: tuple[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's functions `__getattr__` and `__dir__`, which import its public names on first access.

    An imported name is stored in the package. The package repeats the imports under `TYPE_CHECKING`, for type checkers.

    Args:
        package: Name of the package.
        homes: Module → the names to import from it, separated by spaces.
        extra: If the modules need an optional dependency: the feature, as the subject of a sentence, and the extra. A
            failed import then raises the error of `missing_extra`. None if they need none.
    """
    module_of = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Imported here, because a plugin of pytest loads this package at every start.
        from graph_agent.base._internal.garbage import paused_collection

        try:
            with paused_collection():
                value = getattr(import_module(module_of[name]), name)
        except ImportError as missing:
            if extra is None:
                raise
            from graph_agent.base._internal.extras import missing_extra

            raise missing_extra(*extra, missing) from None
        setattr(modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(modules[package]), *module_of})
