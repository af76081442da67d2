"""Selects the form of requests and replies in text mode: by a schema of the toolbox, or by the prompt alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage

from graph_agent.base._internal.lenient_json import parse_lenient_json
from graph_agent.base._internal.lru import BoundedCache
from graph_agent.base._internal.text import after_reasoning
from graph_agent.base.calls import RESULT_MARKER
from graph_agent.models.errors import cut_off
from graph_agent.models.sanitize import with_text
from graph_agent.models.stream_filters import SENTINEL
from graph_agent.models.wire.answer_decoder import AnswerDecoder, answer_of_object, cut_at_stop
from graph_agent.models.wire.examples import ExampleAnswers, example_turns, with_examples
from graph_agent.models.wire.toolbox_schema import reply_schema, text_answer_schema

MOST_TOOLS = 128
"""Maximum tools in a reply's schema; with more, a server takes seconds to build the grammar of each request."""
_MOST_STOPS = 4
"""Maximum stop sequences of a request in OpenAI's API."""


class TextReplies:
    """Builds the schemas and example turns of text mode for one set of tools, and caches them.

    Args:
        tools: The offered tools, in OpenAI's function format.
        tool_choice: The tool that a planning reply must call, or `any`; None requires none.
    """

    def __init__(self, tools: Sequence[dict[str, Any]], tool_choice: str | None) -> None:
        self._tools = tools
        self._choice = tool_choice
        self._schemas: BoundedCache[tuple[Any, ...], dict[str, Any] | None] = BoundedCache()
        self._examples: dict[ExampleAnswers, list[BaseMessage]] = {}

    def schema(
        self, phase: Literal["plan", "answer"], answer: dict[str, Any] | None, *, answers: bool, most_calls: int
    ) -> dict[str, Any] | None:
        """Return the JSON schema of a reply; None for planning with more than `MOST_TOOLS` or too deeply nested tools.

        Args:
            phase: `plan` for a reply with calls, `answer` for one without.
            answer: The user's schema of a typed answer; None for an answer in prose.
            answers: Whether a planning reply may also be the answer.
            most_calls: Maximum calls of one planning reply.
        """
        if phase == "answer":
            return answer if answer is not None else text_answer_schema()
        if len(self._tools) > MOST_TOOLS:
            return None
        final = (answer if answer is not None else text_answer_schema()) if answers else None

        def build() -> dict[str, Any] | None:
            try:
                return reply_schema(self._tools, answer=final, required=self._choice, most_calls=most_calls)
            except RecursionError:
                return None

        return self._schemas.get((repr(final), most_calls), build)

    def with_examples(self, messages: Sequence[BaseMessage], answers: ExampleAnswers) -> list[BaseMessage]:
        """Return the request with example turns after its system prompt.

        Args:
            messages: The request.
            answers: The form in which the examples show an answer.
        """
        if answers not in self._examples:
            self._examples[answers] = example_turns(self._tools, answers)
        return with_examples(messages, self._examples[answers])


def with_result_marker(stop: object) -> list[str]:
    """Add the marker that begins a tool result in text to the stop sequences of a request.

    The marker ends the reply where the model would invent a result. It is left out if there are 4 sequences already,
    the most that OpenAI's API takes.

    Args:
        stop: The configured stop sequences: text, a collection, or anything else for none.
    """
    own = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Collection) else []
    return own if len(own) >= _MOST_STOPS or RESULT_MARKER in own else [*own, RESULT_MARKER]


def read_by_schema(
    reply: AIMessage, decoder: AnswerDecoder, schema: Mapping[str, Any] | None, stop: Sequence[str]
) -> tuple[AIMessage, bool]:
    """Decode the answer of a reply in text mode whose schema the provider enforced.

    - With a schema of the user, the text is unchanged; it is an answer if it is an object that is not one of calls.
    - An object with the answer becomes the answer's text.
    - An object with an empty `tool_calls` becomes the sentinel (`No more actions.`), and any other text is unchanged;
      neither counts as an answer.

    Args:
        reply: The complete reply.
        decoder: The decoder that received the reply's streamed text; for a reply that was not streamed, a new one.
        schema: The user's schema of a typed answer; None for an answer in prose.
        stop: Sequences at which an answer ends.

    Returns:
        The reply, and whether it is an answer, whose text must not be parsed for calls.
    """
    if schema is not None:
        value = _object(reply.text)
        return reply, value is not None and not isinstance(value.get("tool_calls"), list)
    text = str(reply.text)
    if decoder.is_fed:
        text += decoder.rest()
    else:
        text = decoder(text) + decoder.rest()
    if decoder.is_answer:
        return with_text(reply, text), True
    if (answer := answer_of_object(after_reasoning(text))) is not None:
        return with_text(reply, cut_at_stop(answer, stop)), True
    if (value := _object(text)) is not None and value.get("tool_calls") == []:
        # An empty list of calls means the same.
        text = SENTINEL
    return with_text(reply, text), False


def ignores_schema(reply: AIMessage) -> bool:
    """Whether a complete reply proves that the server ignored the requested schema: its text is no JSON object.

    False for a reply with calls, an empty one, or one that was cut off.
    """
    text = after_reasoning(reply.text).strip()
    return bool(text) and not text.startswith("{") and not reply.tool_calls and cut_off(reply) is None


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that follows the reasoning in a text; None if anything else follows. Damaged JSON is
    repaired.
    """
    body = after_reasoning(text).strip()
    if not body.startswith("{"):
        return None
    try:
        value = parse_lenient_json(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
