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
    """A model without bound arguments, and the keyword arguments to pass to each of its calls, such as `tools`."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]


class ModelCall(NamedTuple):
    """A model call that is not sent yet: the model, its keyword arguments, and the messages in the form that it
    accepts."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]
    request: list[BaseMessage]
    bounded: bool = False
    """Whether the model applies time limits of its own, so that the caller must not set any."""


def with_options(settings: LoopConfig, further: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model options of the configuration, overridden by `further`; options with the value None are removed.

    Args:
        settings: The configuration, of which options such as `temperature` are used.
        further: Option → value; None removes the option.
    """
    options = {**dict(settings.model_options()), **further}
    return {name: value for name, value in options.items() if value is not None}


def stop_sequences(options: Mapping[str, Any]) -> list[str]:
    """Return the stop sequences in a call's options; empty if there are none."""
    given = options.get("stop")
    return [given] if isinstance(given, str) else list(given or ())


def unwrap_binding(runnable: Any) -> Binding:
    """Split a `RunnableBinding` (made by `bind`) into its model and its bound arguments.

    Calls of the bare model save the time in which a binding merges its config into the run's. A binding with a config
    or overridden methods, and any other runnable, is returned whole, with no arguments.
    """
    plain = isinstance(runnable, RunnableBinding) and type(runnable).ainvoke is RunnableBinding.ainvoke
    if not plain or runnable.config or runnable.config_factories:
        return Binding(runnable, {})
    return Binding(runnable.bound, dict(runnable.kwargs))


def is_openai(model: BaseChatModel) -> bool:
    """Whether a model's class sends requests in the format of OpenAI's API, to OpenAI or a compatible server."""
    return client_rules(model).schema == "extra_body"
