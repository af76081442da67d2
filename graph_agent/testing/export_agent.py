"""Derives the agent of a test, of stub tools or of an agent file, from recorded inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graph_agent._internal.text import text_of
from graph_agent.session.built_agent import builder_of
from graph_agent.settings.config import LoopConfig
from graph_agent.state.events import StoredEvent, is_own
from graph_agent.testing.export_script import is_unknown
from graph_agent.testing.python_source import Code
from graph_agent.testing.recording import RecordedInput
from graph_agent.tools.output import effect_text
from graph_agent.types import SessionStatus, is_delegation

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

_COURSE = (
    "max_steps",
    "max_turns",
    "on_limit",
    "max_calls_per_wave",
    "deadline_s",
    "max_tokens_total",
    "max_cost",
    "prices",
    "loop_window",
    "loop_max_period",
    "planner",
)
"""Fields of the agent's configuration that decide on the course of a recorded input."""
_LIMITS = {
    "step_limit": "max_steps",
    "turn_limit": "max_turns",
    "token_limit": "max_tokens_total",
    "cost_limit": "max_cost",
    "deadline": "deadline_s",
}
"""Reason of a limit → the field of the configuration."""


def agent_file_options(inputs: Sequence[RecordedInput], agent: str, *, lost_replies: bool) -> dict[str, Any]:
    """Return the options of `RecordedSession` for the agent of a file.

    Args:
        agent: Path of the file, absolute or relative to the test.
        lost_replies: Whether hooks replaced replies that are not stored; the test then leaves the hooks out.
    """
    options: dict[str, Any] = {"agent": Code.call("Path(__file__).parent.joinpath", [agent])}
    return {**options, **_recursion_limit(inputs), **({"hooks": False} if lost_replies else {})}


def stub_options(
    inputs: Sequence[RecordedInput], graph: CompiledStateGraph[Any, Any, Any, Any] | None
) -> dict[str, Any]:
    """Return the options of `RecordedSession` for an agent of stub tools.

    Args:
        graph: The agent, for its schemas, its marks and its configuration; None to derive them from the inputs.
    """
    builder = builder_of(graph) if graph is not None else None
    schemas: dict[str, Any] = {}
    if builder is not None:
        functions = [each["function"] for each in builder.deps.toolbox.schemas]
        schemas = {each["name"]: each.get("parameters", {}) for each in functions}
    names = [name for name in _called(inputs) if not is_delegation(name)]
    if not names and any(reply.purpose == "plan" for each in inputs for step in each.steps for reply in step.replies):
        names = [*schemas][:1] or ["unused"]  # without a tool, the model is asked for the answer alone
    direct = builder.deps.toolbox.return_direct if builder is not None else _direct(inputs)
    read = _only_read(inputs)
    options: dict[str, Any] = {
        "tools": {name: _brief_schema(schemas.get(name, {})) for name in names},
        "reads": [name for name in names if name in read or (builder is not None and not builder.writes(name))],
        "return_direct": [name for name in names if name in direct],
        "config": _settings(inputs, builder.config if builder is not None else None),
        **_recursion_limit(inputs),
    }
    return {name: value for name, value in options.items() if value}


def _called(inputs: Sequence[RecordedInput]) -> list[str]:
    """Return the names of the calls that the agent had a tool for, those of decisions included."""
    called = [each.name for recorded in inputs for _, each in recorded.calls if not is_unknown(each)]
    edited = [entry["edited_name"] for entry in _events(inputs) if "edited_name" in entry]
    return [*dict.fromkeys([*called, *asked_about(inputs), *edited])]


def asked_about(inputs: Sequence[RecordedInput]) -> list[str]:
    """Return the names of the calls that the agent's own policy asked a person about."""
    requests = [entry for entry in _events(inputs) if is_own(entry, "approval_request")]
    return [*dict.fromkeys(call["name"] for entry in requests for call in entry["calls"])]


def _events(inputs: Sequence[RecordedInput]) -> list[StoredEvent]:
    return [entry for each in inputs for entry in each.events]


def _recursion_limit(inputs: Sequence[RecordedInput]) -> dict[str, int]:
    limits = [
        entry["limit"] for entry in _events(inputs) if entry["type"] == "limit" and entry["reason"] == "recursion_limit"
    ]
    return {"recursion_limit": int(limits[0])} if limits else {}


def _brief_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("properties", "required", "$defs") if schema.get(name)}


def _only_read(inputs: Sequence[RecordedInput]) -> set[str]:
    results = [(each.name, each.result) for recorded in inputs for _, each in recorded.calls]
    reads = effect_text(writes=False)
    return {name for name, result in results if result is not None and text_of(result.content).endswith(reads)}


def _direct(inputs: Sequence[RecordedInput]) -> set[str]:
    """Return the tools whose results were the answer."""
    found: set[str] = set()
    for each in inputs:
        last = each.steps[-1] if each.steps else None
        if last is None or each.status != SessionStatus.COMPLETED or not last.calls:
            continue
        results = [text_of(call.result.content) for call in last.calls if call.result is not None]
        if all(reply.purpose == "plan" for reply in last.replies) and "\n\n".join(results) == each.answer:
            found |= {call.name for call in last.calls}
    return found


def _settings(inputs: Sequence[RecordedInput], config: LoopConfig | None) -> dict[str, Any]:
    """Return the fields of the configuration; without that of the agent, those that follow from the limits."""
    planners = {entry["planner"] for entry in _events(inputs) if "planner" in entry}
    found: dict[str, Any] = {"tool_calling": "wave"} if planners else {}
    if "dag" in planners:
        found["planner"] = "dag"
    if asked := asked_about(inputs):
        found["approve"] = asked
    if config is not None:
        default, values = LoopConfig(), config.model_dump(mode="json", include=set(_COURSE))
        return {**{name: values[name] for name in _COURSE if getattr(config, name) != getattr(default, name)}, **found}
    for each in inputs:
        limits = [entry for entry in each.events if entry["type"] == "limit" and entry["reason"] in _LIMITS]
        for entry in limits:
            found[_LIMITS[entry["reason"]]] = entry["limit"]
            if entry["reason"] == "cost_limit":
                price = 1e6 * each.usage.get("cost", 0.0) / max(1, each.usage["total_tokens"])
                found["prices"] = {"recorded": {"input": price, "output": price}}
        composed = any(reply.purpose == "answer" for step in each.steps for reply in step.replies)
        if limits and not composed and "\n\n" not in each.answer:
            found["on_limit"] = "message"
    most = max((step.number for each in inputs for step in each.steps), default=0)
    if most >= LoopConfig().max_steps:
        found.setdefault("max_steps", most + 1)
    return found
