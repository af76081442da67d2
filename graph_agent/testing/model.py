"""Defines a chat model that needs no script: it calls the tools that it is offered, and reports their results."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

from graph_agent.errors import ScriptError
from graph_agent.models.sanitize import alias_of
from graph_agent.models.scripted import Script, ScriptedChatModel, ScriptedRequest
from graph_agent.testing.values import example_of
from graph_agent.waves.reply import PLAN_TOOL

_NO_CALLS = "No tool was called."
_CLOSING = "Now provide your final response"
"""How the default prompt asks for the answer."""
_HEADING = "## "
_SCHEMA = re.compile(r"must fit this JSON schema:\s*(?=\{)")
_RESULT = re.compile(r'<tool_result id="([^"]*)" name="[^"]*" status="[^"]*">\n')
_RESULT_END = "\n</tool_result>"


class TestModel(ScriptedChatModel):
    """A chat model that calls each offered tool once per input, in one wave, and then answers with the results.

    The arguments match the JSON schemas of the tools, and are the same in each run: an argument has its default or
    first example, or else the simplest value of its type; a string is the name of its parameter. Delegates are tools,
    too. With a response format, the answer is a value of its schema. It works in each mode of tool calling, and reads
    the tools of text mode from the default prompt.

    `requests` holds what the model received. It may be shared by agents and sessions.

    Args:
        call_tools: the names of the tools to call, in order; `"all"` (default) for those of the request.
        answer: the text of each answer; by default `<tool>: <result>`, one line for each call.
        arguments: tool name → arguments that replace generated ones.
        **kwargs: fields of `BaseChatModel`, such as `profile`.

    Raises:
        ScriptError: from a request whose tools do not include one of `call_tools`, or have a schema for which no value
            is found.
    """

    __test__: ClassVar[bool] = False  # pytest collects classes by this prefix

    def __init__(
        self,
        *,
        call_tools: Literal["all"] | Sequence[str] = "all",
        answer: str | None = None,
        arguments: Mapping[str, Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__([], **{"model": "test", **kwargs})
        self._script = _Improvisation(call_tools, answer, arguments or {})


class _Improvisation(Script):
    """Replies that depend on the request alone."""

    def __init__(
        self,
        call_tools: Literal["all"] | Sequence[str],
        answer: str | None,
        arguments: Mapping[str, Mapping[str, Any]],
    ) -> None:
        super().__init__([], cycle=False)
        self._call_tools = None if call_tools == "all" else list(call_tools)
        self._answer = answer
        self._arguments = arguments
        self._examples: dict[str, Any] = {}

    def take(self, request: ScriptedRequest) -> AIMessage:
        """Record a request and return its reply.

        Raises:
            ScriptError: as `TestModel`.
        """
        with self._lock:
            self.requests.append(request)
        tools = {tool["function"]["name"]: tool["function"] for tool in request.tools if "function" in tool}
        plan = tools.pop(PLAN_TOOL, None)
        schemas = {name: tool.get("parameters") or {} for name, tool in tools.items()}
        history = [(message, _calls_in(message)) for message in request.messages]
        answers = [at for at, (message, calls) in enumerate(history) if message.type == "ai" and not calls]
        newest = history[answers[-1] + 1 if answers else 0 :]
        is_open = request.tool_choice != "none" and not request.messages[-1].text.startswith(_CLOSING)
        calls: list[ToolCall] = []
        if is_open and not any(calls for _, calls in newest):
            begun = sum(len(calls) for _, calls in history)
            calls = self._calls(schemas or dict(_tools_in_text(request.messages)), request.tool_choice, begun)
        answer = "" if calls else self._text_of_answer(request, newest)
        if plan is not None:
            planned = [{"id": call["id"], "tool": call["name"], "args": call["args"]} for call in calls]
            given = {"status": "continue" if calls else "done", "tools": planned, "answer": answer}
            value = {**self._example(plan["parameters"], "plan"), **given}
            return AIMessage("", tool_calls=[ToolCall(name=PLAN_TOOL, args=value, id=None)])
        if schemas or not calls:
            return AIMessage(answer, tool_calls=calls)
        written = [{"id": call["id"], "name": call["name"], "arguments": call["args"]} for call in calls]
        return AIMessage(json.dumps({"tool_calls": written}, ensure_ascii=False))

    def _calls(self, schemas: Mapping[str, Any], choice: Any, begun: int) -> list[ToolCall]:
        """The wave: one call for each tool.

        Args:
            schemas: tool name → schema of its arguments.
            begun: calls before; ids are numbered over the whole history.
        """
        names = list(schemas)
        if self._call_tools is not None:
            names = [name if name in schemas else alias_of(name) for name in self._call_tools]
            if schemas and (unknown := [name for name in names if name not in schemas]):
                raise ScriptError(f"TestModel(call_tools=…) names {unknown}; the request offers {list(schemas)}.")
        if choice in schemas:
            names = [choice]
        given = {alias: values for name, values in self._arguments.items() for alias in (name, alias_of(name))}
        return [
            ToolCall(
                name=name,
                args=dict(given[name]) if name in given else self._example(schemas[name], name),
                id=f"call_{begun + number}",
                type="tool_call",
            )
            for number, name in enumerate((name for name in names if name in schemas), 1)
        ]

    def _text_of_answer(self, request: ScriptedRequest, newest: Sequence[_Read]) -> str:
        if self._answer is not None:
            return self._answer
        if (schema := _answer_schema(request)) is not None:
            return json.dumps(self._example(schema, "answer"), ensure_ascii=False)
        names = {id_: name for _, calls in newest for id_, name in calls}
        results = [(names.get(id_, "tool"), text) for message, _ in newest for id_, text in _results_in(message)]
        return "\n".join(f"{name}: {text}" for name, text in results) or _NO_CALLS

    def _example(self, schema: Mapping[str, Any], name: str) -> Any:
        key = json.dumps([name, schema], default=str)
        if key not in self._examples:
            self._examples[key] = example_of({"type": "object", **schema}, name)
        return copy.deepcopy(self._examples[key])


_Read = tuple[BaseMessage, list[tuple[str, str]]]
"""A message, and the ids and names of its calls."""


def _calls_in(message: BaseMessage) -> list[tuple[str, str]]:
    """Return the id and name of each call of a message, which text mode and plans write as JSON."""
    if not isinstance(message, AIMessage):
        return []
    if message.tool_calls:
        return [(call["id"] or "", call["name"]) for call in message.tool_calls]
    value = _json_object(message.text.rpartition("\n")[2])
    calls = value.get("tool_calls", value.get("tools"))
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return []
    return [(call.get("id") or "", call.get("name", call.get("tool"))) for call in calls]


def _results_in(message: BaseMessage) -> Iterator[tuple[str, str]]:
    """Yield call id and text of each result in a message."""
    if isinstance(message, ToolMessage):
        yield message.tool_call_id, message.text
    elif message.type == "human" and message.text.startswith("<tool_result "):
        for part in message.text.split(_RESULT_END)[:-1]:
            if start := _RESULT.search(part):
                yield start[1], part[start.end() :]
    elif message.type == "human" and isinstance(found := _json_object(message.text).get("results"), dict):
        for id_, value in found.items():
            yield id_, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tools_in_text(messages: Sequence[BaseMessage]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and schema of each tool that the system prompt describes: a heading, text, and a line of JSON."""
    name = ""
    for line in "\n".join(message.text for message in messages if message.type == "system").splitlines():
        if line.startswith(_HEADING):
            name = name or line.removeprefix(_HEADING).strip()
        elif name and (schema := _json_object(line)):
            yield name, schema
            name = ""


def _answer_schema(request: ScriptedRequest) -> dict[str, Any] | None:
    """Return the schema of the answer, from the provider's option or from the prompts; None for free text."""
    match request.kwargs.get("response_format"):
        case {"json_schema": {"schema": dict() as schema}}:
            return schema
    for message in reversed(request.messages):
        if found := _SCHEMA.search(message.text):
            schema, _ = json.JSONDecoder().raw_decode(message.text, found.end())
            return dict(schema)
    return None


def _json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; empty for any other text."""
    if not text.startswith("{"):
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
