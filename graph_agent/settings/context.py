"""Defines the context of one run: overrides of the loop's configuration, and credentials."""

# No postponed evaluation of annotations: pydantic would compile the text of each field's annotation.

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    SecretStr,
)
from typing_extensions import is_typeddict

from graph_agent._internal.validation_text import CheckedModel
from graph_agent.errors import ConfigError
from graph_agent.settings.config import (
    ApprovalPatterns,
    FallbackModels,
    Finalize,
    LoopConfig,
    OnFailure,
    OnLimit,
    Planner,
    Prices,
    ReasoningEffort,
    Texts,
    ToolCalling,
)

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

_OWN = "graph_agent"
"""Key of the run's own settings in the context of an agent with the user's own context class."""


class AgentContext(CheckedModel):
    """The graph's `context_schema`: the fields of `LoopConfig`, all optional, and the run's credentials.

    A field left out, or None, keeps the value the agent was built with. Fields of `LoopConfig` have the
    same meaning here. Subclass it to add fields, and pass the subclass as `context_schema=`.

    Raises:
        ConfigError: On an unknown field, or an invalid value.
    """

    _described_as: ClassVar[str] = "context ({})"

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
    delegate_timeout_s: PositiveFloat | None = None
    deadline_s: PositiveFloat | None = None
    max_tokens_total: PositiveInt | None = None
    max_cost: PositiveFloat | None = None
    prices: Prices | None = None
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
    fallback_models: FallbackModels | None = None
    reasoning_effort: ReasoningEffort | None = None
    temperature: NonNegativeFloat | None = None
    max_output_tokens: PositiveInt | None = None
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop: Texts | None = None
    planner: Planner | None = None
    rollout: float | None = Field(default=None, ge=0, le=1)
    max_calls_per_wave: PositiveInt | None = None
    plan_cache_ttl_s: PositiveInt | None = None
    max_agentic_loops: NonNegativeInt | None = None
    approve: ApprovalPatterns | None = Field(
        default=None, description="Patterns of calls that a person must approve, in addition to the agent's own."
    )


class RunContext(AgentContext):
    """The context of a run whose agent has a class of the user as its `context_schema`: settings, and its object.

    The user's code receives the object. With `get_runtime`, it receives this one, which has the object's attributes.
    """

    _user: Any = PrivateAttr(default=None)

    def __getattr__(self, name: str) -> Any:
        user = (object.__getattribute__(self, "__pydantic_private__") or {}).get("_user")
        if not name.startswith("_") and hasattr(user, name):
            return getattr(user, name)
        return super().__getattr__(name)  # type: ignore[misc]  # pydantic hides it from type checkers

    def __getitem__(self, name: str) -> Any:
        return self._user[name]


def field_names(schema: Any) -> frozenset[str]:
    """Return the fields of a pydantic class, a dataclass or a `TypedDict` class.

    Raises:
        ConfigError: For anything else.
    """
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return frozenset(schema.model_fields)
    if isinstance(schema, type) and dataclasses.is_dataclass(schema):
        return frozenset(each.name for each in dataclasses.fields(schema))
    if is_typeddict(schema):
        return frozenset(schema.__annotations__)
    raise ConfigError(f"context_schema={schema!r}: give a dataclass, a pydantic class or a TypedDict class.")


def run_context(given: Any, schema: Any) -> AgentContext:
    """Return the context of a run of an agent whose `context_schema` is a class of the user.

    Args:
        given: An object of that class, an `AgentContext`, or a mapping: of fields of the class, and of those fields of
            `AgentContext` that the class does not have. The key `graph_agent` may hold a mapping of any of the latter.
        schema: The class.

    Raises:
        ConfigError: When it is none of these, or a field is unknown, missing or invalid.
    """
    if isinstance(given, AgentContext):
        return given
    user, own = given, dict[str, Any]()
    if isinstance(given, Mapping):
        names = field_names(schema)
        fields = {name: value for name, value in given.items() if name in names}
        own = {name: value for name, value in given.items() if name not in names and name != _OWN}
        own |= {} if _OWN in names else given.get(_OWN, {})
        try:
            user = schema(**fields) if fields or not own else None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"context: no {schema.__name__} can be made of it: {error}") from error
    elif not (isinstance(schema, type) and not is_typeddict(schema) and isinstance(given, schema)):
        raise ConfigError(
            f"context: got a {type(given).__name__}; pass a {schema.__name__}, or a mapping of its fields."
        )
    context = RunContext(**own)
    context._user = user
    return context


def user_context(context: Any) -> Any:
    """Return the context as the user's code receives it."""
    return context._user if isinstance(context, RunContext) else context


def checked_context(given: Any, *, own: bool = True) -> Any:
    """Return the context that a caller passes to a run, in the form that LangGraph accepts.

    Args:
        given: The context.
        own: Whether the agent's `context_schema` is `AgentContext` or a subclass; the run checks any other.

    Raises:
        ConfigError: When it is neither an `AgentContext` nor a mapping of its fields.
    """
    if given is None or isinstance(given, AgentContext) or not own:
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
        values["approve"] = (*built.approval_rules, *added)
    else:
        values.pop("approve", None)
    if built.offload_over_chars is None:
        # A context may be shared by several agents of one graph; this agent has no tool to read offloaded output.
        values.pop("offload_over_chars", None)
    return built.with_values(values)


def set_fields(context: AgentContext) -> dict[str, Any]:
    """Return the fields of `LoopConfig` that a context sets, with their values."""
    return {name: value for name in LoopConfig.model_fields if (value := getattr(context, name)) is not None}
