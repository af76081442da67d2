"""Hooks named in an agent file: made of a dotted name and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from graph_agent.errors import ConfigError
from graph_agent.loading import load_attribute


class HookSpec(BaseModel):
    """One hook of an agent file: `my_module.MyHook`, or `{use: my_module.MyHook, with: {limit: 3}}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    use: str = Field(min_length=1)
    """Dotted name of a class, of a function that makes a hook, or of a hook."""
    with_: dict[str, Any] | None = Field(None, alias="with")
    """Arguments of the class or function. One written `{use: my_module.search}` is that object itself."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        return {"use": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _dotted(self) -> Self:
        _colon_name(self.use)
        return self


def load_hook(spec: HookSpec, folder: Path) -> Any:
    """Make the hook that an agent file names.

    Args:
        spec: What the file says.
        folder: Where the file's dotted names are looked for first.

    Raises:
        ConfigError: When the name means nothing, or the arguments do not fit.
    """
    named = _object(spec.use, folder)
    is_hook = hasattr(named, "should_run") and not isinstance(named, type)
    if is_hook or not callable(named):
        if spec.with_:
            raise ConfigError(f"hooks: {spec.use!r} is no class, so it takes no 'with'.")
        return named
    arguments = {name: _argument(value, folder) for name, value in (spec.with_ or {}).items()}
    try:
        return named(**arguments)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"hooks: {spec.use!r} cannot be made with {sorted(arguments)}: {error}") from error


def _argument(value: Any, folder: Path) -> Any:
    if isinstance(value, Mapping) and set(value) == {"use"} and isinstance(value["use"], str):
        return _object(value["use"], folder)
    return value


def _object(name: str, folder: Path) -> Any:
    try:
        return load_attribute(_colon_name(name), folder)
    except ValueError as error:
        raise ConfigError(f"hooks: {error}") from error


def _colon_name(name: str) -> str:
    """`module.attribute` as `module:attribute`, which is taken too."""
    if ":" in name:
        return name
    module, dot, attribute = name.rpartition(".")
    if not dot:
        raise ValueError(f"{name!r} is no dotted name; write 'module.Class', e.g. 'my_module.MyHook'")
    return f"{module}:{attribute}"
