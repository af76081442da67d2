"""Objects by dotted name: `module:attribute`, looked for in a given folder first."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, overload

from graph_agent.errors import ConfigError, did_you_mean


@overload
def load_attribute(name: str, folder: Path, *, missing_ok: Literal[True]) -> Any | None: ...
@overload
def load_attribute(name: str, folder: Path) -> Any: ...
def load_attribute(name: str, folder: Path, *, missing_ok: bool = False) -> Any | None:
    """Import what a dotted name means.

    Args:
        name: `module:attribute`, e.g. `my_tools:search`.
        folder: Where the module is looked for before the import path.
        missing_ok: Return None, rather than raise, when there is no such module.

    Raises:
        ConfigError: When the name has another shape, there is no such module or attribute, or the import fails.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        if missing_ok:
            return None
        raise ConfigError(f"{name!r} is no dotted name; write 'module:attribute', e.g. 'my_tools:search'.")
    try:
        module = _module(module_name, folder)
    except ModuleNotFoundError as error:
        if missing_ok and error.name == module_name.partition(".")[0]:
            return None
        raise ConfigError(f"{name!r}: {error}; looked in {folder} and on the import path.") from error
    except Exception as error:
        raise ConfigError(f"{name!r}: importing {module_name!r} failed: {error!r}") from error
    if not hasattr(module, attribute):
        if missing_ok and not _is_local(module_name, folder):
            return None
        raise ConfigError(f"{module_name!r} has no {attribute!r}; {did_you_mean(attribute, _public(module))}")
    return getattr(module, attribute)


def _module(name: str, folder: Path) -> ModuleType:
    if not _is_local(name, folder):
        return importlib.import_module(name)
    path = folder / f"{name}.py"
    for loaded in list(sys.modules.values()):
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
    # Two agents may each have a `tools.py`: a module of a folder is registered under a name of its own.
    unique = f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{path} cannot be loaded", name=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    finally:
        sys.path.remove(str(folder))
    return module


def _is_local(name: str, folder: Path) -> bool:
    return (folder / f"{name}.py").is_file()


def _public(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]
