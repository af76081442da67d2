"""Imports objects by dotted name, `module:attribute` or `module.attribute`; searches a given folder first."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, overload

from graph_agent._internal.extras import extra_of, missing_extra
from graph_agent._internal.failure_log import clause, exception_text
from graph_agent.errors import ConfigError, did_you_mean


@overload
def load_attribute(name: str, folder: Path, *, missing_ok: Literal[True]) -> Any | None: ...
@overload
def load_attribute(name: str, folder: Path) -> Any: ...
def load_attribute(name: str, folder: Path, *, missing_ok: bool = False) -> Any | None:
    """Import the object of a dotted name.

    Args:
        name: `module:attribute` or `module.attribute`, e.g. `my_tools:search`; after a colon the attribute may be
            dotted too.
        folder: The folder that is searched for the module before the import path.
        missing_ok: Return None instead of raising if there is no such module.

    Raises:
        ConfigError: If the name has another form, there is no such module or attribute, or the import fails.
    """
    split = _split(name)
    if split is None:
        if missing_ok:
            return None
        raise ConfigError(
            f"{name!r} is no dotted name; write 'module:attribute' or 'module.attribute', e.g. 'my_tools:search'."
        )
    module_name, attributes = split
    try:
        module = _module(module_name, folder)
    except ModuleNotFoundError as error:
        if (extra := extra_of(error.name)) is not None:
            raise missing_extra(repr(name), extra, error) from error
        parents = [module_name[:at] for at, letter in enumerate(module_name) if letter == "."]
        if error.name not in [module_name, *parents]:
            raise ConfigError(f"{name!r}: importing {module_name!r} failed: {clause(error)}.") from error
        if missing_ok:
            return None
        raise ConfigError(
            f"{name!r}: there is no module {module_name!r}; looked in {folder} and on the import path."
            f"{_hint(folder, module_name)}"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{name!r}: importing {module_name!r} failed: {clause(exception_text(error))}.") from error
    found: Any = module
    for attribute in attributes:
        if not hasattr(found, attribute):
            if missing_ok and not _is_local(module_name, folder):
                return None
            known = did_you_mean(attribute, _public(found))
            raise ConfigError(f"{name!r}: {module_name!r} has no {attribute!r}; {known}")
        found = getattr(found, attribute)
    return found


def make(name: str, factory: Any, what: str, **arguments: Any) -> Any:
    """Call the factory of a dotted name.

    Args:
        factory: The object of that name.
        what: Description of the expected result, e.g. `a model`.

    Raises:
        ConfigError: If it is not callable, or the call fails.
    """
    if not callable(factory):
        raise ConfigError(f"{name!r} is {factory!r}; name {what}, or a function that returns one.")
    try:
        return factory(**arguments)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        given = f" with {', '.join(sorted(arguments))}" if arguments else " without arguments"
        raise ConfigError(f"{name!r}: calling it{given} failed: {clause(exception_text(error))}.") from error


def is_dotted_name(name: str) -> bool:
    """Return whether a name has a form that `load_attribute` accepts."""
    return _split(name) is not None


def _split(name: str) -> tuple[str, list[str]] | None:
    """Return the module and the attributes of a dotted name; None for a name of another form."""
    module, colon, attributes = name.partition(":")
    if not colon:
        module, _, attributes = name.rpartition(".")
    if not all(part.isidentifier() for part in [*module.split("."), *attributes.split(".")]):
        return None
    return module, attributes.split(".")


def _module(name: str, folder: Path) -> ModuleType:
    if not _is_local(name, folder):
        return importlib.import_module(name)
    path = folder / f"{name}.py"
    for loaded in list(sys.modules.values()):
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
    # Two agents may each have a `tools.py`, so modules of a folder are registered under unique names.
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


def _hint(folder: Path, module_name: str) -> str:
    near = did_you_mean(module_name, [file.stem for file in folder.glob("*.py")])
    return f" In the folder, {near}" if "Did you mean" in near else ""


def _public(found: Any) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]
