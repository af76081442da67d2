"""Limits and switches of the loop: what an agent is built with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from graph_agent._internal.attribute_docs import described
from graph_agent._internal.validation_text import explain
from graph_agent.errors import ConfigError

ToolCalling = Literal["auto", "native", "text", "wave"]
OnLimit = Literal["answer", "message"]
OnFailure = Literal["answer", "raise"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""What OpenAI's API takes; a model may know fewer."""
Finalize = Literal["auto", "compose", "direct"]
Planner = Literal["wave", "dag"]
FallbackModel = Annotated[Any, WithJsonSchema({"type": "string"})]
"""A `provider:name`, or a chat model; which objects are chat models is found when the agent is built."""


@described
class Price(BaseModel):
    """What a model costs, per million tokens, in any one currency."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    input: NonNegativeFloat
    """Tokens that the model reads."""
    output: NonNegativeFloat
    """Tokens that it writes."""
    cached_input: NonNegativeFloat | None = None
    """Tokens that it reads from its provider's prompt cache; None where they cost as much as others."""


@described
class LoopConfig(BaseModel):
    """How one agent's loop behaves. Frozen, complete, and checked once, at construction.

    Raises:
        ConfigError: On an unknown field, a value out of range, or values that do not fit together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    max_steps: PositiveInt = 5
    """Plans per input, tested after the wave."""
    max_turns: PositiveInt | None = None
    """Phase-1 model calls per session; None for no limit."""
    on_limit: OnLimit = "answer"
    """At a limit: a best-effort answer under the sentence that names it, or the sentence alone."""
    on_failure: OnFailure = "answer"
    """What an input that fails comes to: a message that says what failed and what was done, or a `RunFailedError`.

    The error is raised when the graph has run to its end: the session holds the message, and its status is `FAILED`.
    """
    tool_calling: ToolCalling = "auto"
    """How calls are asked for; `auto` reads the model's profile, offline."""
    tool_calling_default: Literal["native", "text"] = "native"
    """What `auto` takes for a model that says nothing of itself."""
    finalize: Finalize = "auto"
    """Which reply is the answer.

    `auto`: a planning reply without calls; where it is the sentinel `No more actions.`, a second model call. `compose`:
    always the second call. `direct`: as `auto`, and the model is not told of the sentinel.
    """
    max_parallel_calls: PositiveInt = 16
    """Calls in flight in one run; a caller's `max_concurrency` can only lower it."""
    tool_timeout_s: PositiveFloat | None = 300
    """Seconds one call may run, counted from its start; None for no limit."""
    deadline_s: PositiveFloat | None = None
    """Seconds that the whole input may be worked on, waiting for a person not counted; None for no limit."""
    max_tokens_total: PositiveInt | None = None
    """Tokens for the whole input, delegates' included; None for no limit."""
    max_cost: PositiveFloat | None = None
    """Cost of the whole input, delegates' included, in the currency of `prices`; None for no limit."""
    prices: dict[str, Price] = {}
    """Model name, or the beginning of one → its price; needed for `max_cost`."""
    answer_reserve: float = Field(0.1, ge=0, lt=1)
    """Share of each of these three budgets that is kept back for the answer."""
    effect_ledger: bool = False
    """Whether each call that may write is noted as started, in the checkpointer's own storage, right before it runs."""
    max_output_chars: int = Field(30_000, ge=100)
    """Characters of one tool output shown to the model; some kinds of tools have their own (see `output_limits`)."""
    max_output_lines: int = Field(256, ge=2)
    """Lines of one tool output shown to the model; some kinds of tools have their own."""
    offload_over_chars: PositiveInt | None = None
    """Characters above which the model gets head and tail and a tool to read the rest; None for never.

    A run's context can change the number, for an agent that was built with one: the tool is offered or it is not.
    """
    loop_detection: bool = True
    """Whether calls that repeat are reported to the model, withheld, and end the input."""
    loop_window: int = Field(10, ge=2)
    """The last calls of an input that are searched for a repeating pattern."""
    loop_max_period: PositiveInt = 3
    """Longest repeating pattern that counts as a loop, in calls."""
    max_delegation_depth: NonNegativeInt = 1
    """How many delegations may nest; 0 forbids them."""
    context_messages: NonNegativeInt = 6
    """Messages of the conversation a delegate is given beside its task."""
    model: str | None = Field(None, min_length=1)
    """A `provider:name` that takes the place of the agent's model; None for the agent's own."""
    model_retries: NonNegativeInt = 3
    """Further attempts after a transient model error, before the first token only."""
    model_timeout_s: PositiveFloat | None = 120
    """Seconds to the first token of a model's reply and between its tokens; None for no limit.

    A reply that is not streamed has these seconds for the whole of it.
    """
    model_total_timeout_s: PositiveFloat | None = None
    """Seconds one model request may take in all, however its tokens come; None for no limit."""
    fallback_models: tuple[FallbackModel, ...] = ()
    """Models asked in order, for the rest of the input, when the one before stays unavailable: names or chat models."""
    reasoning_effort: ReasoningEffort | None = None
    """Passed to every model call of the loop; None leaves it to the provider."""
    temperature: NonNegativeFloat | None = None
    """Passed to every model call of the loop; None leaves it to the provider."""
    max_output_tokens: PositiveInt | None = None
    """Tokens of one model reply; None leaves it to the provider."""
    top_p: float | None = Field(None, ge=0, le=1)
    """Passed to every model call of the loop; None leaves it to the provider."""
    stop: tuple[str, ...] | None = None
    """Texts that end a model's reply, passed to every model call of the loop; None leaves it to the provider."""
    planner: Planner = "wave"
    """Structured planning one wave at a time, or everything up front (`dag`)."""
    rollout: float | None = Field(None, ge=0, le=1)
    """Share of sessions, by a stable hash of their id, that plan by `wave`, the rest by `dag`; None for no split."""
    max_calls_per_wave: PositiveInt = 64
    """Calls in one wave of structured planning; a larger plan goes back to the model."""
    plan_cache_ttl_s: PositiveInt | None = None
    """Seconds a plan may be taken from the agent's cache for the very same request; None for never."""
    max_agentic_loops: NonNegativeInt = 3
    """Times that hooks may have the model asked again for one input; 0 for never."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, type(self).__name__, type(self))) from None

    @field_validator("fallback_models")
    @classmethod
    def _no_empty_model(cls, models: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(model is None or model == "" for model in models):
            raise ValueError("each is a 'provider:name' or a chat model; one of them is empty")
        return models

    @model_validator(mode="after")
    def _prices_for_a_cost(self) -> Self:
        if self.max_cost is not None and not self.prices:
            raise ValueError("max_cost needs prices, e.g. prices={'gpt-4o-mini': {'input': 0.15, 'output': 0.6}}")
        return self

    def model_options(self) -> tuple[tuple[str, Any], ...]:
        """The options that reach every model call, under LangChain's names; those left to the provider are left out."""
        options = {
            "temperature": self.temperature,
            "reasoning_effort": self.reasoning_effort,
            "max_tokens": self.max_output_tokens,
            "top_p": self.top_p,
            "stop": self.stop,
        }
        return tuple((name, value) for name, value in options.items() if value is not None)

    def with_values(self, values: Mapping[str, Any]) -> LoopConfig:
        """This configuration with some fields replaced, and checked again.

        Raises:
            ConfigError: When the result is not a valid configuration.
        """
        if not values:
            return self
        # Field by field: a dump would take the chat models apart.
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **values})
