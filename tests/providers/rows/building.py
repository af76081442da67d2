"""Makes the chat model of a row from the class of its package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from langchain_core.language_models import BaseChatModel

KEY = "sk-emulator-0123456789abcdef"


def from_class(
    path: str, *, url: str = "base_url", suffix: str = "", **arguments: Any
) -> Callable[[str], BaseChatModel]:
    """Return a maker of a model.

    Args:
        path: `module:Class`, imported when the model is made.
        url: The name of the argument for the address.
        suffix: The path behind the emulator's address.
        arguments: The other arguments of the class.
    """

    def build(address: str) -> BaseChatModel:
        module, _, name = path.partition(":")
        made = getattr(import_module(module), name)(**{url: address + suffix}, **arguments)
        assert isinstance(made, BaseChatModel)
        return made

    return build


def by_openai(model: str, suffix: str = "/v1") -> Callable[[str], str]:
    """Return a maker of the name `openai:model`; the address is in the environment, see `openai_environment`."""
    return lambda address: f"openai:{model}"


def openai_environment(address: str, suffix: str = "/v1") -> Mapping[str, str]:
    """Return the variables for a model by `openai:` at an address."""
    return {"OPENAI_BASE_URL": address + suffix, "OPENAI_API_KEY": KEY}
