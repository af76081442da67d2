"""Models with their bound tools and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableBinding

from graph_agent.config import LoopConfig


class BoundModel(NamedTuple):
    """A model, and the tools and options of each of its calls."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]


class ModelCall(NamedTuple):
    """One model call: the model, its options, and the messages in the form for that model."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]
    request: list[BaseMessage]
    bounded: bool = False
    """Whether its requests have their own time limits, so that the caller must set none."""


def with_options(settings: LoopConfig, further: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the configuration, overridden by `further`; a value of None removes an option."""
    options = {**dict(settings.model_options()), **further}
    return {name: value for name, value in options.items() if value is not None}


def unwrap_binding(runnable: Any) -> BoundModel:
    """Split a plain binding into model and options: each call would merge its empty config into the run's."""
    plain = isinstance(runnable, RunnableBinding) and type(runnable).ainvoke is RunnableBinding.ainvoke
    if not plain or runnable.config or runnable.config_factories:
        return BoundModel(runnable, {})
    return BoundModel(runnable.bound, dict(runnable.kwargs))


def openai_response_format(model: BaseChatModel, schema: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the option that enforces a schema on an OpenAI model; None if its profile does not support one.

    Args:
        model: The chat model.
        schema: JSON schema of the reply.
        name: The schema's name.
    """
    if model._llm_type != "openai-chat" or not (model.profile or {}).get("structured_output"):
        return None
    # Strict schemas forbid objects with arbitrary keys, such as a tool's arguments.
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": False}}
