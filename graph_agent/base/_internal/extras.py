"""Lists the optional dependencies (extras) of this package, and the command that installs them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from graph_agent.base.errors import MissingExtraError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


PACKAGE = "graph-agent"
_EXTRAS = {
    **dict.fromkeys(("a2a", "fastapi", "prometheus_client", "sse_starlette", "uvicorn"), "server"),
    **dict.fromkeys(
        ("langgraph.checkpoint.postgres", "langgraph.store.postgres", "psycopg", "psycopg_pool"), "postgres"
    ),
    **dict.fromkeys(("hypercorn", "restate"), "restate"),
    "acp": "acp",
    "holidays": "examples",
    "langchain": "langchain",
    "psutil": "workspace",
}
"""Module or package → the extra of this package that installs it."""


def extra_of(module: str | None) -> str | None:
    """Return the extra that installs a module or one of its parent packages; None if there is none."""
    while module:
        if module in _EXTRAS:
            return _EXTRAS[module]
        module = module.rpartition(".")[0]
    return None


def missing_extra(what: str, extra: str, error: ImportError) -> ImportError:
    """Return the `MissingExtraError` to raise for an optional dependency that cannot be imported.

    Its message has the command that installs the dependency. `error` itself is returned if the module that failed is
    one of this package's own.

    Args:
        what: The feature that needs the dependency, as the subject of a sentence.
        extra: The extra that installs it.
        error: The import error.
    """
    if (error.name or "").partition(".")[0] == "graph_agent" and not isinstance(error, MissingExtraError):
        return error
    cause = f"{error.name} is missing" if isinstance(error, ModuleNotFoundError | MissingExtraError) else error
    return MissingExtraError(f"{what} needs the extra {extra!r} ({cause}): {install_command(extra)}", name=error.name)


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Raise the error of `missing_extra` in place of an `ImportError` in the `with` block.

    `what` is the feature that needs the packages, as the subject of a sentence, and `extra` the name of the extra that
    has them.
    """
    try:
        yield
    except ImportError as error:
        raise missing_extra(what, extra, error) from None


def install_command(extra: str) -> str:
    """Return the shell command that installs the packages of an extra into the environment of this process."""
    return f"{pip_install()} {shlex.join(map(str, requirements_of(extra)))}"


def pip_install() -> str:
    """Return the begin of a shell command that installs packages into the environment of this process.

    It is `uv pip install` if `uv` has installed this package, else `pip install`. The command names the interpreter if
    it would otherwise change another environment. Raises `importlib.metadata.PackageNotFoundError` if this package runs
    without being installed.
    """
    from importlib import metadata

    if (metadata.distribution(PACKAGE).read_text("INSTALLER") or "").strip() == "uv":
        is_active = os.environ.get("VIRTUAL_ENV") == sys.prefix
        return "uv pip install" if is_active else f"uv pip install --python {shlex.quote(sys.executable)}"
    pip = shutil.which("pip")
    is_active = pip is not None and Path(pip).parent == Path(sys.executable).parent
    return "pip install" if is_active else f"{shlex.quote(sys.executable)} -m pip install"


def requirements_of(extra: str) -> list[Requirement]:
    """Return the packages that an extra requires on this platform beyond those that are always required, without
    environment markers.

    Empty for an unknown extra. Raises `importlib.metadata.PackageNotFoundError` if this package runs without being
    installed.
    """
    from importlib import metadata

    from packaging.requirements import Requirement

    found = []
    for requirement in map(Requirement, metadata.requires(PACKAGE) or ()):
        marker, requirement.marker = requirement.marker, None
        # A package that is required without the extra, too, is installed already.
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            found.append(requirement)
    return found


PACKAGES = ("langgraph_sdk", "langsmith.types", "mcp", "mcp.server", "mcp.server.fastmcp", "sqlite_vec")
"""Packages whose loading is deferred; a package comes before those inside it."""

_lock = RLock()


def defer_packages() -> None:
    """Defer running the `__init__` of each of `PACKAGES` to the first access to one of its names.

    Call it before their import. LangChain, LangGraph and the MCP adapters import submodules of these packages, which
    would otherwise load 300 more modules. Packages that are loaded already or not installed are left alone.
    """
    for name in PACKAGES:
        parent, _, tail = name.rpartition(".")
        if name in sys.modules:
            continue
        above = import_module(parent) if parent else None
        spec = PathFinder.find_spec(name, None if above is None else above.__path__)
        if spec is None:
            continue
        package = sys.modules[name] = module_from_spec(spec)
        package.__class__ = _DeferredPackage
        if above is not None:
            # As an import does it: code may reach the package through its parent.
            setattr(above, tail, package)


class _DeferredPackage(ModuleType):
    """A package whose `__init__` runs at the first access to a name that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if self.__class__ is _DeferredPackage:
                # First, because modules of the package may import names from it that it does not have yet.
                object.__setattr__(self, "__class__", ModuleType)
                loader = self.__spec__.loader if self.__spec__ is not None else None
                assert loader is not None, "only found packages are deferred"
                loader.exec_module(self)
        return getattr(self, name)
