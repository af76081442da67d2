"""Reads the arguments of an agent: its skills, middleware and approvals.

Marks are the metadata of a tool, such as `{"approve": True}`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.base.settings.config import LoopConfig
from graph_agent.core.approvals.policy import read_review
from graph_agent.core.execution.deps import ToolCallWrapper
from graph_agent.core.hooks.pipeline import MiddlewareNodes
from graph_agent.core.tools.toolbox import Toolbox
from graph_agent.core.waves.schema import PlanningResult
from graph_agent.models.pool import ModelWrapper, leave_unwrapped
from graph_agent.models.prompts import Prompts

if TYPE_CHECKING:
    from langgraph.cache.base import BaseCache

    from graph_agent.core.hooks.middleware import AdmittedMiddleware
    from graph_agent.core.tools.skills import SkillSet
    from graph_agent.models.provider_tools import ProviderTool


logger = get_logger("graph_agent.assembly")


class MiddlewareWrappers(NamedTuple):
    """What the middleware of an agent wraps; the defaults are those without middleware."""

    wrap_model_call: ModelWrapper = leave_unwrapped
    wrap_tool_call: ToolCallWrapper | None = None
    whole_replies: bool = False
    """Whether replies may be rewritten after their last token, so that an answer is streamed in one piece."""
    hook_set: MiddlewareNodes | None = None
    """The hooks around the model, which become nodes; None if there are none."""
    transformers: tuple[Any, ...] = ()
    """Stream transformers for LangGraph's `compile`."""


def checked_config(config: LoopConfig | None, cache: BaseCache[Any] | None) -> LoopConfig:
    """Return the configuration of an agent, the defaults for None.

    Raises `ConfigError` for an object of another class, and for a cache of plans that is configured and missing.
    """
    if config is not None and not isinstance(config, LoopConfig):
        raise ConfigError(f"config must be a LoopConfig, not {config!r}; write LoopConfig(**values).")
    config = config or LoopConfig()
    if config.plan_cache_ttl_s is not None and cache is None:
        raise ConfigError("plan_cache_ttl_s is set and there is no cache; pass e.g. cache=InMemoryCache().")
    return config


def checked_plan_schema(given: type[PlanningResult] | None) -> type[PlanningResult]:
    """Return the class of structured plans, `PlanningResult` for None; raise `ConfigError` for another class."""
    given = PlanningResult if given is None else given
    if not (isinstance(given, type) and issubclass(given, PlanningResult)):
        raise ConfigError(f"plan_schema must be PlanningResult or a subclass of it, not {given!r}.")
    return given


@functools.lru_cache(maxsize=16)
def json_schema_of(plan_schema: type[PlanningResult]) -> dict[str, Any]:
    """Return the JSON schema of a class of plans; cached, as its generation takes a third of the time to build a
    graph.
    """
    return plan_schema.model_json_schema()


def split_provider_tools(tools: object) -> tuple[object, Sequence[ProviderTool]]:
    """Return an agent's tools without those that the provider runs, and these.

    Raises `ConfigError` for a tool of a provider that the caller has to run.
    """
    if not isinstance(tools, Sequence) or not any(_may_be_of_provider(each) for each in tools):
        return tools, ()
    # Imported here: most agents have no such tools.
    from graph_agent.models.provider_tools import split_tools

    return split_tools(tools)


def _may_be_of_provider(tool: object) -> bool:
    """Whether an item of `tools` has the form of a tool that the provider runs."""
    return isinstance(tool, Mapping) or type(tool).__module__.startswith("google.genai")


def with_approvals(config: LoopConfig, toolbox: Toolbox, provided: Sequence[ProviderTool] = ()) -> LoopConfig:
    """Return the configuration with `approve` set if any call may need a person's approval; the same object if not.

    `approve` becomes an empty tuple if only marks of tools ask for approval, or if origins are traced. Raises
    `ConfigError` for an invalid mark `approve`, `source` or `sinks`, or a name in `approve` that no tool or delegate
    has, or that of a tool that the provider runs.
    """
    if config.origins:
        # Imported here: most agents trace no origins.
        from graph_agent.core.tools.source_marks import check_marks

        check_marks(toolbox)
        # Calls are traced where approvals select them.
        config = config.with_values({"approve": config.approval_rules})
    marks = {name: toolbox.marks(name).get("approve") for name in toolbox.tools}
    by_mark = [name for name, mark in marks.items() if read_review(mark, f"The mark approve of the tool {name!r}")]
    if config.approve is None:
        return config.with_values({"approve": ()}) if by_mark else config
    if provided:
        from graph_agent.models.provider_tools import check_approvals

        check_approvals(provided, config.approval_rules)
    known = [*toolbox.tools, *toolbox.delegates]
    for rule in config.approval_rules:
        # A pattern or a function may match a tool that is added later.
        if not isinstance(rule, str) or set(rule) & set("*?["):
            continue
        # A list of tools that may change can add the name later.
        if rule not in known and not toolbox.lists_change:
            raise ConfigError(f"approve: no tool or delegate is named {rule!r}; {did_you_mean(rule, known)}")
    return config


def opened_skills(folders: Sequence[str | Path]) -> SkillSet | None:
    """Read the skills of folders; None for an empty list.

    Raises `ConfigError` for a folder without a skill, or an invalid skill.
    """
    if isinstance(folders, Sequence) and not folders:
        return None
    # Imported here: most agents have no skills.
    from graph_agent.core.tools.skills import open_skills

    return open_skills(folders)


def admitted_middleware(middleware: Sequence[Any]) -> list[AdmittedMiddleware]:
    """Read what each middleware wraps, adds and hooks into; empty without middleware.

    Raises `ConfigError` if two have the same name.
    """
    if not middleware:
        return []
    # Imported here: it loads the `langchain` package, which a program without middleware does not need.
    from graph_agent.core.hooks.middleware import admit

    return admit(middleware)


def middleware_wrappers(
    admitted: Sequence[AdmittedMiddleware], toolbox: Toolbox, prompts: Prompts, config: LoopConfig
) -> MiddlewareWrappers:
    """Make the wrappers and hooks of middleware; the defaults without any.

    Logs a warning for each middleware that may rewrite replies, so that answers are not streamed token by token.
    """
    if not admitted:
        return MiddlewareWrappers()
    from graph_agent.core.hooks.middleware import hook_set
    from graph_agent.core.hooks.tool_middleware import ToolMiddleware
    from graph_agent.core.hooks.wrap_model_call import ModelMiddleware

    for one in admitted:
        if one.undeclared and not config.stream_before_guards:
            logger.warning(
                "The middleware %r may rewrite replies (%s), so each answer is streamed in one piece, once it has seen "
                "the whole text. If it leaves the text of replies as it is, set `rewrites_replies = False` on it.",
                one.name,
                ", ".join(one.undeclared),
            )
    models = ModelMiddleware(admitted, toolbox.tools, prompts, toolbox.own)
    tools = ToolMiddleware(admitted, toolbox.tools, toolbox.own)
    return MiddlewareWrappers(
        models.around,
        tools if tools else None,
        any(one.rewrites for one in admitted),
        hook_set([one.hooks for one in admitted]),
        tuple(each for one in admitted for each in one.transformers),
    )
