"""Imports objects by dotted name, `module:attribute` or `module.attribute`, and creates hooks from name and arguments.

The agent file's folder is searched before the import path.
"""

from __future__ import annotations
import __future__

import builtins
import hashlib
import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, overload

from pydantic import BaseModel, ConfigDict, Field, model_validator

from graph_agent.base._internal.extras import extra_of, missing_extra
from graph_agent.base._internal.failure_log import clause, exception_text
from graph_agent.base._internal.validation_text import describe_fields
from graph_agent.base.errors import ConfigError, did_you_mean


@overload
def load_attribute(name: str, folder: Path, *, missing_ok: Literal[True]) -> Any | None: ...
@overload
def load_attribute(name: str, folder: Path) -> Any: ...
def load_attribute(name: str, folder: Path, *, missing_ok: bool = False) -> Any | None:
    """Import the object `module:attribute` or `module.attribute`; after a colon the attribute may be dotted as well.

    Args:
        name: The dotted name.
        folder: Folder that is searched for the module before the import path.
        missing_ok: Whether to return None for a name of another form, for a module that does not exist, and for an
            attribute that a module outside `folder` does not have.

    Raises:
        ConfigError: The name has another form, there is no such module or attribute, or the import fails. A
            `MissingExtraError` if the module belongs to an extra that is not installed.
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
            # A module in the folder is meant, so that a missing attribute is an error.
            if missing_ok and not _is_local(module_name, folder):
                return None
            known = did_you_mean(attribute, _named_in(found))
            raise ConfigError(f"{name!r}: {module_name!r} has no {attribute!r}; {known}")
        found = getattr(found, attribute)
    return found


def _named_in(found: Any) -> list[str]:
    """Return the public names of a module or a class for an error, without modules and features of `__future__`."""
    noise = ModuleType | type(__future__.annotations)
    names = (name for name in dir(found) if not name.startswith("_"))
    return [name for name in names if not isinstance(inspect.getattr_static(found, name, None), noise)]


def make(name: str, factory: Any, what: str, **arguments: Any) -> Any:
    """Call a factory, and return what it returns.

    Args:
        name: The factory's dotted name, for errors.
        factory: The object of that name.
        what: What it returns, e.g. `a chat model`, for errors.
        **arguments: Passed to the factory.

    Raises:
        ConfigError: It is not callable, or the call fails.
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


def _split(name: str) -> tuple[str, list[str]] | None:
    """Return module and attributes of a dotted name, such as `("a.b", ["C"])` for `a.b:C` or `a.b.C`.

    None for a name of another form, i.e. one without a module, or with a part that is no identifier.
    """
    module, colon, attributes = name.partition(":")
    if not colon:
        module, _, attributes = name.rpartition(".")
    if not all(part.isidentifier() for part in [*module.split("."), *attributes.split(".")]):
        return None
    return module, attributes.split(".")


def _module(name: str, folder: Path) -> ModuleType:
    """Import a module, and return it: the file `<name>.py` of `folder` if there is one, else the module of this name.

    A file of the folder runs once, also if the program has imported it itself, and is registered under a name of its
    own. While it runs, the folder is first on the import path. Raises `ModuleNotFoundError`, and whatever the module
    raises.
    """
    if not _is_local(name, folder):
        return importlib.import_module(name)
    path = folder / f"{name}.py"
    # A module that the program has imported itself must not run twice.
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
    # The module may import others of its folder.
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
    """Whether a folder has the file of a module with this name."""
    return (folder / f"{name}.py").is_file()


def _hint(folder: Path, module_name: str) -> str:
    """Return a sentence with a similar name among the modules of a folder; empty if none is similar."""
    near = did_you_mean(module_name, [file.stem for file in folder.glob("*.py")])
    return f" In the folder, {near}" if "Did you mean" in near else ""


SHIPPED_HOOKS = {
    "history_compression": "graph_agent.core.extensions.history_compression.HistoryCompression",
    "web_search": "graph_agent.core.extensions.web_search.WebSearchInterception",
}
"""Short name → dotted name, of the hooks in this package."""
SHIPPED_MIDDLEWARE = "langchain.agents.middleware"


class HookSpec(BaseModel):
    """One hook of an agent file: a name such as `my_module.MyHook`, or `{use: my_module.MyHook, with: {limit: 3}}`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, json_schema_extra=describe_fields)

    use: str = Field(min_length=1, examples=[*SHIPPED_HOOKS, "my_module.MyHook"])
    """Dotted name of a class, of a function that returns a hook, or of a hook; or the short name of a hook of this
    package: `history_compression` or `web_search`."""
    with_: dict[str, Any] | None = Field(None, alias="with")
    """Arguments of the class or function. A dotted name is replaced by its object if the parameter's annotation is a
    function or a class, and `{use: my_module.search}` for every parameter."""

    @model_validator(mode="before")
    @classmethod
    def _accept_name(cls, given: Any) -> Any:
        """Convert a text to a mapping with `use`, and a short name to the full one; return anything else unchanged."""
        named = {"use": given} if isinstance(given, str) else given
        if isinstance(named, Mapping) and isinstance(use := named.get("use"), str):
            return {**named, "use": cls._full_name(use)}
        return named

    @staticmethod
    def _full_name(use: str) -> str:
        """Return the dotted name of a hook of this package by its short name; any other name unchanged."""
        return SHIPPED_HOOKS.get(use, use)

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        """Raise `ValueError` unless `use` is a dotted name."""
        if _split(self.use) is None:
            shipped = did_you_mean(self.use, SHIPPED_HOOKS)
            raise ValueError(
                f"{self.use!r} is no dotted name and no hook of this package; {shipped} "
                "Write 'module.Class', e.g. 'my_module.MyHook'"
            )
        return self


class MiddlewareSpec(HookSpec):
    """One middleware of an agent file: as a hook, or the name of one in `langchain.agents.middleware`."""

    @staticmethod
    def _full_name(use: str) -> str:
        """Return the dotted name of a middleware of LangChain by its class name; a dotted name unchanged."""
        return f"{SHIPPED_MIDDLEWARE}.{use}" if use.isidentifier() else use


def load_hook(spec: HookSpec, folder: Path) -> Any:
    """Return the hook or middleware of an agent file.

    A class or factory is called with the arguments; any other object is returned unchanged and takes no arguments. An
    argument `{use: NAME}` is replaced by the object of that name, as is a text for a parameter that accepts a callable
    and no text.

    Args:
        spec: Name and arguments.
        folder: The agent file's folder, which is searched first for modules.

    Raises:
        ConfigError: A name cannot be resolved, an object has arguments, or the call fails.
    """
    named = load_attribute(spec.use, folder)
    is_hook = hasattr(named, "should_run") and not isinstance(named, type)
    if is_hook or not callable(named):
        if spec.with_:
            raise ConfigError(f"{spec.use!r} is no class, so it takes no 'with'.")
        return named
    annotations = _annotations(named) if spec.with_ else {}
    arguments = {name: _argument(value, folder, annotations.get(name)) for name, value in (spec.with_ or {}).items()}
    return make(spec.use, named, "a class of hooks", **arguments)


def _argument(value: Any, folder: Path, annotation: Any) -> Any:
    """Return an argument of a hook with the names in it replaced by the objects that they name.

    A mapping `{use: NAME}` is replaced anywhere, a text only if its parameter's `annotation` accepts a callable and no
    text. Lists and mappings are searched. Raises `ConfigError` if a name cannot be resolved.
    """
    if isinstance(value, Mapping) and set(value) == {"use"} and isinstance(value["use"], str):
        return load_attribute(value["use"], folder)
    if isinstance(value, str):
        return load_attribute(value, folder) if _wants_callable(annotation) else value
    if isinstance(value, list):
        return [_argument(each, folder, _item(annotation, list)) for each in value]
    if isinstance(value, dict):
        return {key: _argument(each, folder, _item(annotation, dict)) for key, each in value.items()}
    return value


def _wants_callable(annotation: Any) -> bool:
    """Whether a parameter's annotation accepts a function or a class, and no text."""
    members = _members(annotation)
    return str not in members and any(
        each in (Callable, type)
        or get_origin(each) in (Callable, type)
        or (getattr(each, "_is_protocol", False) and "__call__" in vars(each))
        for each in members
    )


def _item(annotation: Any, kind: type) -> Any:
    """Return the annotation of a list's items or a dict's values, by the first member of a union that accepts `kind`
    (`list` or `dict`), such as `Sequence[int]`; None without one."""
    for each in _members(annotation):
        origin = get_origin(each)
        if isinstance(origin, type) and issubclass(kind, origin) and (arguments := get_args(each)):
            return arguments[-1]
    return None


def _members(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation itself; aliases and `Annotated` are resolved."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            break
    if get_origin(annotation) in (Union, UnionType):
        return [member for each in get_args(annotation) for member in _members(each)]
    return [annotation]


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return parameter → annotation of a function or class; empty if it has no signature.

    An annotation that is a text is evaluated with the names of its module; if that fails, it is kept as text.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError, NameError):
        return {}
    # Only the names of its module are read.
    own = inspect.unwrap(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    names = _Names(getattr(own, "__globals__", {}))
    found: dict[str, Any] = {}
    for name, parameter in parameters.items():
        found[name] = parameter.annotation
        if isinstance(parameter.annotation, str):
            with suppress(Exception):  # the annotation may have any text
                found[name] = eval(parameter.annotation, {}, names)
    return found


class _Names(dict[str, Any]):
    """The names of a module; others, e.g. imported for type checkers only, resolve to builtins, `typing` or `Any`."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or getattr(typing, name, Any)
