"""Builds example turns of a request in text, or for a structured plan, from the agent's own tools.

A small model follows an example where it ignores the instructions. It copies a value that several examples share, or
that only names its argument; so each invented value is another name. Examples are a part of the request only: they are
neither stored nor run, and the same tools give the same examples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, cycle
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from graph_agent.base.input_messages import EXAMPLE_ID
from graph_agent.models.wire.text_form import envelope, tagged_result

ExampleAnswers = Literal["prose", "object", "none", "result", "result object"]
"""How examples show an answer: as text (`prose`), as the schema's JSON object (`object`), or not at all (`none`).

`result` and `result object` show a call, its result and the answer, for a request that permits no calls.
"""

_MOST_TOOLS = 6
"""Maximum tools that are shown by an example."""
_MOST_CHARS = 1_500
"""Maximum characters of all examples; the first two are shown at any length."""
_FEWEST_CALLS = 2
"""Example calls that are shown at any length."""
_MOST_CHARS_OF_TASK = 120
"""Maximum characters of the task in an example."""
_GREETING = ("Good morning!", "Good morning! How can I help you?")
_QUESTION = ("What can you do?", "I can answer questions and use tools.")
_THANKS = ("Thanks!", "You are welcome!")
_RESULT = "example result"
INVENTED_NAMES = (
    *("Elmwood", "Ashford", "Redfern", "Harlow", "Kendal", "Marlow", "Oakham", "Winslow", "Farley", "Selby"),
    *("Linden", "Thornton", "Hadley", "Bexley", "Milford", "Ripley", "Weston", "Denham", "Ludlow", "Wexford"),
)
"""Invented values, in order of use; each can name a person, a place or a thing."""
_NOTE = "The first messages are examples and no part of the conversation."
_ANSWER = f"The result is: {_RESULT}"


def example_turns(tools: Sequence[Mapping[str, Any]], answers: ExampleAnswers) -> list[BaseMessage]:
    """Return messages for text mode that show how to call the tools, and how to answer without a call; empty if there
    are no tools.

    With `none`, there are only calls; with `result` and `result object`, one call with its result and an answer. With
    `prose` and `object`, a greeting and two questions with answers come first and between the calls, and one call has a
    result and an answer; the last turns are calls, because a small model repeats the form of the turns next to the
    question. The same tools give the same messages.

    Args:
        tools: The offered tools, in OpenAI's function format.
        answers: The form of an answer.
    """
    calls = list(_calls(tools))
    if not calls:
        return []
    turns = [[task, envelope([(name, arguments)])] for task, name, arguments in calls]
    # A small model repeats the form of the turns next to the question: calls are the last, with answers between.
    half = len(turns) // 2
    result = tagged_result(calls[half - 1][1], _RESULT)
    match answers:
        case "none":
            return _messages(turns)
        case "result" | "result object":
            return _messages([[*turns[half - 1], result, _reply(_ANSWER, answers)]])
        case "prose" | "object":
            turns[half - 1] += [result, _reply(_ANSWER, answers)]
    greeting, *further = [[task, _reply(text, answers)] for task, text in (_GREETING, _QUESTION, _THANKS)]
    return _messages([greeting, *turns[:half], *further, *turns[half:]])


def example_plans(tools: Sequence[Mapping[str, Any]], *, answers: bool, calls_first: bool = False) -> list[BaseMessage]:
    """Return messages that show structured plans; empty without tools.

    Args:
        tools: The offered tools, in OpenAI's function format.
        answers: Whether a plan may contain the answer; turns with answers to small talk are then added between the
            calls.
        calls_first: Whether the list of calls is the first field of each plan.
    """
    turns = [[task, _plan(name, arguments, calls_first=calls_first)] for task, name, arguments in _calls(tools)]
    if answers and turns:
        half = len(turns) // 2
        prose = (_GREETING, _QUESTION, _THANKS)
        greeting, *further = [[task, _plan(answer=text, calls_first=calls_first)] for task, text in prose]
        turns = [greeting, *turns[:half], *further, *turns[half:]]
    return _messages(turns)


def example_of_planned_answer(tools: Sequence[Mapping[str, Any]]) -> list[BaseMessage]:
    """Return messages that show one structured plan, its result and the answer in prose; empty without tools."""
    shown = [
        [task, _plan(name, arguments), json.dumps({"results": {"1": _RESULT}}), _ANSWER]
        for task, name, arguments in _calls(tools)
    ]
    return _messages(shown[:1])


def with_examples(
    messages: Sequence[BaseMessage], examples: Sequence[BaseMessage], *, note: bool = False
) -> list[BaseMessage]:
    """Return a request with examples after its system prompt; before all messages if it has none.

    Args:
        messages: The request.
        examples: The messages to insert.
        note: Whether to add to the system prompt that the examples are not part of the conversation; only done if there
            are examples and a system prompt.
    """
    begin = next((at for at, message in enumerate(messages) if not isinstance(message, SystemMessage)), len(messages))
    system = [*messages[:begin]]
    if note and examples and system:
        content = system[-1].content
        blocks: Any = (
            [*content, {"type": "text", "text": _NOTE}] if isinstance(content, list) else f"{content}\n{_NOTE}"
        )
        system[-1] = system[-1].model_copy(update={"content": blocks})
    return [*system, *examples, *messages[begin:]]


def _messages(turns: Sequence[Sequence[str]]) -> list[BaseMessage]:
    """Return the texts of turns as alternating messages of the user and the model, with ids that mark them as
    examples."""
    texts = [text for turn in turns for text in turn]
    return [
        AIMessage(text, id=f"{EXAMPLE_ID}{number}") if number % 2 else HumanMessage(text, id=f"{EXAMPLE_ID}{number}")
        for number, text in enumerate(texts)
    ]


def _reply(text: str, answers: ExampleAnswers) -> str:
    """Return an answer as text, or as the schema's JSON object."""
    return json.dumps({"answer": text}) if answers in ("object", "result object") else text


def _plan(
    tool: str = "", arguments: Mapping[str, Any] | None = None, *, answer: str = "", calls_first: bool = False
) -> str:
    """Return a structured plan as JSON, with one call or with an answer.

    Args:
        tool: Name of the called tool; empty for a plan with an answer.
        arguments: Arguments of the call.
    """
    calls = {"tools": [{"id": "1", "tool": tool, "args": arguments}] if tool else []}
    begin = {**calls, "status": "done"} if calls_first else {"status": "done", **calls}
    return json.dumps({**begin, **({"answer": answer} if answer else {})}, ensure_ascii=False)


def _calls(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the task, the tool's name and the arguments of each example call, up to the maximum length; the first
    `_FEWEST_CALLS` in any case.
    """
    chars = 0
    for number, (function, example) in enumerate(_examples(tools)):
        arguments = {name: value for name, (value, _) in example.items()}
        values = ", ".join(f"{name}: {_shown(value)}" for name, value in arguments.items())
        task = " ".join(filter(None, [_task(function), values]))
        chars += len(task) + len(json.dumps(arguments))
        if chars > _MOST_CHARS and number >= _FEWEST_CALLS:
            return
        yield task, function["name"], arguments


def _task(function: Mapping[str, Any]) -> str:
    """Return the first line of a tool's description, at most 120 characters; without one, a sentence with its name."""
    first = str(function.get("description") or "").strip().partition("\n")[0][:_MOST_CHARS_OF_TASK].strip()
    return first or f"Use {function['name']}."


def _shown(value: Any) -> str:
    """Return a value as text: a string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def echoed_values(tools: Sequence[Mapping[str, Any]], name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return those arguments of a call that repeat an invented text from the examples of its tool, as argument → value.

    Values that the schema contains, such as a default, do not count. Empty if nothing was copied.

    Args:
        tools: The offered tools, from which the examples were made.
        name: Name of the called tool.
        arguments: Arguments of the call.
    """
    return {
        argument: value
        for function, example in _examples(tools)
        for argument, (value, is_invented) in example.items()
        if function["name"] == name and is_invented and isinstance(value, str) and arguments.get(argument) == value
    }


_Example = dict[str, tuple[Any, bool]]
"""Required arguments of a tool's example: name → value, and whether the value contains an invented text."""


def _examples(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], _Example]]:
    """Yield the function and the example of each tool, at most six; a single tool has two examples."""
    values = _Values()
    # Two examples of a single tool show which of its values vary.
    for tool in [*tools, *tools] if len(tools) == 1 else tools[:_MOST_TOOLS]:
        yield tool["function"], values.arguments(tool["function"].get("parameters"))


class _Values:
    """Generates the values in examples.

    Each invented text differs from the others, so that a model does not copy it.
    """

    def __init__(self) -> None:
        self._names = cycle(INVENTED_NAMES)
        self._numbers = count(2)

    def arguments(self, parameters: object) -> _Example:
        """Return the required arguments of a tool's example; empty if its schema requires none."""
        if not isinstance(parameters, dict):
            return {}
        return self._fields(parameters, parameters, 0)

    def _fields(self, schema: Mapping[str, Any], root: Mapping[str, Any], level: int) -> _Example:
        """Return the required fields of an object's example; empty if the schema requires none.

        Args:
            schema: Schema of the object.
            root: The whole schema, in which references are looked up.
            level: Levels above the object.
        """
        fields, required = schema.get("properties"), schema.get("required")
        if not isinstance(fields, dict) or not isinstance(required, list):
            return {}
        return {
            name: self._value(fields[name], root, level)
            for name in required
            if isinstance(name, str) and name in fields
        }

    def _value(self, schema: Any, root: Mapping[str, Any], level: int) -> tuple[Any, bool]:
        """Return a value that fits a schema, and whether it contains a text that is not in the schema.

        In this order: `const` and `default` unless they are null, the first of `enum` or `examples`, the target of a
        reference, the first alternative or part of `allOf`, a value of the type. A schema that is no dict, is nested
        too deeply or has no type gets an invented text.
        """
        if not isinstance(schema, dict) or level > _MOST_LEVELS:
            return next(self._names), True
        for given in ([schema[key]] if key in schema else [] for key in ("const", "default")):
            if given and given[0] is not None:
                return given[0], False
        for key in ("enum", "examples"):
            if isinstance(values := schema.get(key), list) and values:
                return values[0], False
        if isinstance(pointer := schema.get("$ref"), str):
            return self._value(_definition(root, pointer), root, level + 1)
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(choices := schema.get(key), list) and choices:
                return self._value(choices[0], root, level + 1)
        kind = schema.get("type")
        kind = str(kind[0] if isinstance(kind, list) and kind else kind).lower()
        match kind:
            case "integer" | "number":
                return _within(schema, next(self._numbers)), False
            case "boolean":
                return True, False
            case "null":
                return None, False
            case "array":
                item, is_invented = self._value(schema.get("items"), root, level + 1)
                return [item], is_invented
            case "object":
                found = self._fields(schema, root, level + 1)
                return {name: value for name, (value, _) in found.items()}, any(new for _, new in found.values())
            case _:
                return next(self._names), True


_MOST_LEVELS = 6
"""Maximum nesting of a schema for which a value is made; deeper ones get an invented text."""


def _within(schema: Mapping[str, Any], number: int) -> int | float:
    """Return `number`, moved into the bounds `minimum` and `maximum` of a schema."""
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(least, int | float) and least > number:
        return least
    return most if isinstance(most, int | float) and most < number else number


def _definition(root: Mapping[str, Any], pointer: str) -> Any:
    """Return the part of a schema that a `$ref` points to; None if it does not exist."""
    part: Any = root
    for step in pointer.removeprefix("#").strip("/").split("/"):
        part = part.get(step) if isinstance(part, dict) else None
    return part
