"""Refuses calls whose arguments the model has copied from the examples of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AnyMessage

from graph_agent.base.types import Call
from graph_agent.core.planning.reply import Planned
from graph_agent.models.wire.examples import echoed_values


def without_echoes(planned: Planned, tools: Sequence[dict[str, Any]], request: Sequence[AnyMessage]) -> Planned:
    """Return a plan in which each call that repeats a value of the prompt's examples has a `fault` and is `skipped`.

    Small models copy the example values in place of real ones. A value that the conversation contains, too, is
    permitted. Without such a call, the same plan is returned.

    Args:
        planned: The plan; it is not modified.
        tools: OpenAI schemas of the offered tools, from which the prompt's examples were built.
        request: The messages of the request, without the examples.
    """
    texts = [message.text for message in request]

    def checked(call: Call) -> Call:
        echoed = echoed_values(tools, call["name"], call["arguments"]).items()
        invented = [f"{argument}: {value!r}" for argument, value in echoed if not any(value in text for text in texts)]
        if not invented:
            return call
        fault = (
            f"Not run: this is the value of the example ({', '.join(invented)}). Take the value from the conversation, "
            "or ask the user for it."
        )
        return Call({**call, "fault": fault, "skipped": True})

    calls = [checked(call) for call in planned.calls]
    return planned if calls == planned.calls else replace(planned, calls=calls)
