"""Detection of calls written as text in a native reply, a sign that the model's server ignores tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from graph_agent.calls import split_tool_calls


class WrittenCall(NamedTuple):
    """A reply that ends with calls written in its text."""

    may_be_answer: bool
    """Whether the reply may be an answer with an example call: text precedes it, and it has no tag or envelope."""


def written_call(text: str, tools: Sequence[str], conversation: Iterable[AnyMessage]) -> WrittenCall | None:
    """Find calls at the end of a reply's text; None if it holds none or only quotes them.

    Calls followed by text are an example in an answer. Calls that occur verbatim in the user's messages or in results
    are a quote; running them would let the author of that text issue calls.

    Args:
        text: The reply's text.
        tools: Names of the available tools and delegations.
        conversation: The messages that the reply answers.
    """
    calls, prose = split_tool_calls(text, list(tools))
    whole = text.strip()
    if not calls or not whole.startswith(prose):
        return None
    written = _core(whole[len(prose) :])
    quoted = any(written in _compact(message.text) for message in conversation if _is_from_outside(message))
    return None if quoted else WrittenCall(bool(prose) and not split_tool_calls(text, [])[0])


def _is_from_outside(message: AnyMessage) -> bool:
    return isinstance(message, HumanMessage | ToolMessage)


def _core(written: str) -> str:
    """The JSON of a call, without tags, fences and white space."""
    starts = [at for bracket in "{[" if (at := written.find(bracket)) >= 0]
    end = max(written.rfind("}"), written.rfind("]")) + 1
    return _compact(written[min(starts) : end] if starts and end > min(starts) else written)


def _compact(text: str) -> str:
    return "".join(text.split())
