"""Hooks of an agent file: a dotted name, and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from graph_agent._internal.attribute_docs import describe_fields
from graph_agent.errors import ConfigError
from graph_agent.spec.imports import is_dotted_name, load_attribute, make

SHIPPED_MIDDLEWARE = "langchain.agents.middleware"


class HookSpec(BaseModel):
    """One hook of an agent file: `my_module.MyHook`, or `{use: my_module.MyHook, with: {limit: 3}}`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, json_schema_extra=describe_fields)

    use: str = Field(min_length=1)
    """Dotted name of a class, of a function that returns a hook, or of a hook."""
    with_: dict[str, Any] | None = Field(None, alias="with")
    """Arguments of the class or function; `{use: my_module.search}` as a value is replaced by that object."""

    @model_validator(mode="before")
    @classmethod
    def _accept_name(cls, given: Any) -> Any:
        return {"use": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not is_dotted_name(self.use):
            raise ValueError(f"{self.use!r} is no dotted name; write 'module.Class', e.g. 'my_module.MyHook'")
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
        spec: The hook's entry in the file.
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
    arguments = {name: _argument(value, folder) for name, value in (spec.with_ or {}).items()}
    return make(spec.use, named, "a class of hooks", **arguments)


def _argument(value: Any, folder: Path) -> Any:
    if isinstance(value, Mapping) and set(value) == {"use"} and isinstance(value["use"], str):
        return load_attribute(value["use"], folder)
    return value
