"""The output of a graph for an input that has its result, in the form of LangGraph's `stream`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.types import StateSnapshot


def stored_chunks(state: StateSnapshot, outputs: str | Sequence[str], options: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values of a state, and its open interrupts; other stream modes have no chunks.

    Args:
        state: The state that holds the result.
        outputs: The output channels of the graph.
        options: The arguments of `stream`: `stream_mode`, `output_keys`, `subgraphs`, `version`.
    """
    modes = options.get("stream_mode") or "values"
    is_list = not isinstance(modes, str)
    keys = options.get("output_keys") or outputs
    interrupts = tuple(asked for task in state.tasks if task.result is None for asked in task.interrupts)
    values = {key: state.values[key] for key in ([keys] if isinstance(keys, str) else keys) if key in state.values}
    asked = {INTERRUPT: interrupts} if interrupts else {}
    for mode in modes if is_list else [modes]:
        if mode not in ("values", "updates") or (mode == "updates" and not asked):
            continue
        payload: dict[str, Any] = {**values, **asked} if mode == "values" else asked
        if options.get("version") == "v2":
            fields = {"data": values, "interrupts": interrupts} if mode == "values" else {"data": payload}
            yield {"type": mode, "ns": (), **fields}
            continue
        parts = [*([()] if options.get("subgraphs") else []), *([mode] if is_list else []), payload]
        yield parts[0] if len(parts) == 1 else tuple(parts)
