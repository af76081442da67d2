"""Builds example turns of a request in text mode from the agent's own tools.

A small model follows an example where it ignores the instructions. Examples are a part of the request only: they are
neither stored nor run, and the same tools give the same examples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from graph_agent.models.wire.text_form import EXAMPLE_ID, envelope, tagged_result

ExampleAnswers = Literal["prose", "object", "none"]
"""How the examples answer: as text, as the object of the reply's schema, or not at all."""

_MOST_TOOLS = 6
_MOST_CHARS = 1_500
"""Characters of all examples; at least one call is shown."""
_MOST_CHARS_OF_TASK = 120
_GREETING = ("Good morning!", "Good morning! How can I help you?")
_QUESTION = ("What can you do?", "I can answer questions and use tools.")
_THANKS = ("Thanks!", "You are welcome!")
_RESULT = "example result"
_ANSWER = f"The result is: {_RESULT}"


def example_turns(tools: Sequence[Mapping[str, Any]], answers: ExampleAnswers) -> list[BaseMessage]:
    """Return the messages that show how to call tools and how to answer without one; empty without tools.

    Args:
        tools: The offered tools, in OpenAI's function format.
        answers: How a reply without calls is written.
    """
    calls = list(_calls(tools))
    if not calls:
        return []
    turns = [[task, envelope([(name, arguments)])] for task, name, arguments in calls]
    if answers != "none":
        # A small model repeats the form of the turns next to the question: calls are the last, with answers between.
        turns = turns * 2 if len(turns) == 1 else turns
        half = len(turns) // 2
        result = tagged_result(calls[half - 1 if len(calls) > 1 else 0][1], _RESULT)
        with_result = [*turns[half - 1], result, _reply(_ANSWER, answers)]
        greeting, *further = [[task, _reply(text, answers)] for task, text in (_GREETING, _QUESTION, _THANKS)]
        turns = [greeting, *turns[: half - 1], with_result, *further, *turns[half:]]
    texts = [text for turn in turns for text in turn]
    return [
        AIMessage(text, id=f"{EXAMPLE_ID}{number}") if number % 2 else HumanMessage(text, id=f"{EXAMPLE_ID}{number}")
        for number, text in enumerate(texts)
    ]


def _reply(text: str, answers: ExampleAnswers) -> str:
    return text if answers == "prose" else json.dumps({"answer": text})


def _calls(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield task, name and arguments of each example call."""
    chars = 0
    for tool in tools[:_MOST_TOOLS]:
        function = tool["function"]
        arguments = {name: value for name, (value, _) in _example_arguments(function).items()}
        values = ", ".join(f"{name}: {_shown(value)}" for name, value in arguments.items())
        task = " ".join(filter(None, [_task(function), values]))
        chars += len(task) + len(json.dumps(arguments))
        if chars > _MOST_CHARS and tool is not tools[0]:
            return
        yield task, function["name"], arguments


def _task(function: Mapping[str, Any]) -> str:
    """Return the first line of a tool's description; its name if there is none."""
    first = str(function.get("description") or "").strip().partition("\n")[0][:_MOST_CHARS_OF_TASK].strip()
    return first or f"Use {function['name']}."


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def echoed_values(tools: Sequence[Mapping[str, Any]], name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments of a call that repeat an invented text of its tool's example: argument → text.

    Texts that the schema gives, such as a default, are not invented.
    """
    function = next((tool["function"] for tool in tools[:_MOST_TOOLS] if tool["function"]["name"] == name), None)
    if function is None:
        return {}
    return {
        argument: value
        for argument, (value, is_invented) in _example_arguments(function).items()
        if is_invented and isinstance(value, str) and arguments.get(argument) == value
    }


def _example_arguments(function: Mapping[str, Any]) -> dict[str, tuple[Any, bool]]:
    """Return the required arguments of a tool's example, each with whether its value is invented."""
    parameters = function.get("parameters")
    fields = parameters.get("properties") if isinstance(parameters, dict) else None
    required = parameters.get("required") if isinstance(parameters, dict) else None
    if not isinstance(parameters, dict) or not isinstance(fields, dict) or not isinstance(required, list):
        return {}
    return {
        name: _example(fields[name], name, parameters) for name in required if isinstance(name, str) and name in fields
    }


def _example(schema: Any, name: str, root: Mapping[str, Any], level: int = 0) -> tuple[Any, bool]:
    """Return a value of a schema, and whether it holds a text that the schema does not give."""
    if not isinstance(schema, dict) or level > _MOST_LEVELS:
        return f"example {name}", True
    for given in ([schema[key]] if key in schema else [] for key in ("const", "default")):
        if given and given[0] is not None:
            return given[0], False
    for key in ("enum", "examples"):
        if isinstance(values := schema.get(key), list) and values:
            return values[0], False
    if isinstance(pointer := schema.get("$ref"), str):
        return _example(_definition(root, pointer), name, root, level + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(choices := schema.get(key), list) and choices:
            return _example(choices[0], name, root, level + 1)
    kind = schema.get("type")
    kind = str(kind[0] if isinstance(kind, list) and kind else kind).lower()
    match kind:
        case "integer" | "number":
            return _number(schema), False
        case "boolean":
            return True, False
        case "null":
            return None, False
        case "array":
            item, is_invented = _example(schema.get("items"), name, root, level + 1)
            return [item], is_invented
        case "object":
            return _object(schema, root, level)
        case _:
            return f"example {name}", True


_MOST_LEVELS = 6


def _number(schema: Mapping[str, Any]) -> int | float:
    least = schema.get("minimum")
    most = schema.get("maximum")
    if isinstance(least, int | float) and least > 1:
        return least
    return most if isinstance(most, int | float) and most < 1 else 1


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], level: int) -> tuple[dict[str, Any], bool]:
    fields, required = schema.get("properties"), schema.get("required")
    if not isinstance(fields, dict) or not isinstance(required, list):
        return {}, False
    found = {
        name: _example(fields[name], name, root, level + 1)
        for name in required
        if isinstance(name, str) and name in fields
    }
    return {name: value for name, (value, _) in found.items()}, any(invented for _, invented in found.values())


def _definition(root: Mapping[str, Any], pointer: str) -> Any:
    part: Any = root
    for step in pointer.removeprefix("#").strip("/").split("/"):
        part = part.get(step) if isinstance(part, dict) else None
    return part
