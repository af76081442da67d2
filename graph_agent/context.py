"""Context of one run: overrides of the loop's configuration, and credentials."""

# No postponed evaluation of annotations: pydantic would compile the text of each field's annotation.

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
)

from graph_agent._internal.validation_text import explain
from graph_agent.config import (
    FallbackModel,
    Finalize,
    LoopConfig,
    OnFailure,
    OnLimit,
    Planner,
    Price,
    ReasoningEffort,
    ToolCalling,
)
from graph_agent.errors import ConfigError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

ApprovalPattern = Annotated[str, Field(min_length=1)]


class AgentContext(BaseModel):
    """The graph's `context_schema`: the fields of `LoopConfig`, all optional, and the run's credentials.

    A field left out, or None, keeps the value the agent was built with. Fields of `LoopConfig` have the
    same meaning here. Subclass it to add fields, and pass the subclass as `context_schema=`.

    Raises:
        ConfigError: On an unknown field, or an invalid value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, f"context ({type(self).__name__})", type(self))) from None

    credentials: dict[str, SecretStr] = Field(default={}, description="Secrets by name, for the tools that use them.")
    client_tools: list[dict[str, Any]] = Field(
        default=[], description="Tools of the caller's own, as OpenAI functions; a call of one is an interrupt."
    )
    client_calls: dict[str, str] = Field(
        default={},
        description="Calls of client tools no longer offered, whose results the caller sends: call id → tool's name.",
    )
    client_tool_choice: str | None = Field(
        default=None, description="The tool that each plan must call, by name, or `any`; None for the model's choice."
    )
    parallel_client_calls: bool = Field(
        default=True,
        description="Whether several of `client_tools` may be called at once; if not, only the first call runs.",
    )
    instructions: str = Field(default="", description="Appended to the agent's system prompt.")
    response_schema: dict[str, Any] | None = Field(
        default=None, description="JSON schema of this run's answer, in place of the agent's `response_format`."
    )
    max_steps: PositiveInt | None = None
    max_turns: PositiveInt | None = None
    on_limit: OnLimit | None = None
    on_failure: OnFailure | None = None
    tool_calling: ToolCalling | None = None
    tool_calling_default: Literal["native", "text"] | None = None
    finalize: Finalize | None = None
    max_parallel_calls: PositiveInt | None = None
    tool_timeout_s: PositiveFloat | None = None
    deadline_s: PositiveFloat | None = None
    max_tokens_total: PositiveInt | None = None
    max_cost: PositiveFloat | None = None
    prices: dict[str, Price] | None = None
    answer_reserve: float | None = Field(default=None, ge=0, lt=1)
    effect_ledger: bool | None = None
    max_output_chars: int | None = Field(default=None, ge=100)
    max_output_lines: int | None = Field(default=None, ge=2)
    offload_over_chars: PositiveInt | None = None
    loop_detection: bool | None = None
    loop_window: int | None = Field(default=None, ge=2)
    loop_max_period: PositiveInt | None = None
    context_window: PositiveInt | None = None
    summarize_at: float | None = Field(default=None, gt=0, le=1)
    max_delegation_depth: NonNegativeInt | None = None
    context_messages: NonNegativeInt | None = None
    model: str | None = Field(default=None, min_length=1)
    model_retries: NonNegativeInt | None = None
    model_timeout_s: PositiveFloat | None = None
    model_total_timeout_s: PositiveFloat | None = None
    fallback_models: tuple[FallbackModel, ...] | None = None
    reasoning_effort: ReasoningEffort | None = None
    temperature: NonNegativeFloat | None = None
    max_output_tokens: PositiveInt | None = None
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop: tuple[str, ...] | None = None
    planner: Planner | None = None
    rollout: float | None = Field(default=None, ge=0, le=1)
    max_calls_per_wave: PositiveInt | None = None
    plan_cache_ttl_s: PositiveInt | None = None
    max_agentic_loops: NonNegativeInt | None = None
    approve: tuple[ApprovalPattern, ...] | None = Field(
        default=None, description="Patterns of calls that a person must approve, in addition to the agent's own."
    )


def checked_context(given: Any) -> AgentContext | dict[str, Any] | None:
    """Return the context that a caller passes to a run, in the form that LangGraph accepts.

    Raises:
        ConfigError: When it is neither an `AgentContext` nor a mapping of its fields.
    """
    if given is None or isinstance(given, AgentContext):
        return given
    if isinstance(given, Mapping):
        return dict(given)
    kind = type(given).__name__
    raise ConfigError(f"context: got a {kind}; pass an AgentContext, or a mapping of its fields.")


def coerce_context(given: Any, schema: type[AgentContext] = AgentContext) -> AgentContext | None:
    """Convert a run's context: an `AgentContext`, a mapping of its fields, None, or a parent graph's own context.

    LangGraph passes a parent's context unchanged to a subgraph's run. One of a foreign type becomes None.

    Args:
        given: The run's context.
        schema: The agent's own context schema.
    """
    if isinstance(given, AgentContext):
        return given
    if isinstance(given, dict) and given:
        try:
            return schema(**given)
        except ConfigError:
            return None
    return None


def with_credentials(
    given: Any,
    own: Mapping[str, SecretStr],
    config: "RunnableConfig | None" = None,
    schema: type[AgentContext] = AgentContext,
) -> Any:
    """Add the agent's own credentials to a run's context; the run's credentials win.

    Args:
        given: The run's context; None for the context of the surrounding run. A value of another type is returned
            unchanged, to be refused later.
        own: The agent's credentials.
        config: The run's config.
        schema: The agent's own context schema.
    """
    if given is None:
        from graph_agent._compat import surrounding_context  # imports LangGraph, which a run has imported already

        given = coerce_context(surrounding_context(config), schema)
    if given is None:
        return schema(credentials=dict(own))
    if isinstance(given, AgentContext):
        return given.model_copy(update={"credentials": {**own, **given.credentials}})
    if isinstance(given, dict) and isinstance(credentials := given.get("credentials", {}), Mapping):
        return {**given, "credentials": {**own, **credentials}}
    return given


def effective_config(
    built: LoopConfig,
    given: Any,
    schema: type[AgentContext] = AgentContext,
    changed: Mapping[str, Any] | None = None,
    approve: Sequence[str] = (),
) -> LoopConfig:
    """Apply a run's context to the configuration that the graph was built with.

    Args:
        built: The agent's configuration.
        given: The run's context.
        schema: The agent's own context schema.
        changed: Fields changed by `Session.configure`, which win.
        approve: Approval patterns of the input's first run.

    Raises:
        ConfigError: When a value is not valid in this version, or the agent has no node for approvals.
    """
    context = coerce_context(given, schema)
    own = {} if context is None else set_fields(context)
    values = {**own, **(changed or {})}
    if approve or values.get("approve"):
        added = tuple(dict.fromkeys([*approve, *own.get("approve", ()), *(changed or {}).get("approve", ())]))
        if built.approve is None:
            raise ConfigError(
                f"approve={list(added)!r}: this agent was built without approvals, so its calls cannot wait for a "
                "person. Build it with approve=[] in its configuration."
            )
        # Added, because a caller must not remove the agent's own approvals.
        values["approve"] = (*built.approve, *added)
    else:
        values.pop("approve", None)
    if built.offload_over_chars is None:
        # A context may be shared by several agents of one graph; this agent has no tool to read offloaded output.
        values.pop("offload_over_chars", None)
    return built.with_values(values)


def set_fields(context: AgentContext) -> dict[str, Any]:
    """Return the fields of `LoopConfig` that a context sets, with their values."""
    return {name: value for name in LoopConfig.model_fields if (value := getattr(context, name)) is not None}
