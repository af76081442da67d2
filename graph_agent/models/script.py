"""Parses the steps of a script of model replies, and returns each once, in order."""

from __future__ import annotations

import copy
import json
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    InvalidToolCall,
    ToolCall,
    message_chunk_to_message,
)

from graph_agent.errors import ConfigError, ScriptError
from graph_agent.models.stream_filters import SENTINEL

_SHOWN_CHARS = 200
_SHOWN_STEPS = 5


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """One request as received by the model, for inspection in tests."""

    messages: list[BaseMessage]
    """The assembled prompt, in order."""
    tools: list[dict[str, Any]]
    """The bound tools in OpenAI's form; empty if there are none."""
    tool_choice: Any
    """The bound tool choice, unchanged; None if there is none."""
    kwargs: dict[str, Any]
    """All other bound or passed options, including `stop` if set."""

    @property
    def tool_names(self) -> list[str]:
        """The names of the bound tools, in order."""
        return [str(tool.get("function", tool).get("name", tool.get("type"))) for tool in self.tools]


class Script:
    """The steps and the position of one scripted model; safe to share between threads and event loops.

    Raises:
        ConfigError: at construction, if a step cannot be parsed, or an empty script is cycled.
    """

    def __init__(self, responses: Sequence[str | AIMessage], *, cycle: bool) -> None:
        if isinstance(responses, str):
            raise ConfigError(
                f"A script is a list of replies, and this is one string: {_cut(responses)!r} Put it in a list."
            )
        if cycle and not responses:
            raise ConfigError("An empty script cannot be cycled. Give it at least one reply, or leave cycle=False.")
        self._steps = [read_step(response, number) for number, response in enumerate(responses, 1)]
        # Messages with equal ids in a history overwrite each other: the first keeps the id, others get a new one.
        owner = {step.id: at for at, step in reversed(list(enumerate(self._steps)))}
        self._owns_id = [owner[step.id] == at for at, step in enumerate(self._steps)]
        self._cycle = cycle
        self._asked = 0
        self._lock = threading.Lock()
        self.requests: list[ScriptedRequest] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Script:
        """Return itself: deep copies of a model share the position."""
        return self

    def take(self, request: ScriptedRequest) -> AIMessage:
        """Record `request` and return a fresh copy of the next step.

        The id is the step's own on its first use and None afterwards, so that LangChain assigns one. In later passes
        of a cycle, call ids get the pass as a suffix (`call_1-2`), so that they are unique too.

        The only reply of a script is returned again if the next request composes the answer.

        Raises:
            ScriptError: if every step was returned and the script does not cycle.
        """
        with self._lock:
            index = self._asked
            self._asked += 1
            self.requests.append(request)
            if index == 1 and len(self._steps) == 1 and self._composes_answer():
                index = 0
        size = len(self._steps)
        if index >= size and not self._cycle:
            raise ScriptError(
                f"The script has {_count(size)} and was asked for a {_ordinal(index + 1)}. "
                f"Last request: {_show_request(request)} Add a reply to the script, or find out why the "
                "model was asked once more."
            )
        lap, at = divmod(index, size)
        step = self._steps[at]
        # The copy is deep: a change by the caller must not appear in the next pass.
        update = {
            "id": step.id if lap == 0 and self._owns_id[at] else None,
            "content": step.content if isinstance(step.content, str) else copy.deepcopy(step.content),
            "additional_kwargs": copy.deepcopy(step.additional_kwargs),
            "response_metadata": copy.deepcopy(step.response_metadata),
            "usage_metadata": copy.deepcopy(step.usage_metadata),
            "tool_calls": [_renew(call, lap) for call in step.tool_calls],
            "invalid_tool_calls": [_renew(call, lap) for call in step.invalid_tool_calls],
        }
        return step.model_copy(update=update)

    def _composes_answer(self) -> bool:
        """Whether the newest request asks for the answer after the only reply, which ended planning.

        A script of one text is the answer to every request, so that it also works with `finalize="compose"`.
        The sentinel is never the answer.
        """
        if self._steps[0].text.strip() == SENTINEL:
            return False
        first, newest = ([one for one in each.messages if one.type != "system"] for each in self.requests[-2:])
        return not self._steps[0].tool_calls and newest[:-1] == first and newest[-1].type == "human"

    def assert_spent(self) -> None:
        """Check that every step was returned at least once.

        Raises:
            ScriptError: naming the steps that were not.
        """
        with self._lock:
            asked = self._asked
        left = self._steps[asked:]
        if not left:
            return
        shown = [f"{_ordinal(asked + n)}: {_show(step)}" for n, step in enumerate(left[:_SHOWN_STEPS], 1)]
        more = f"; and {len(left) - _SHOWN_STEPS} more" if len(left) > _SHOWN_STEPS else ""
        raise ScriptError(
            f"The script has {_count(len(self._steps))} and {len(left)} of them {'was' if len(left) == 1 else 'were'} "
            f"never asked for: {'; '.join(shown)}{more}. "
            "Remove what is not needed, or find out why the run ended early."
        )


def read_step(response: str | AIMessage, number: int) -> AIMessage:
    """Convert one entry of a script to a message.

    A string that is a JSON object with a list under `tool_calls` is a tool-calling message:
    `{"tool_calls": [{"id", "name", "arguments"}], "content": "…"}`. `id` and `content` may be missing; `arguments` may
    be an object or its JSON text; OpenAI's nesting under `function` is accepted. Any other string is text. Arguments
    that are not a JSON object become an invalid tool call, as in a provider's client.

    Args:
        response: the entry.
        number: its position in the script, from 1, for the error message.

    Raises:
        ConfigError: for an entry of another type, and for a call without a name.
    """
    if isinstance(response, AIMessageChunk):
        return cast("AIMessage", message_chunk_to_message(response)).model_copy(deep=True)
    if isinstance(response, AIMessage):
        return response.model_copy(deep=True)
    if not isinstance(response, str):
        raise ConfigError(
            f"Step {number} of the script is of type {type(response).__name__}; give a str or an AIMessage."
        )
    envelope = _read_object(response)
    if envelope is None or not isinstance(envelope.get("tool_calls"), list):
        return AIMessage(content=response)
    calls = [_read_call(item, number) for item in envelope["tool_calls"]]
    content = envelope.get("content")
    return AIMessage(
        content=content if isinstance(content, str) else "" if content is None else json.dumps(content),
        tool_calls=[call for call in calls if "error" not in call],
        invalid_tool_calls=[call for call in calls if "error" in call],
    )


def _read_call(item: Any, number: int) -> ToolCall | InvalidToolCall:
    fields: Any = item.get("function", item) if isinstance(item, dict) else None
    name = fields.get("name") if isinstance(fields, dict) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"Step {number} of the script has a tool call without a name: {_cut(json.dumps(item))} Write "
            '{"tool_calls": [{"id": "call_1", "name": "echo", "arguments": {"text": "hello"}}]}, '
            "or give an AIMessage to have a text sent as it stands."
        )
    # A missing id remains None here: the call gets a new one each time the step is returned.
    id_ = str(item["id"]) if item.get("id") else None
    given: Any = next((fields[key] for key in ("arguments", "args") if fields.get(key) is not None), {})
    args = _read_object(given or "{}") if isinstance(given, str) else given
    if isinstance(args, dict):
        return ToolCall(name=name, args=args, id=id_, type="tool_call")
    text = given if isinstance(given, str) else json.dumps(given)
    return InvalidToolCall(name=name, args=text, id=id_, error=None, type="invalid_tool_call")


def _renew(call: Any, lap: int) -> Any:
    """Copy a call; assign an id if it has none, and another one in each later pass of a cycle."""
    fresh = copy.deepcopy(call)
    if call["id"] is None:
        fresh["id"] = f"call_{uuid.uuid4().hex[:24]}"
    elif lap:
        fresh["id"] = f"{call['id']}-{lap + 1}"
    return fresh


def _read_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None for any other text."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _show(message: BaseMessage) -> str:
    calls = [call["name"] for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return f"calls {', '.join(calls)}" if calls else json.dumps(_cut(message.text), ensure_ascii=False)


def _show_request(request: ScriptedRequest) -> str:
    last = f"{request.messages[-1].type} message {_show(request.messages[-1])}" if request.messages else "no messages"
    return f"{last}, with {', '.join(request.tool_names) or 'no tools'}."


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _count(replies: int) -> str:
    return "1 reply" if replies == 1 else f"{replies} replies"


def _ordinal(number: int) -> str:
    teens = 10 <= number % 100 <= 20
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
