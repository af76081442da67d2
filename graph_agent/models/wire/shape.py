"""Makes the client of an agent's model send and read what its endpoint accepts, where LangChain's client does not."""

from __future__ import annotations

from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel

from graph_agent.models.wire.choose import client_package
from graph_agent.models.wire.rules import WireRules

M = TypeVar("M", bound=BaseChatModel)


def adapted_copy(model: M, given: BaseChatModel) -> M:
    """Return a model that keeps the fields that LangChain's clients of OpenAI's and Anthropic's APIs drop, e.g.
    reasoning.

    Streams of OpenAI's client are also read without the package's classes (see `direct_streams`). A model that is no
    client of these packages is returned unchanged.

    Args:
        model: A copy of `given`, whose class is replaced in place, or `given` itself, which is copied first.
        given: The user's model, which is never changed.
    """
    packages = {client_package(cls) for cls in type(model).__mro__}
    if packages.isdisjoint({"langchain_openai", "langchain_anthropic"}):
        return model
    copy = model.model_copy() if model is given else model
    # Imported here: a client loads slowly, and other models do not need it.
    if "langchain_anthropic" in packages:
        from graph_agent.models.wire.anthropic_family import with_early_usage as adapted_to_anthropic

        copy.__class__ = adapted_to_anthropic(type(model))
        return copy
    from graph_agent.models.wire.openai_family import adapted
    from graph_agent.models.wire.openai_stream import direct_streams

    copy = direct_streams(copy)
    copy.__class__ = adapted(type(model))  # type: ignore[arg-type]  # a class of OpenAI's client, as tested above
    return copy


def shaped(model: M, rules: WireRules, *, has_schema: bool = False) -> M:
    """Return a copy of a model without the constructor options that its endpoint refuses, and with those that it needs.

    The same object if it has none. Streaming is turned off where the endpoint cannot stream. Options that LangChain
    adds by itself are covered, too, but not the keyword arguments of a single request.

    Args:
        model: The model, from `adapted_copy`.
        rules: The rules of its endpoint.
        has_schema: Whether the request has a JSON schema of the reply, which some endpoints do not stream.
    """
    fields = type(model).model_fields
    update: dict[str, Any] = {
        name: None for name in rules.left_out if name in fields and getattr(model, name, None) is not None
    }
    if not rules.stream or (has_schema and not rules.schema_with_stream):
        update["disable_streaming"] = True
    if not rules.stream_usage and "stream_usage" in fields:
        update["stream_usage"] = False
    if rules.reasoning_split and "extra_body" in fields:
        # A value that the user has set wins.
        update["extra_body"] = {"reasoning_split": True, **(getattr(model, "extra_body", None) or {})}
    is_adapted = hasattr(model, "max_tokens_name")
    if not update and not (is_adapted and rules.max_tokens):
        return model
    changed = model.model_copy(update=update)
    if is_adapted:
        vars(changed)["max_tokens_name"] = rules.max_tokens
    return changed
