"""Conversations parsed from each form of model request: native calls, calls in text, or plans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from .planner import TOOLS, Call, Outcome

QUESTIONS_READ = 10
"""Earlier questions that a follow-up may refer to."""

_RESULT = re.compile(
    r'<tool_result(?: call="(?P<call>\d+)")? name="[^"\n]*"(?: status="(?P<status>\w+)")?>\n'
    r"(?P<text>.*?)\n</tool_result>",
    re.DOTALL,
)
_REFERENCE = re.compile(r"\$\{([\w-]+)\.(\w+)\}")


class Conversation(NamedTuple):
    """The questions, and the results of the calls for the last one."""

    questions: list[str]
    """The questions so far, the last one last."""
    outcomes: list[Outcome]


class _Result(NamedTuple):
    text: str
    is_error: bool
    artifact: Any = None


def read_conversation(messages: list[BaseMessage]) -> Conversation:
    """Return the questions of a conversation, and the outcomes of the calls made for the last one.

    Steering messages belong to the current question; messages for the model alone are not questions.
    """
    questions: list[list[str]] = []
    outcomes: list[Outcome] = []
    calls: list[tuple[str, str, dict[str, Any]]] = []
    results: dict[str, _Result] = {}

    def close_wave() -> None:
        outcomes.extend(_outcomes(calls, results))
        calls.clear()
        results.clear()

    for message in messages:
        if calls and (found := _results(message)) is not None:
            results.update(found)
            continue
        close_wave()
        if isinstance(message, AIMessage):
            calls += _calls(message)
        elif isinstance(message, HumanMessage) and not str(message.id or "").startswith("do-not-render-"):
            if not (questions and _steers(message)):
                questions.append([])
                outcomes.clear()
            questions[-1].append(str(message.text))
    close_wave()
    return Conversation(["\n".join(texts) for texts in questions][-QUESTIONS_READ:], outcomes)


def known_tool(name: str) -> str | None:
    """Return the hotel's tool that a name means: providers forbid dots, and loaders add a server's name in front."""
    plain = _plain(name)
    return next((tool for tool in TOOLS if _plain(tool) in plain), None)


def _calls(message: AIMessage) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the id, name and arguments of each call of a message: native, or as JSON at the end of its text.

    Calls in text have no id: theirs is their place in the message, by which their results name them.
    """
    if message.tool_calls:
        return [(call["id"] or "", call["name"], call["args"]) for call in message.tool_calls]
    text = str(message.text)
    for start, key in (('{"tool_calls": ', "tool_calls"), ('{"status": ', "tools")):
        at = text.find(start)
        written = _read_object(text[at:]) if at >= 0 else None
        if written is not None:
            calls = [call for call in written.get(key, ()) if isinstance(call, dict)]
            return [_written_call(call, str(place)) for place, call in enumerate(calls, 1)]
    return []


def _written_call(call: Mapping[str, Any], place: str) -> tuple[str, str, dict[str, Any]]:
    name, arguments = call.get("name", call.get("tool")), call.get("arguments", call.get("args"))
    return str(call.get("id", place)), str(name), arguments if isinstance(arguments, dict) else {}


def _results(message: BaseMessage) -> dict[str, _Result] | None:
    """Return the results in a message by call id; None for a message of another kind."""
    if isinstance(message, ToolMessage):
        return {message.tool_call_id: _Result(str(message.text), message.status == "error", message.artifact)}
    text = str(message.text) if isinstance(message, HumanMessage) else ""
    if text.startswith("<tool_result "):
        return {
            found["call"] or "1": _Result(found["text"], found["status"] == "error") for found in _RESULT.finditer(text)
        }
    written = (_read_object(text) or {}).get("results") if text.startswith('{"results": ') else None
    if not isinstance(written, dict):
        return None
    return {id_: _planned_result(value) for id_, value in written.items()}


def _planned_result(value: Any) -> _Result:
    if isinstance(value, dict) and set(value) == {"error"}:
        return _Result(str(value["error"]), is_error=True)
    return _Result(value if isinstance(value, str) else json.dumps(value), is_error=False)


def _outcomes(calls: Iterable[tuple[str, str, dict[str, Any]]], results: Mapping[str, _Result]) -> Iterable[Outcome]:
    data: dict[str, dict[str, Any]] = {}
    for id_, name, arguments in calls:
        tool = known_tool(name)
        if tool is None:
            continue
        outcome = _outcome(Call(tool, _filled(arguments, data)), results.get(id_))
        if outcome.data is not None:
            data[id_] = outcome.data
        yield outcome


def _outcome(call: Call, result: _Result | None) -> Outcome:
    if result is None:
        return Outcome(call, None, "it has no result.")
    if result.is_error:
        error = re.sub(r"^Error executing tool \S+: ", "", result.text.strip())
        return Outcome(call, None, error or "the tool failed.")
    artifact = result.artifact if isinstance(result.artifact, dict) else {}
    data = _read_object(result.text) or artifact.get("structured_content")
    return Outcome(call, data, None) if isinstance(data, dict) else Outcome(call, None, "its result cannot be read.")


def _filled(arguments: dict[str, Any], data: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return arguments with references to the results of other calls filled in, as far as these are known."""

    def value(found: re.Match[str]) -> str:
        return str(data.get(found[1], {}).get(found[2], found[0]))

    return {
        name: _REFERENCE.sub(value, argument) if isinstance(argument, str) else argument
        for name, argument in arguments.items()
    }


def _steers(message: HumanMessage) -> bool:
    return any("steer" in key or "steer" in str(value) for key, value in message.additional_kwargs.items())


def _read_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
