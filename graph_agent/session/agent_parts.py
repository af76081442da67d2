"""Reads the arguments of an agent: its skills, middleware and approvals.

Marks are the metadata of a tool, such as `{"approve": True}`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.approvals.policy import read_review
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.waves.schema import PlanningResult
from graph_agent.core.execution.deps import AgentDeps, ToolCallWrapper
from graph_agent.core.extensions.hook_pipeline import MiddlewareNodes
from graph_agent.core.extensions.toolbox import Toolbox
from graph_agent.models.pool import ModelWrapper, leave_unwrapped
from graph_agent.models.prompts import Prompts
from graph_agent.nodes.delegate import delegate_node
from graph_agent.nodes.tools import tools_node

if TYPE_CHECKING:
    from langgraph.cache.base import BaseCache

    from graph_agent.core.execution.overlap.past_inputs import PastInputs
    from graph_agent.core.extensions.middleware import AdmittedMiddleware
    from graph_agent.core.extensions.skills import SkillSet
    from graph_agent.models.provider_tools import ProviderTool


logger = get_logger("graph_agent.assembly")


class MiddlewareWrappers(NamedTuple):
    """How the middleware of an agent changes it. The defaults are those of an agent without middleware."""

    wrap_model_call: ModelWrapper = leave_unwrapped
    wrap_tool_call: ToolCallWrapper | None = None
    whole_replies: bool = False
    """Whether replies may be rewritten after their last token, so that an answer cannot be streamed token by token."""
    hook_set: MiddlewareNodes | None = None
    """The hooks around the model, which become nodes; None if there are none."""
    transformers: tuple[Any, ...] = ()
    """Stream transformers for LangGraph's `compile`."""


def checked_config(config: LoopConfig | None, cache: BaseCache[Any] | None) -> LoopConfig:
    """Return `config`, or the default configuration if it is None.

    Raises `ConfigError` for an object of another class, or if `plan_cache_ttl_s` is set and `cache` is None.
    """
    if config is not None and not isinstance(config, LoopConfig):
        raise ConfigError(f"config must be a LoopConfig, not {config!r}; write LoopConfig(**values).")
    config = config or LoopConfig()
    if config.plan_cache_ttl_s is not None and cache is None:
        raise ConfigError("plan_cache_ttl_s is set and there is no cache; pass e.g. cache=InMemoryCache().")
    return config


def checked_plan_schema(given: type[PlanningResult] | None) -> type[PlanningResult]:
    """Return the class of structured plans; `PlanningResult` for None. Raises `ConfigError` for any other class."""
    given = PlanningResult if given is None else given
    if not (isinstance(given, type) and issubclass(given, PlanningResult)):
        raise ConfigError(f"plan_schema must be PlanningResult or a subclass of it, not {given!r}.")
    return given


@functools.lru_cache(maxsize=16)
def json_schema_of(plan_schema: type[PlanningResult]) -> dict[str, Any]:
    """Return the JSON schema of a class of plans.

    It is cached, because generating it takes a third of the time to build a graph.
    """
    return plan_schema.model_json_schema()


def call_nodes(deps: AgentDeps) -> dict[str, Callable[..., Any]]:
    """Return the nodes that run calls: `tools` and `delegate`, name → function.

    With `predict=True`, each is wrapped so that it also reports the result of its call, from which the next plan is
    predicted.
    """
    nodes: dict[str, Callable[..., Any]] = {"tools": tools_node, "delegate": delegate_node}
    if deps.config.predict is not True:
        return nodes
    # Imported here: few agents predict plans.
    from graph_agent.core.planning.ask import ask_for_calls
    from graph_agent.core.planning.predicted_plan import noting_results

    ask = functools.partial(ask_for_calls, quiet=True)
    return {name: noting_results(node, ask) for name, node in nodes.items()}


def past_inputs(config: LoopConfig) -> PastInputs | None:
    """Return the reader of stored sessions, from whose inputs the next calls are predicted; None without `predict`."""
    if not config.predict:
        return None
    # Imported here: few agents predict calls.
    from graph_agent.core.execution.overlap.past_inputs import PastInputs
    from graph_agent.session.past_sessions import PastSessionReader

    return PastInputs(PastSessionReader())


def split_provider_tools(tools: object) -> tuple[object, Sequence[ProviderTool]]:
    """Return an agent's own tools, and the tools that the model's provider runs, which are given as dicts.

    `tools` is returned unchanged, with an empty tuple, if it is no sequence or has no tool of a provider. Raises
    `ConfigError` for a type of provider tool that the caller would have to run.
    """
    if not isinstance(tools, Sequence) or not any(_may_be_of_provider(each) for each in tools):
        return tools, ()
    # Imported here: most agents have no such tools.
    from graph_agent.models.provider_tools import split_tools

    return split_tools(tools)


def _may_be_of_provider(tool: object) -> bool:
    """Return whether an item of `tools` may be a tool that the model's provider runs: any mapping, or an object of the
    package `google.genai`."""
    return isinstance(tool, Mapping) or type(tool).__module__.startswith("google.genai")


def with_approvals(config: LoopConfig, toolbox: Toolbox, provided: Sequence[ProviderTool] = ()) -> LoopConfig:
    """Return the configuration with `approve` set if any call may need an approval; the same object if none does.

    If `approve` is None, it becomes an empty tuple if metadata of a tool asks for approval, or if origins of arguments
    are traced. Names in `approve` are checked, except patterns and functions. An unknown name is allowed if the list of
    tools may change during a run.

    Args:
        config: The configuration.
        toolbox: The agent's tools and delegates.
        provided: The tools that the provider runs, which cannot wait for an approval.

    Raises:
        ConfigError: The metadata `approve`, `source` or `sinks` of a tool are invalid; or a name in `approve` is that
            of no tool or delegate, or of a tool that the provider runs.
    """
    if config.origins:
        # Imported here: most agents trace no origins.
        from graph_agent.core.extensions.source_marks import check_marks

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
    """Return the skills in folders; None for an empty sequence.

    Raises `ConfigError` for a folder without a skill, for an invalid skill, and if `folders` is no sequence.
    """
    if isinstance(folders, Sequence) and not folders:
        return None
    # Imported here: most agents have no skills.
    from graph_agent.core.extensions.skills import open_skills

    return open_skills(folders)


def admitted_middleware(middleware: Sequence[Any]) -> list[AdmittedMiddleware]:
    """Read what each middleware wraps, adds and hooks into; an empty list without middleware.

    Raises `ConfigError` if two of them have the same name.
    """
    if not middleware:
        return []
    # Imported here: it loads the `langchain` package, which a program without middleware does not need.
    from graph_agent.core.extensions.middleware import admit

    return admit(middleware)


def middleware_wrappers(
    admitted: Sequence[AdmittedMiddleware], toolbox: Toolbox, prompts: Prompts, config: LoopConfig
) -> MiddlewareWrappers:
    """Return the wrappers and hooks that middleware adds to an agent; the defaults without middleware.

    Unless `stream_before_guards` is set, logs a warning for each middleware that may rewrite replies without declaring
    it, because answers are then not streamed token by token.

    Args:
        admitted: The middleware, as `admitted_middleware` has read it, outermost first.
        toolbox: The agent's tools, and its own state fields.
        prompts: The templates of prompts.
        config: The agent's configuration.
    """
    if not admitted:
        return MiddlewareWrappers()
    from graph_agent.core.extensions.middleware import hook_set
    from graph_agent.core.extensions.tool_middleware import ToolMiddleware
    from graph_agent.core.extensions.wrap_model_call import ModelMiddleware

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
