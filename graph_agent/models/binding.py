"""Splits a bound model into the model and its options, and holds a call of it that is not sent yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableBinding

from graph_agent.base.settings.config import LoopConfig
from graph_agent.models.wire.clients import client_rules


class Binding(NamedTuple):
    """A model, and the keyword arguments of each of its calls, such as `tools`."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]


class ModelCall(NamedTuple):
    """A model call that is not sent yet: the model, its keyword arguments, and the messages in the form it accepts."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]
    request: list[BaseMessage]
    bounded: bool = False
    """Whether the model applies time limits of its own, so that the caller must not set any."""


def with_options(settings: LoopConfig, further: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configured model options, overridden by `further`; options with the value None are removed."""
    options = {**dict(settings.model_options()), **further}
    return {name: value for name, value in options.items() if value is not None}


def stop_sequences(options: Mapping[str, Any]) -> list[str]:
    """Return the stop sequences in a call's options; empty if there are none."""
    given = options.get("stop")
    return [given] if isinstance(given, str) else list(given or ())


def unwrap_binding(runnable: Any) -> Binding:
    """Split a `RunnableBinding` into its model and options; any other runnable is returned with no options.

    Each call of a binding would merge its empty config into the run's, which costs time. A binding with a config or
    overridden methods is not split.
    """
    plain = isinstance(runnable, RunnableBinding) and type(runnable).ainvoke is RunnableBinding.ainvoke
    if not plain or runnable.config or runnable.config_factories:
        return Binding(runnable, {})
    return Binding(runnable.bound, dict(runnable.kwargs))


def is_openai(model: BaseChatModel) -> bool:
    """Whether a model's class belongs to an API in OpenAI's format."""
    return client_rules(model).schema == "extra_body"
