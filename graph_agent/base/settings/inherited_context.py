"""Completes a run's context by what it inherits: credentials and the caller, of the agent or of the delegating run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from graph_agent.base.settings.config import AgentContext, RunContext, coerce_context

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig


_INHERITED = frozenset({"credentials", "caller"})
"""Fields of `AgentContext` that a delegate's run receives from the delegating run."""


def delegated_context(given: Any) -> AgentContext:
    """Return the context of a delegate's run: the credentials, the caller, and the user's own object or fields.

    Settings of the delegating run are left out, because a delegate keeps its own limits and model.

    Args:
        given: The context of the delegating run, an `AgentContext` or a dict of its fields. Any other object, also an
            empty or invalid dict, becomes the user's object; None gives an empty context.
    """
    context = coerce_context(given)
    if context is not None:
        # Reset one by one, because a subclass has fields of the user's own, which stay.
        settings = {name: field for name, field in AgentContext.model_fields.items() if name not in _INHERITED}
        return context.model_copy(update={name: field.get_default() for name, field in settings.items()})
    if given is None:
        return AgentContext()
    context = RunContext()
    context._user = given
    return context


def with_credentials(
    given: Any,
    own: Mapping[str, SecretStr],
    config: RunnableConfig | None = None,
    schema: type[AgentContext] = AgentContext,
    *,
    caller: str | None = None,
) -> Any:
    """Return a run's context with the agent's own credentials and caller added; those of the run take precedence.

    Args:
        given: The run's context, which is copied: an `AgentContext`, or a dict with its fields. With None, that of the
            surrounding run is used, or without one a new context. A value of another type, and a dict whose
            `credentials` are no mapping, are returned unchanged, to be refused later.
        own: The agent's credentials: name → secret.
        config: The run's config, in which the surrounding run is found.
        schema: Class of the context that is created if there is none.
        caller: Name of the user for a context without one; None to add none.
    """
    if given is None:
        from graph_agent.base._compat import surrounding_context  # imports LangGraph, which a run has imported already

        given = coerce_context(surrounding_context(config), schema)
    if given is None:
        return schema(credentials=dict(own), caller=caller)
    if isinstance(given, AgentContext):
        return given.model_copy(update={"credentials": {**own, **given.credentials}, "caller": given.caller or caller})
    if isinstance(given, dict) and isinstance(credentials := given.get("credentials", {}), Mapping):
        return {**given, "credentials": {**own, **credentials}, "caller": given.get("caller") or caller}
    return given
