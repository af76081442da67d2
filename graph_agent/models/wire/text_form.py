"""Writes calls and results as text, for models that are asked for calls in text or for structured plans.

No id is written: a model that copies long random ids makes more mistakes in the arguments. If a reply has several
calls, a result names its call by the call's position, so that the same history always gives the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage

from graph_agent.base._internal.media import media_of
from graph_agent.base.calls import RESULT_MARKER
from graph_agent.models.wire.traits import CALL_FIELDS

PLAN_STATUS = "plan_status"
"""Key in the `response_metadata` of a reply that was a structured plan: the plan's status.

`continue` if it is missing.
"""
_PLAN_IDS = "plan_ids"
"""Key in the `response_metadata` of a reply that was a structured plan.

Holds call id → the id that the model wrote, for calls whose ids were replaced.
"""


class _Place(NamedTuple):
    """Names the call that a result belongs to, as it is written in text."""

    name: str
    """The tool's name."""
    number: int
    """Position of the call in its reply, from 1; 0 if it is the only one."""
    plan_id: str
    """The call's id as the model wrote it."""


_Result = tuple[ToolMessage, _Place]


def as_text_history(messages: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Replace each message with calls by its text followed by the calls as JSON, and results by tagged text.

    Consecutive results become one user message, in which media stay content blocks. Other messages are unchanged, and a
    written message keeps the id of its (first) original.
    """
    return _convert(messages, _envelope, _tagged)


def as_plans(messages: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Replace each message with calls by its structured plan as JSON, and results by a JSON object with the plan's ids.

    Consecutive results become one user message; the result of a failed call is `{"error": …}`. Other messages are
    unchanged, and a written message keeps the id of its (first) original.
    """
    return _convert(messages, _plan, _keyed)


def _convert(
    messages: Sequence[AnyMessage],
    format_calls: Callable[[AIMessage], str],
    format_results: Callable[[list[_Result]], str],
) -> list[BaseMessage]:
    """Return the messages with calls and results written as text by two functions.

    Consecutive results become one user message with the id of the first; their media stay content blocks. The other
    messages are the same objects.

    Args:
        messages: The history.
        format_calls: Returns the text of an assistant message with calls.
        format_results: Returns the text of consecutive results.
    """
    written: list[BaseMessage] = []
    places: dict[str, _Place] = {}
    results: list[_Result] = []

    def flush() -> None:
        if results:
            text, media = format_results(results), [block for each in results for block in _media(*each)]
            # Media stay blocks, because they cannot be written as text.
            content: Any = [{"type": "text", "text": text}, *media] if media else text
            written.append(HumanMessage(content, id=results[0][0].id))
            results.clear()

    for message in messages:
        if isinstance(message, ToolMessage):
            # A hook's result may have no call, and no name.
            place = places.get(message.tool_call_id, _Place("tool", 0, message.tool_call_id))
            results.append((message, place._replace(name=message.name or place.name)))
            continue
        flush()
        if isinstance(message, AIMessage) and (calls := message.tool_calls):
            numbers, names = range(1, len(calls) + 1) if len(calls) > 1 else [0], _plan_ids(message)
            places |= {
                (id_ := call["id"] or ""): _Place(call["name"], number, names.get(id_, id_))
                for call, number in zip(calls, numbers, strict=True)
            }
            written.append(AIMessage(format_calls(message), id=message.id))
        else:
            written.append(message)
    flush()
    return written


def _media(result: ToolMessage, place: _Place) -> list[Any]:
    """Return the images, documents and recordings of a result, each preceded by a text block that names its call.

    Empty if the result is text alone.
    """
    blocks = result.content if isinstance(result.content, list) else []
    number = f", call {place.number}" if place.number else ""
    label = {"type": "text", "text": f"[Content of the result of {place.name}{number}:]"}
    return [part for block in blocks if media_of(block) is not None for part in (label, block)]


def envelope(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return calls, given as pairs of name and arguments, in the JSON form in which a model writes them."""
    written = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return json.dumps({"tool_calls": written}, ensure_ascii=False)


def _envelope(message: AIMessage) -> str:
    written = envelope([(call["name"], call["args"]) for call in message.tool_calls])
    return "\n".join(part for part in (message.text, written) if part)


def _tagged(results: list[_Result]) -> str:
    """Return results as tagged text, one after another."""
    return "\n".join(_tag(result, place) for result, place in results)


def _tag(result: ToolMessage, place: _Place) -> str:
    number = f' call="{place.number}"' if place.number else ""
    status = f' status="{result.status}"' if result.status != "success" else ""
    return tagged_result(place.name, result.text, before=number, after=status)


def tagged_result(name: str, text: str, *, before: str = "", after: str = "") -> str:
    """Return a tool result as tagged text.

    Args:
        name: The tool's name.
        text: The result.
        before: Attributes before the name, with a leading space.
        after: Attributes after the name, with a leading space.
    """
    return f'{RESULT_MARKER}{before} name="{name}"{after}>\n{text}\n</tool_result>'


def with_call_ids(message: AIMessage, names: Mapping[str, str]) -> AIMessage:
    """Return a copy of a reply whose metadata records the ids that the model wrote for its calls, before they are
    replaced. Fields that the provider keeps by call id get the new ids. The ids in `tool_calls` are not changed: the
    caller replaces them.

    Args:
        message: The reply, which was a structured plan; returned unchanged if `names` is empty.
        names: Id that the model wrote → new id.
    """
    if not names:
        return message
    metadata = {**message.response_metadata, _PLAN_IDS: {id_: own for own, id_ in names.items()}}
    kwargs = {
        key: {names.get(own, own): fields for own, fields in value.items()} if key in _KEYED_BY_ID and value else value
        for key, value in message.additional_kwargs.items()
    }
    return message.model_copy(update={"response_metadata": metadata, "additional_kwargs": kwargs})


_KEYED_BY_ID = (CALL_FIELDS, "__gemini_function_call_thought_signatures__")
"""Keys of `additional_kwargs` whose values are dicts by call id."""


def _plan_ids(message: AIMessage) -> Mapping[str, str]:
    """Return call id → the id that the model wrote, as recorded by `with_call_ids`; empty if no id was replaced."""
    found = message.response_metadata.get(_PLAN_IDS)
    return found if isinstance(found, dict) else {}


def _plan(message: AIMessage) -> str:
    """Return the structured plan of an assistant message as JSON (`status`, `tools`, `reasoning`), with the ids that
    the model wrote.
    """
    names = _plan_ids(message)
    plan = {
        "status": message.response_metadata.get(PLAN_STATUS, "continue"),
        "tools": [
            {"id": names.get(call["id"] or "", call["id"]), "tool": call["name"], "args": call["args"]}
            for call in message.tool_calls
        ],
        "reasoning": message.text,
    }
    return json.dumps(plan, ensure_ascii=False)


def _keyed(results: list[_Result]) -> str:
    """Return results as a JSON object `{"results": {plan id: result}}`; a failed one is `{"error": …}`."""
    results_by_id = {
        place.plan_id: {"error": result.text} if result.status == "error" else _value(result.text)
        for result, place in results
    }
    return json.dumps({"results": results_by_id}, ensure_ascii=False)


def _value(text: str) -> Any:
    """Return the value of a JSON text; the text itself if it is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
