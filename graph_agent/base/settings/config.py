"""Configures an agent's loop, and overrides the configuration for one run by its context."""

# No postponed evaluation of annotations: pydantic would compile the text of each field's annotation.

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    SecretStr,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from typing_extensions import is_typeddict

from graph_agent.base._internal.validation_text import CheckedModel, describe_fields
from graph_agent.base.errors import ConfigError
from graph_agent.base.settings.approval_rule import ApprovalRule, signature_fault
from graph_agent.base.settings.candidates import Candidates, Choose, NumberOfCandidates, PlanChooser
from graph_agent.base.settings.speculation import SpeculationBudget
from graph_agent.base.types import Call

ToolCalling = Literal["auto", "native", "text", "wave"]
StructuredOutput = Literal["auto", "schema", "prompt"]
OnTainted = Literal["ask", "deny", "allow"]
OnLimit = Literal["answer", "message"]
OnFailure = Literal["answer", "raise"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Values of `reasoning_effort` in OpenAI's API; a model may support fewer."""
Finalize = Literal["auto", "compose", "direct"]
Dispatch = Literal["whole", "streamed"]
Predict = Literal[False, True, "table"]
Planner = Literal["wave", "dag"]
_OPTIONS = ("temperature", "reasoning_effort", "max_tokens", "top_p", "stop")
"""LangChain's names of the options of a model call."""
_NO_OPTIONS = (None,) * len(_OPTIONS)
_RECORDED_CHARS = 100_000


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of a numeric setting, kept in the field's metadata for the documentation."""

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
    provider_calls: dict[str, NonNegativeFloat] = Field(default={})
    """Name of a tool that the provider runs, such as `web_search` → price of one call, not of a million."""


if TYPE_CHECKING:
    # The values that a constructor accepts, which pydantic converts to the types below.
    Texts = tuple[str, ...] | list[str]
    ApprovalPatterns = Texts
    Prices = dict[str, Price] | dict[str, Any]
    ModelRules = Mapping[str, Mapping[str, Any]]
    FallbackModels = tuple[Any, ...] | list[Any]
    ApprovalRules = Sequence[ApprovalRule] | Callable[[Call], Any]
else:
    Texts = tuple[str, ...]
    ApprovalPatterns = tuple[Annotated[str, Field(min_length=1)], ...]
    Prices = dict[str, Price]
    ModelRules = dict[str, dict[str, Any]]
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
    removed_fields: ClassVar[Mapping[str, str]] = {
        "tool_calling_default": "set 'tool_calling', or the entry 'tool_calling' of the model's profile.",
        "max_rounds": "its name is 'max_steps'.",
    }

    max_steps: Annotated[PositiveInt, Unit("plans")] = 5
    """Maximum plans of the model for one input; it is checked after each parallel batch of calls."""
    max_turns: Annotated[PositiveInt, Unit("model calls")] | None = None
    """Maximum model calls for planning in one session, over all its inputs; None for no limit."""
    on_limit: OnLimit = "answer"
    """At a limit: `answer` gives a sentence that names it and a best-effort answer, `message` the sentence alone."""
    on_failure: OnFailure = "answer"
    """The end of a failed input: `answer`, a message that names the failure and the work done; `raise`, a
    `RunFailedError`.

    The error is raised after the graph has ended: the session holds the message, and its status is `FAILED`.
    """
    tool_calling: ToolCalling = "auto"
    """How the model calls tools: `native`, `text` in its reply, `wave` by a plan in JSON, or `auto` by its profile."""
    structured_output: StructuredOutput = "auto"
    """How a reply in JSON is asked for: calls in text, a structured plan, or an answer with a `response_format`.

    `schema`: by a JSON schema, which the model's server enforces. `prompt`: by the instructions alone. `auto`: by a
    schema where the model's profile or its provider is known to enforce one, and where nothing is known and a refusal
    costs no tokens. A server that refuses or ignores the schema is asked by the instructions from then on.
    """
    dispatch: Dispatch = "whole"
    """When the calls of a plan begin: `whole`, once the reply is complete; `streamed`, those that only read as soon as
    each is complete in the stream. For agents without hooks on replies; in text mode, for calls that are JSON."""
    predict: Predict = False
    """What begins before it is asked for: `table`, reading calls that followed in earlier inputs; True, also the next
    plan, while the slowest call runs. Not with hooks on replies. A run's context cannot set it."""
    # Constructed without validation, which would compile the class at each start.
    speculation_budget: SpeculationBudget = SpeculationBudget.model_construct()
    """What one input may spend on calls that begin early and on predicted plans, as far as no plan uses them."""
    candidates: Annotated[Candidates, Unit("requests")] = 1
    """Requests for each plan that are sent at once: their number, or a list of `Candidate`, which may differ. One of
    the plans is taken, and all are in its event. A run's context can only set a number."""
    choose: PlanChooser = "agreed"
    """The plan that is taken of several candidates: `agreed`, that of most of them; `cheapest`, that of the fewest
    tokens; or the choice of a `PlanJudge` or of a function, which a run's context cannot set."""
    finalize: Finalize = "auto"
    """Which reply is the answer.

    `auto`: a planning reply without calls; if it is the sentinel `No more actions.`, a second model call composes it.
    `compose`: always the second call. `direct`: the planning reply, and the prompt does not mention the sentinel.
    """
    stream_before_guards: bool = False
    """Whether answers are streamed before hooks and middleware that may replace them have seen the whole text.

    A streamed text that one of them replaces becomes the text of a plan, with a `warning` event. By default, the answer
    of an agent with such a hook is streamed in one piece. A run's context cannot set it.
    """
    max_parallel_calls: Annotated[PositiveInt, Unit("calls")] = 16
    """Calls of one parallel batch that run at once; a caller's `max_concurrency` can only lower it."""
    tool_timeout_s: Annotated[PositiveFloat, Unit("seconds")] | None = 300
    """Seconds that one attempt of a call may run, counted from its start; None for no limit."""
    delegate_timeout_s: Annotated[PositiveFloat, Unit("seconds")] | None = None
    """Seconds that one delegation may run, in this process or elsewhere; None for the value of `tool_timeout_s`."""
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
    """Whether each call that may write is recorded by the checkpointer before it runs, so that no resume repeats it."""
    record_requests: Annotated[bool | PositiveInt, Unit("characters")] = False
    """Whether the history records what models receive; a number is the maximum length of a message, 100,000 by default.

    Secrets are masked as in logs.
    """
    max_output_chars: Annotated[int, Unit("characters")] = Field(default=30_000, ge=100)
    """Characters of one tool output shown to the model; some kinds of tools have their own limits."""
    max_output_lines: Annotated[int, Unit("lines")] = Field(default=256, ge=2)
    """Lines of one tool output shown to the model; some kinds of tools have their own limits."""
    offload_over_chars: Annotated[PositiveInt, Unit("characters")] | None = None
    """Characters above which the model gets head and tail and a tool to read the rest; None for never.

    A run's context can change the number only if the agent was built with one, because the tool is added at build time.
    """
    loop_detection: bool = True
    """Whether repeated calls are reported to the model; if they go on, their tools are withheld, then planning ends."""
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
    """Levels to which delegations may nest: 1 lets the agent delegate and its delegates not; 0 forbids delegations."""
    context_messages: Annotated[NonNegativeInt, Unit("messages")] = 6
    """Number of the conversation's last messages, as text, that a delegate gets with its task."""
    model: str | None = Field(default=None, min_length=1)
    """A `provider:name` that replaces the model given to the agent; None to keep it."""
    model_retries: Annotated[NonNegativeInt, Unit("attempts")] = 3
    """Further attempts after a transient model error before the first token; none after `model_timeout_s`."""
    model_timeout_s: Annotated[PositiveFloat, Unit("seconds")] | None = 120
    """Seconds to the first token of a model's reply and between its tokens; None for no limit.

    Requests to a provider are streamed also without a reader. For a reply that cannot be streamed, these are the
    seconds to its end. After a timeout, the next fallback is asked, and the same address is not asked again.
    """
    model_total_timeout_s: Annotated[PositiveFloat, Unit("seconds")] | None = None
    """Seconds one model request may take in total, without waits for its reader; None for no limit."""
    fallback_models: FallbackModels = ()
    """Names or chat models to try in order when the previous one stays unavailable, for the rest of the input."""
    model_rules: ModelRules = Field(default={})
    """What the endpoints of models accept, where it differs from what is known of them: model name, the beginning of
    one, or `*` for all → fields of `WireRules`, such as `{"*": {"user_after_tool": False}}`.

    A field that is set is not changed by a refusal.
    """
    reasoning_effort: ReasoningEffort | None = None
    """How much a reasoning model thinks, for every model call of the loop; None leaves it to the provider."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature of every model call of the loop; None leaves it to the provider."""
    max_output_tokens: Annotated[PositiveInt, Unit("tokens")] | None = None
    """Maximum tokens of one model reply; None leaves it to the provider."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """Share of probability to sample from (nucleus sampling) in every model call; None leaves it to the provider."""
    stop: Texts | None = None
    """Stop sequences of every model call of the loop; None leaves it to the provider.

    They are not sent with a request for JSON by a schema, or for a structured plan: its answer is cut afterwards.
    """
    planner: Planner = "wave"
    """`wave`: one batch of calls a plan; `dag`: all calls up front, which may wait for others. For
    `tool_calling="wave"`."""
    rollout: Annotated[float, Unit("share")] | None = Field(default=None, ge=0, le=1)
    """Share of sessions, by a stable hash of the id, that use planner `wave`; the rest use `dag`. None for no split."""
    max_calls_per_wave: Annotated[PositiveInt, Unit("calls")] = 256
    """Calls that one reply may run. A larger structured plan is sent back; of any other reply the first ones run."""
    plan_cache_ttl_s: Annotated[PositiveInt, Unit("seconds")] | None = None
    """Seconds a plan may be reused from the agent's cache for an identical request; None for never."""
    max_agentic_loops: Annotated[NonNegativeInt, Unit("reruns")] = 3
    """Number of times per input that hooks may have the model asked again; 0 forbids it."""
    approve: ApprovalRules | None = None
    """Calls that a person must approve, in addition to tools with the mark `approve`; None for no others.

    Each item is a pattern such as `write_*` or `delegate_to_bank` (`*`, `?` and `[…]`, as for file names), or a
    function of the call, which may be asynchronous; see the guide on approvals. A single item needs no list. With an
    empty list, only tools with the mark and patterns of a run's context select calls. A run's context can only add
    patterns.
    """
    origins: bool = False
    """Whether events and approval requests have the origin of each argument of a call: where the model has it from.

    A run's context cannot set it.
    """
    on_tainted: OnTainted = "ask"
    """For a call whose argument is one of its tool's `sinks` and comes from untrusted text, if `origins` is set.

    `ask` a reviewer, or refuse the call if there is no checkpointer; `deny` it, so that the model gets an error;
    `allow` it, and only record it. A run's context cannot set it.
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
        if isinstance(given, bool):
            raise ValueError("it takes names or patterns of tools; '*' selects all of them")
        rules = [given] if isinstance(given, str) or callable(given) else given
        for rule in rules if isinstance(rules, list | tuple) else ():
            if not (callable(rule) or (isinstance(rule, str) and rule)):
                raise ValueError(f"each item is a pattern of call names or a function of the call, not {rule!r}")
            if callable(rule) and (fault := signature_fault(rule)) is not None:
                raise ValueError(fault)
        return rules

    @model_validator(mode="after")
    def _prices_for_a_cost(self) -> Self:
        limits = {"max_cost": self.max_cost, "speculation_budget.cost": self.speculation_budget.cost}
        if not self.prices and (limited := [name for name, limit in limits.items() if limit is not None]):
            example = "prices={'gpt-4o-mini': {'input': 0.15, 'output': 0.6}}"
            raise ValueError(f"{limited[0]} needs prices, e.g. {example}")
        return self

    @model_validator(mode="after")
    def _planner_of_structured_plans(self) -> Self:
        if self.tool_calling != "wave" and (self.rollout is not None or self.planner != "wave"):
            given = f"planner={self.planner!r}" if self.rollout is None else f"rollout={self.rollout:g}"
            raise ValueError(f"{given} is for structured plans; set tool_calling='wave' as well")
        return self

    @property
    def approval_rules(self) -> tuple[ApprovalRule, ...]:
        """The rules in `approve`; empty if it is None."""
        return cast("tuple[ApprovalRule, ...]", self.approve or ())

    @property
    def recorded_chars(self) -> int:
        """Maximum characters of a message or tool in a recorded request; 0 if requests are not recorded."""
        return _RECORDED_CHARS if self.record_requests is True else int(self.record_requests)

    def rules_of(self, *names: str) -> dict[str, Any]:
        """Return the fields of `WireRules` that `model_rules` sets for a model with these names; may be empty.

        A key applies if it is `*` or the beginning of one of the names. If several set a field, the longest key wins.
        """
        matches = [key for key in self.model_rules if key == "*" or any(name.startswith(key) for name in names)]
        return {
            field: value
            for key in sorted(matches, key=lambda key: 0 if key == "*" else len(key))
            for field, value in self.model_rules[key].items()
        }

    def model_options(self) -> tuple[tuple[str, Any], ...]:
        """Return the options of every model call, as pairs of LangChain's name and value; unset ones are omitted."""
        values = (self.temperature, self.reasoning_effort, self.max_output_tokens, self.top_p, self.stop)
        # Read for each request, and seldom set.
        if values == _NO_OPTIONS:
            return ()
        return tuple((name, value) for name, value in zip(_OPTIONS, values, strict=True) if value is not None)

    def with_values(self, values: Mapping[str, Any]) -> "LoopConfig":
        """Return a copy with some fields replaced, validated again; the same object if `values` changes nothing.

        Replacing `tool_calling` by a mode other than `wave` resets `planner` and `rollout`, unless `values` has them.

        Raises:
            ConfigError: The result is not a valid configuration.
        """
        if all(getattr(self, name) is value for name, value in values.items()):
            return self
        if values.get("tool_calling", "wave") != "wave":
            values = {"planner": "wave", "rollout": None, **values}
        # Field by field: `model_dump` would serialize the chat models.
        # Fields that are left out stay unset, so that a server can apply a default of its own to them.
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **values})


_OWN = "graph_agent"
"""Key under which the settings stand in the context of an agent with a user's own context class."""


class AgentContext(CheckedModel):
    """A run's context, the graph's `context_schema`: overrides of `LoopConfig` for this run, and data of the caller.

    A field that is None keeps the value that the agent was built with; fields of `LoopConfig` have the same meaning
    here. Subclass it to add fields, and pass the subclass as `context_schema=`.

    Raises:
        ConfigError: A field is unknown or its value is invalid.
    """

    _described_as: ClassVar[str] = "context ({})"
    removed_fields: ClassVar[Mapping[str, str]] = LoopConfig.removed_fields

    credentials: dict[str, SecretStr] = Field(default={}, description="Secrets by name, for the tools that use them.")
    caller: str | None = Field(
        default=None,
        min_length=1,
        description="The user that the program has authenticated, whose facts the memory holds; never from a model or "
        "a request's body.",
    )
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
    # The servers set it from `parallel_tool_calls` (OpenAI) and `disable_parallel_tool_use` (Anthropic).
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
    structured_output: StructuredOutput | None = None
    dispatch: Dispatch | None = None
    speculation_budget: SpeculationBudget | None = None
    candidates: NumberOfCandidates | None = None
    choose: Choose | None = None
    finalize: Finalize | None = None
    stream_before_guards: bool | None = None
    max_parallel_calls: PositiveInt | None = None
    tool_timeout_s: PositiveFloat | None = None
    delegate_timeout_s: PositiveFloat | None = None
    deadline_s: PositiveFloat | None = None
    max_tokens_total: PositiveInt | None = None
    max_cost: PositiveFloat | None = None
    prices: Prices | None = None
    answer_reserve: float | None = Field(default=None, ge=0, lt=1)
    effect_ledger: bool | None = None
    record_requests: bool | PositiveInt | None = None
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
    model_rules: ModelRules | None = None
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


_IN_CONTEXT = tuple(name for name in LoopConfig.model_fields if name in AgentContext.model_fields)
"""Names of the fields of `LoopConfig` that a run's context may set; others guard the agent from its caller."""


class RunContext(AgentContext):
    """The context of a run of an agent with a user's own context class: settings, and an object of that class.

    Tools and hooks receive the object. Through `get_runtime` they receive this context, which has the object's
    attributes.
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
    """Return the field names of a pydantic class, a dataclass or a `TypedDict` class; raise `ConfigError` otherwise."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return frozenset(schema.model_fields)
    if isinstance(schema, type) and dataclasses.is_dataclass(schema):
        return frozenset(each.name for each in dataclasses.fields(schema))
    if is_typeddict(schema):
        return frozenset(schema.__annotations__)
    raise ConfigError(f"context_schema={schema!r}: give a dataclass, a pydantic class or a TypedDict class.")


def run_context(given: Any, schema: Any) -> AgentContext:
    """Return the context of a run of an agent whose `context_schema` is a user's own class.

    Args:
        given: An object of that class; an `AgentContext`; or a mapping of fields of the class, and of those fields of
            `AgentContext` that the class does not have. Under the key `graph_agent`, a mapping may hold any fields of
            `AgentContext`. The user's object is None if a mapping has only these.
        schema: The user's class.

    Raises:
        ConfigError: `given` is none of these, or a field is unknown, missing or invalid.
    """
    if isinstance(given, AgentContext):
        return given
    user, own = given, dict[str, Any]()
    if isinstance(given, Mapping):
        names = field_names(schema)
        fields = {name: value for name, value in given.items() if name in names}
        own = {name: value for name, value in given.items() if name not in names and name != _OWN}
        own |= {} if _OWN in names else checked_context(given.get(_OWN) or {})
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
    """Return a run's context as the user's code receives it: the object of the user's own class, if the agent has
    one."""
    return context._user if isinstance(context, RunContext) else context


def checked_context(given: Any, *, own: bool = True) -> Any:
    """Return the context that a caller passes to a run in a form that LangGraph accepts; a mapping becomes a dict.

    Args:
        given: The context; None if the caller passes none.
        own: Whether the agent's `context_schema` is `AgentContext` or a subclass. Otherwise the run itself checks
            `given`.

    Raises:
        ConfigError: `given` is neither an `AgentContext` nor a mapping.
    """
    if given is None or isinstance(given, AgentContext) or not own:
        return given
    if isinstance(given, Mapping):
        return dict(given)
    kind = type(given).__name__
    raise ConfigError(f"context: got a {kind}; pass an AgentContext, or a mapping of its fields.")


def coerce_context(given: Any, schema: type[AgentContext] = AgentContext) -> AgentContext | None:
    """Return a run's context as an `AgentContext`: itself, or made by `schema` from a dict; None for anything else.

    None also for a dict that is empty or invalid. LangGraph passes a parent graph's context unchanged.
    """
    if isinstance(given, AgentContext):
        return given
    if isinstance(given, dict) and given:
        try:
            return schema(**given)
        except ConfigError:
            return None
    return None


def effective_config(
    built: LoopConfig,
    given: Any,
    schema: type[AgentContext] = AgentContext,
    changed: Mapping[str, Any] | None = None,
    approve: Sequence[str] = (),
) -> LoopConfig:
    """Return the configuration of a run: the one with which the agent was built, overridden by the run's context.

    Approvals are only added. `stream_before_guards` and `offload_over_chars` are ignored if `built` has them off.

    Args:
        built: The configuration with which the agent was built.
        given: The run's context; one that `coerce_context` does not accept changes nothing.
        schema: Class of the context.
        changed: Fields set by `Session.configure`, which win over the context; None if there are none.
        approve: Approval patterns from the input's first run.

    Raises:
        ConfigError: A value is not valid in this version, or patterns are added to an agent built without approvals.
    """
    context = coerce_context(given, schema)
    own = {} if context is None else set_fields(context)
    # An earlier version may have stored a field that is removed since.
    changed = {name: value for name, value in (changed or {}).items() if name not in LoopConfig.removed_fields}
    values = {**own, **changed}
    if approve or values.get("approve"):
        added = tuple(dict.fromkeys([*approve, *own.get("approve", ()), *changed.get("approve", ())]))
        if built.approve is None:
            raise ConfigError(
                f"approve={list(added)!r}: this agent was built without approvals, so its calls cannot wait for a "
                "person. Build it with approve=[] in its configuration."
            )
        # Added, because a caller must not remove the agent's own approvals.
        values["approve"] = (*built.approval_rules, *added)
    else:
        values.pop("approve", None)
    if not built.stream_before_guards:
        # A caller must not receive what the agent's guards would replace.
        values.pop("stream_before_guards", None)
    if built.offload_over_chars is None:
        # A context may be shared by several agents of one graph; this agent has no tool to read offloaded output.
        values.pop("offload_over_chars", None)
    return built.with_values(values)


def set_fields(context: AgentContext) -> dict[str, Any]:
    """Return the fields of `LoopConfig` that a context sets: name → value."""
    return {name: value for name in _IN_CONTEXT if (value := getattr(context, name)) is not None}
