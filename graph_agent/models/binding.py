"""A model together with what each of its calls is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableBinding

from graph_agent.config import LoopConfig


class BoundModel(NamedTuple):
    """A model and what each of its calls is given: tools, and options."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]


class ModelCall(NamedTuple):
    """One way to ask: a model, the options of the call, and the messages as that model is sent them."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]
    request: list[BaseMessage]
    bounded: bool = False
    """Whether the requests behind it have their own time limits, so that the caller must set none."""


Way = ModelCall


def with_options(settings: LoopConfig, further: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model call: the configuration's, and others laid over them; None takes one out."""
    options = {**dict(settings.model_options()), **further}
    return {name: value for name, value in options.items() if value is not None}


def unwrap_binding(runnable: Any) -> BoundModel:
    """A plain binding taken apart: it would merge its empty configuration into the run's at each call."""
    plain = isinstance(runnable, RunnableBinding) and type(runnable).ainvoke is RunnableBinding.ainvoke
    if not plain or runnable.config or runnable.config_factories:
        return BoundModel(runnable, {})
    return BoundModel(runnable.bound, dict(runnable.kwargs))


def openai_response_format(model: BaseChatModel, schema: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The option that holds an OpenAI-compatible model to a schema; None where LangChain's profile knows of none.

    Args:
        model: The chat model.
        schema: JSON schema of the reply.
        name: What to call it.
    """
    if model._llm_type != "openai-chat" or not (model.profile or {}).get("structured_output"):
        return None
    # Strict schemas forbid objects with free keys, such as a tool's arguments.
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": False}}
