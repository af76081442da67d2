"""Defines `LoopConfig`, the configuration of an agent's loop."""

# No postponed evaluation of annotations: pydantic would compile the text of each field's annotation.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from graph_agent._internal.validation_text import CheckedModel, describe_fields
from graph_agent.approvals.policy import Rule, signature_fault
from graph_agent.types import Call

ToolCalling = Literal["auto", "native", "text", "wave"]
OnLimit = Literal["answer", "message"]
OnFailure = Literal["answer", "raise"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""The values of OpenAI's API; a model may support fewer."""
Finalize = Literal["auto", "compose", "direct"]
Planner = Literal["wave", "dag"]


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a number, as metadata of its field."""

    name: str


class Price(BaseModel):
    """Price of a model, per million tokens, in any one currency."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, json_schema_extra=describe_fields)

    input: NonNegativeFloat
    """Input tokens."""
    output: NonNegativeFloat
    """Output tokens."""
    cached_input: NonNegativeFloat | None = None
    """Input tokens from the provider's prompt cache; None if they cost as much as others."""


if TYPE_CHECKING:
    # The values that a constructor accepts, which pydantic converts to the types below.
    Texts = tuple[str, ...] | list[str]
    ApprovalPatterns = Texts
    Prices = dict[str, Price] | dict[str, Any]
    FallbackModels = tuple[Any, ...] | list[Any]
    ApprovalRules = Sequence[Rule] | Callable[[Call], Any]
else:
    Texts = tuple[str, ...]
    ApprovalPatterns = tuple[Annotated[str, Field(min_length=1)], ...]
    Prices = dict[str, Price]
    FallbackModels = tuple[Annotated[Any, WithJsonSchema({"type": "string"})], ...]
    # A file can only hold patterns.
    ApprovalRules = Annotated[
        tuple[Any, ...], WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
    ]


class LoopConfig(CheckedModel):
    """Configuration of one agent's loop. Frozen, complete, and checked once, at construction.

    Raises:
        ConfigError: On an unknown field, a value out of range, or values that do not fit together.
    """

    model_config = ConfigDict(json_schema_extra=describe_fields)

    max_steps: Annotated[PositiveInt, Unit("plans")] = 5
    """Plans per input, tested after the wave."""
    max_turns: Annotated[PositiveInt, Unit("model calls")] | None = None
    """Phase-1 model calls per session; None for no limit."""
    on_limit: OnLimit = "answer"
    """At a limit: the sentence that names it and a best-effort answer, or the sentence alone."""
    on_failure: OnFailure = "answer"
    """The outcome of a failed input: a message that names the failure and the work done, or a `RunFailedError`.

    The error is raised after the graph has ended: the session holds the message, and its status is `FAILED`.
    """
    tool_calling: ToolCalling = "auto"
    """How the model is asked for calls; `auto` reads the model's profile, offline."""
    tool_calling_default: Literal["native", "text"] = "native"
    """The mode of `auto` for a model without a profile."""
    finalize: Finalize = "auto"
    """Which reply is the answer.

    `auto`: a planning reply without calls; if it is the sentinel `No more actions.`, a second model call. `compose`:
    always the second call. `direct`: as `auto`, but the prompt does not mention the sentinel.
    """
    max_parallel_calls: Annotated[PositiveInt, Unit("calls")] = 16
    """Calls in flight in one run; a caller's `max_concurrency` can only lower it."""
    tool_timeout_s: Annotated[PositiveFloat, Unit("seconds")] | None = 300
    """Seconds one call may run, counted from its start; None for no limit."""
    delegate_timeout_s: Annotated[PositiveFloat, Unit("seconds")] | None = None
    """Seconds one delegation may run, in this process or on another; None for those of `tool_timeout_s`."""
    deadline_s: Annotated[PositiveFloat, Unit("seconds")] | None = None
    """Working seconds of the whole input, without the time it waits for a person; None for no limit."""
    max_tokens_total: Annotated[PositiveInt, Unit("tokens")] | None = None
    """Tokens for the whole input, delegates' included; None for no limit."""
    max_cost: Annotated[PositiveFloat, Unit("currency of `prices`")] | None = None
    """Cost of the whole input, delegates' included, in the currency of `prices`; None for no limit."""
    prices: Prices = Field(default={})
    """Model name, or a prefix of one → its price; required for `max_cost`."""
    answer_reserve: Annotated[float, Unit("share")] = Field(default=0.1, ge=0, lt=1)
    """Share of the deadline, token and cost budgets that is reserved for the answer."""
    effect_ledger: bool = False
    """Whether each call that may write is recorded in the checkpointer's storage right before it runs."""
    max_output_chars: Annotated[int, Unit("characters")] = Field(default=30_000, ge=100)
    """Characters of one tool output shown to the model; some kinds of tools have their own limits."""
    max_output_lines: Annotated[int, Unit("lines")] = Field(default=256, ge=2)
    """Lines of one tool output shown to the model; some kinds of tools have their own limits."""
    offload_over_chars: Annotated[PositiveInt, Unit("characters")] | None = None
    """Characters above which the model gets head and tail and a tool to read the rest; None for never.

    A run's context can change the number only if the agent was built with one, because the tool is added at build time.
    """
    loop_detection: bool = True
    """Whether repeating calls are reported to the model, then withheld, then end the input."""
    loop_window: Annotated[int, Unit("calls")] = Field(default=10, ge=2)
    """Number of the newest calls of an input that are searched for a repeating pattern."""
    loop_max_period: Annotated[PositiveInt, Unit("calls")] = 3
    """Length of the longest repeating pattern that counts as a loop, in calls."""
    context_window: Annotated[PositiveInt, Unit("tokens")] | None = None
    """Tokens that the model can read in one request; None to use the model's profile."""
    summarize_at: Annotated[float, Unit("share")] | None = Field(default=0.75, gt=0, le=1)
    """Share of the context window from which on the model summarizes the older part of the conversation.

    Requests then hold the summary in place of that part; the history keeps everything. None for never. It has no effect
    for a model whose context window is unknown: a request that its provider refuses as too long is then shortened.
    """
    max_delegation_depth: Annotated[NonNegativeInt, Unit("levels")] = 1
    """Depth to which delegations may nest; 0 forbids them."""
    context_messages: Annotated[NonNegativeInt, Unit("messages")] = 6
    """Messages of the conversation that a delegate gets with its task."""
    model: str | None = Field(default=None, min_length=1)
    """A `provider:name` that replaces the agent's model; None for the agent's own."""
    model_retries: Annotated[NonNegativeInt, Unit("attempts")] = 3
    """Further attempts after a transient model error, before the first token only."""
    model_timeout_s: Annotated[PositiveFloat, Unit("seconds")] | None = 120
    """Seconds to the first token of a model's reply and between its tokens; None for no limit.

    For a reply that is not streamed, the seconds to its end.
    """
    model_total_timeout_s: Annotated[PositiveFloat, Unit("seconds")] | None = None
    """Seconds one model request may take in total; None for no limit."""
    fallback_models: FallbackModels = ()
    """Names or chat models to try in order when the previous one stays unavailable, for the rest of the input."""
    reasoning_effort: ReasoningEffort | None = None
    """Passed to every model call of the loop; None leaves it to the provider."""
    temperature: NonNegativeFloat | None = None
    """Passed to every model call of the loop; None leaves it to the provider."""
    max_output_tokens: Annotated[PositiveInt, Unit("tokens")] | None = None
    """Tokens of one model reply; None leaves it to the provider."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """Passed to every model call of the loop; None leaves it to the provider."""
    stop: Texts | None = None
    """Stop sequences, passed to every model call of the loop; None leaves it to the provider."""
    planner: Planner = "wave"
    """Structured planning one wave at a time, or all waves up front (`dag`); for `tool_calling="wave"`."""
    rollout: Annotated[float, Unit("share")] | None = Field(default=None, ge=0, le=1)
    """Share of sessions, by a stable hash of the id, that use planner `wave`; the rest use `dag`. None for no split."""
    max_calls_per_wave: Annotated[PositiveInt, Unit("calls")] = 64
    """Calls that one reply may run. A larger structured plan is sent back; of any other reply the first ones run."""
    plan_cache_ttl_s: Annotated[PositiveInt, Unit("seconds")] | None = None
    """Seconds a plan may be reused from the agent's cache for an identical request; None for never."""
    max_agentic_loops: Annotated[NonNegativeInt, Unit("reruns")] = 3
    """Reruns of the model that hooks may request per input; 0 forbids them."""
    approve: ApprovalRules | None = None
    """Calls that a person must approve, in addition to tools with the mark `approve`; None for no others.

    Each item is a pattern such as `write_*` or `delegate_to_bank` (`*`, `?` and `[…]`, as for file names), or a
    function of the call, which may be asynchronous; see the guide on approvals. A single item needs no list. With an
    empty list, only tools with the mark and patterns of a run's context select calls. A run's context can only add
    patterns.
    """

    @field_validator("fallback_models")
    @classmethod
    def _no_empty_model(cls, models: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(model is None or model == "" for model in models):
            raise ValueError("each is a 'provider:name' or a chat model; one of them is empty")
        return models

    @field_validator("approve", mode="before")
    @classmethod
    def _approval_rules(cls, given: Any) -> Any:
        rules = [given] if isinstance(given, str) or callable(given) else given
        for rule in rules if isinstance(rules, list | tuple) else ():
            if not (callable(rule) or (isinstance(rule, str) and rule)):
                raise ValueError(f"each item is a pattern of call names or a function of the call, not {rule!r}")
            if callable(rule) and (fault := signature_fault(rule)) is not None:
                raise ValueError(fault)
        return rules

    @model_validator(mode="after")
    def _prices_for_a_cost(self) -> Self:
        if self.max_cost is not None and not self.prices:
            raise ValueError("max_cost needs prices, e.g. prices={'gpt-4o-mini': {'input': 0.15, 'output': 0.6}}")
        return self

    @model_validator(mode="after")
    def _planner_of_structured_plans(self) -> Self:
        if self.tool_calling != "wave" and (self.rollout is not None or self.planner != "wave"):
            given = f"planner={self.planner!r}" if self.rollout is None else f"rollout={self.rollout:g}"
            raise ValueError(f"{given} is for structured plans; set tool_calling='wave' as well")
        return self

    @property
    def approval_rules(self) -> tuple[Rule, ...]:
        """The rules of `approve`; empty if it is None."""
        return cast("tuple[Rule, ...]", self.approve or ())

    def model_options(self) -> tuple[tuple[str, Any], ...]:
        """Return the options of every model call, under LangChain's names; unset options are left out."""
        options = {
            "temperature": self.temperature,
            "reasoning_effort": self.reasoning_effort,
            "max_tokens": self.max_output_tokens,
            "top_p": self.top_p,
            "stop": self.stop,
        }
        return tuple((name, value) for name, value in options.items() if value is not None)

    def with_values(self, values: Mapping[str, Any]) -> "LoopConfig":
        """Return this configuration with some fields replaced, validated again.

        Raises:
            ConfigError: When the result is not a valid configuration.
        """
        if not values:
            return self
        if values.get("tool_calling", "wave") != "wave":
            values = {"planner": "wave", "rollout": None, **values}
        # Field by field: `model_dump` would serialize the chat models.
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **values})
