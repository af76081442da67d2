"""Loads hooks of an agent file by a dotted name and its arguments."""

from __future__ import annotations

import builtins
import inspect
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

from graph_agent._internal.validation_text import describe_fields
from graph_agent.agent_file.imports import is_dotted_name, load_attribute, make
from graph_agent.errors import ConfigError, did_you_mean

SHIPPED_HOOKS = {
    "history_compression": "graph_agent.hooks.history_compression.HistoryCompression",
    "web_search": "graph_agent.hooks.web_search.WebSearchInterception",
}
"""Short name → dotted name of each hook of this package."""
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
        named = {"use": given} if isinstance(given, str) else given
        if isinstance(named, Mapping) and isinstance(use := named.get("use"), str):
            return {**named, "use": SHIPPED_HOOKS.get(use, use)}
        return named

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not is_dotted_name(self.use):
            shipped = did_you_mean(self.use, SHIPPED_HOOKS)
            raise ValueError(
                f"{self.use!r} is no dotted name and no hook of this package; {shipped} "
                "Write 'module.Class', e.g. 'my_module.MyHook'"
            )
        return self


class MiddlewareSpec(HookSpec):
    """One middleware of an agent file: as a hook, or the name of one in `langchain.agents.middleware`."""

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, given: Any) -> Any:
        named = {"use": given} if isinstance(given, str) else given
        if isinstance(named, Mapping) and isinstance(use := named.get("use"), str) and use.isidentifier():
            return {**named, "use": f"{SHIPPED_MIDDLEWARE}.{use}"}
        return named


def load_hook(spec: HookSpec, folder: Path) -> Any:
    """Create the hook of an agent file.

    Args:
        folder: The folder that is searched first for dotted names.

    Raises:
        ConfigError: If the name cannot be resolved, or the arguments do not fit.
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
    """Whether a parameter takes a function or a class, and no text."""
    members = _members(annotation)
    return str not in members and any(
        each in (Callable, type)
        or get_origin(each) in (Callable, type)
        or (getattr(each, "_is_protocol", False) and "__call__" in vars(each))
        for each in members
    )


def _item(annotation: Any, kind: type) -> Any:
    """Return the annotation of the items of a list, or of the values of a dictionary; None if it has none."""
    for each in _members(annotation):
        origin = get_origin(each)
        if isinstance(origin, type) and issubclass(kind, origin) and (arguments := get_args(each)):
            return arguments[-1]
    return None


def _members(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation; aliases and `Annotated` are replaced by what they name."""
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
    """Return the annotations of a function's or class's parameters; those that cannot be evaluated are missing."""
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
    """The names of a module, and those that it imports for type checkers only."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or getattr(typing, name, Any)
