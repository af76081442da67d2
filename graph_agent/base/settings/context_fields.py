"""Types the keys of a run's context that is passed as a dict, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from pydantic import SecretStr

    from graph_agent.base.settings.candidates import Choose
    from graph_agent.base.settings.config import (
        ApprovalPatterns,
        Dispatch,
        FallbackModels,
        Finalize,
        ModelRules,
        OnFailure,
        OnLimit,
        Planner,
        Prices,
        ReasoningEffort,
        StructuredOutput,
        Texts,
        ToolCalling,
    )
    from graph_agent.base.settings.speculation import SpeculationBudget


class ContextFields(TypedDict, total=False):
    """The fields of `AgentContext`, with the types that type checkers accept for their values in a dict."""

    credentials: dict[str, SecretStr | str]
    caller: str | None
    client_tools: list[dict[str, Any]]
    client_calls: dict[str, str]
    client_tool_choice: str | None
    parallel_client_calls: bool
    instructions: str
    response_schema: dict[str, Any] | None
    max_steps: int | None
    max_turns: int | None
    on_limit: OnLimit | None
    on_failure: OnFailure | None
    tool_calling: ToolCalling | None
    structured_output: StructuredOutput | None
    dispatch: Dispatch | None
    speculation_budget: SpeculationBudget | None
    candidates: int | None
    choose: Choose | None
    finalize: Finalize | None
    stream_before_guards: bool | None
    max_parallel_calls: int | None
    tool_timeout_s: float | None
    delegate_timeout_s: float | None
    deadline_s: float | None
    max_tokens_total: int | None
    max_cost: float | None
    prices: Prices | None
    answer_reserve: float | None
    effect_ledger: bool | None
    record_requests: bool | int | None
    max_output_chars: int | None
    max_output_lines: int | None
    offload_over_chars: int | None
    loop_detection: bool | None
    loop_window: int | None
    loop_max_period: int | None
    context_window: int | None
    summarize_at: float | None
    max_delegation_depth: int | None
    context_messages: int | None
    model: str | None
    model_retries: int | None
    model_timeout_s: float | None
    model_total_timeout_s: float | None
    fallback_models: FallbackModels | None
    model_rules: ModelRules | None
    reasoning_effort: ReasoningEffort | None
    temperature: float | None
    max_output_tokens: int | None
    top_p: float | None
    stop: Texts | None
    planner: Planner | None
    rollout: float | None
    max_calls_per_wave: int | None
    plan_cache_ttl_s: int | None
    max_agentic_loops: int | None
    approve: ApprovalPatterns | None
