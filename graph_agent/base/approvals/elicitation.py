"""Builds the question of an MCP server to a person (an elicitation), and validates the answer.

The question is the value of an interrupt, an `ElicitationRequest`. An answer is `{"action": "accept", "content": {…}}`,
`{"action": "decline"}` or `{"action": "cancel"}`. For clients that only exchange messages, `elicitation_text` and
`read_elicitation_answer` convert both to text and back.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from graph_agent.base._internal.text import brief_repr, visible, visible_json
from graph_agent.base.errors import ConfigError, DecisionError

ElicitationAction: TypeAlias = Literal["accept", "decline", "cancel"]
"""What the person does with the question: `accept` answers it, `decline` refuses, `cancel` dismisses it."""
ELICITATION = "elicitation"
"""Value of the key `type` of an `ElicitationRequest`."""

_ACTIONS: tuple[ElicitationAction, ...] = ("accept", "decline", "cancel")
_ACCEPT = re.compile(r"(?:accept(?:ed)?|approved?|yes|y|ok|okay|done)[.!]?", re.IGNORECASE)
_DECLINE = re.compile(r"(?:declined?|reject(?:ed)?|deny|denied|no|n)[.!]?", re.IGNORECASE)
_CANCEL = re.compile(r"cancel(?:l?ed)?[.!]?", re.IGNORECASE)


class ElicitationRequest(TypedDict):
    """The value of the interrupt by which an MCP server asks a person during a tool call."""

    type: Literal["elicitation"]
    server: str
    """Name of the server."""
    id: str
    """Id of the tool call during which the server asks, and which waits for the answer."""
    name: str
    """Name of the call's tool."""
    mode: Literal["form", "url"]
    """Whether the person fills in a form, or opens an address."""
    message: str
    """The server's question."""
    questions: list[str]
    """Digests (`question_digest`) of all questions of this call until now, the present one last.

    An answer belongs to the last.
    """
    repeatable: bool
    """Whether the call may run a second time if the process ends before the answer.

    If False, the call's outcome is unknown then.
    """
    requested_schema: NotRequired[dict[str, Any]]
    """JSON schema of the content of an answer that accepts; absent in mode `url`."""
    url: NotRequired[str]
    """The address to open; absent in mode `form`. To accept means that the person opened it."""
    error: NotRequired[str]
    """Why the previous answer was not accepted; absent for the first question."""


@dataclass(frozen=True, slots=True)
class ElicitationAnswer:
    """A person's validated answer to the question of an MCP server."""

    action: ElicitationAction
    content: dict[str, Any] | None = None
    """The form's values; None unless a form is accepted."""

    def as_value(self) -> dict[str, Any]:
        """Return the answer as JSON: `{"action": …}`, with `content` if a form was accepted."""
        return {"action": self.action} if self.content is None else {"action": self.action, "content": self.content}


def question_digest(mode: str, message: str, schema: Mapping[str, Any] | None, url: str | None) -> str:
    """Return 16 hexadecimal digits that identify a question: the same question of a repeated call has the same digits.

    Args:
        mode: `form` or `url`.
        message: The text of the question.
        schema: JSON schema of the form; None in mode `url`.
        url: The address in mode `url`; None in mode `form`. It usually holds an id of the single request, so two
            questions with different addresses are different questions.
    """
    parts = [mode, message, schema, url]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def is_elicitation(value: Any) -> bool:
    """Whether the value of an interrupt is an `ElicitationRequest`, by its `type` and a text as `message`."""
    return isinstance(value, Mapping) and value.get("type") == ELICITATION and isinstance(value.get("message"), str)


def response_schema(request: ElicitationRequest) -> dict[str, Any]:
    """Return the JSON schema of a valid answer to a question. The interrupt publishes it for the program that resumes.

    The schema permits `{"action": "accept"}`, in mode `form` with a `content`, or an `action` `decline` or `cancel`.
    """
    accept: dict[str, Any] = {"action": {"const": "accept"}}
    required = ["action"]
    if request["mode"] == "form":
        accept["content"] = request.get("requested_schema", {"type": "object"})
        required.append("content")
    refuse = {"type": "object", "properties": {"action": {"enum": ["decline", "cancel"]}}, "required": ["action"]}
    return {"anyOf": [{"type": "object", "properties": accept, "required": required}, refuse]}


def elicitation_text(request: Mapping[str, Any]) -> str:
    """Return a question as text for a client that shows only messages.

    The lines are the server's name and its message, the address or one line for each form field, the error of the
    previous answer if there is one, and how to answer. Invisible characters are shown as escapes. Only mode `url` has
    an address.
    """
    lines = [f"The MCP server {visible(str(request.get('server', '')))} asks: {visible(request['message'])}"]
    if request.get("mode") == "url":
        lines.append(f"Open this address, if you trust it: {visible(str(request.get('url', '')))}")
    lines += [f"   {line}" for line in _field_lines(request)]
    if (error := request.get("error")) is not None:
        lines.append(f"The last answer was not accepted: {error}")
    lines.append(_how_to_answer(request))
    return "\n".join(lines)


def read_elicitation_answer(request: Mapping[str, Any], answer: Any) -> ElicitationAnswer:
    """Validate a person's answer to a question.

    Args:
        request: The question, an `ElicitationRequest`.
        answer: A mapping with the key `action`, at most the keys `content` and `decided_by` beside it, and `content` if
            it accepts a form; any other mapping, which is the content itself and accepts; a boolean (True accepts,
            False declines); or text. As text, words such as `yes`, `no` and `cancel` are
            actions; text that begins with `{` is parsed as JSON; any other text is the value of the form's only field,
            or of its only required field. `yes` fills in a form whose only field is a boolean.

    Returns:
        The answer. The content of an accepted form includes the schema's defaults of fields that were left out, and is
        not checked if the schema itself is invalid. A declined or cancelled question, and one in mode `url`, has no
        content (None), whatever `answer` contains.

    Raises:
        DecisionError: The answer has another form, an unknown action, or content that does not fit the schema.
    """
    if isinstance(answer, str):
        answer = _answer_in_text(request, answer.strip())
    elif isinstance(answer, bool):
        answer = _action_for_word(request, "accept" if answer else "decline")
    if not isinstance(answer, Mapping):
        raise _misfit(request, answer)
    if answer.keys() <= {"action", "content", "decided_by"} and "action" in answer:
        action, content = answer["action"], answer.get("content")
        if action not in _ACTIONS:
            raise DecisionError(f"action={action!r} is none of {', '.join(_ACTIONS)}. {_how_to_answer(request)}")
    else:
        # Clients of forms send the values alone.
        action, content = "accept", answer
    if action != "accept" or request.get("mode") == "url":
        return ElicitationAnswer(action)
    return ElicitationAnswer(action, _content(request, content))


def _answer_in_text(request: Mapping[str, Any], text: str) -> Any:
    """Convert an answer in text to a mapping (see `read_elicitation_answer`).

    Text that begins with `{` is parsed as JSON, and its value is returned without further checks.

    Raises:
        DecisionError: The text is empty or invalid JSON; or it is no action word, and the form has no main field (see
            `_main_field`) to hold it.
    """
    if text.startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DecisionError(f"The answer is no valid JSON: {error}. {_how_to_answer(request)}") from None
    for pattern, action in ((_ACCEPT, "accept"), (_DECLINE, "decline"), (_CANCEL, "cancel")):
        if pattern.fullmatch(text):
            return _action_for_word(request, action)
    name = _main_field(request)
    if name is None or not text:
        raise _misfit(request, text)
    return {"action": "accept", "content": {name: _from_text(_fields(request)[name], text)}}


def _action_for_word(request: Mapping[str, Any], action: str) -> dict[str, Any]:
    """Return the answer for a word such as `yes`: `{"action": …}`, with `content` if the action is `accept`.

    The content is empty, except that accepting a form whose only field is a boolean sets that field to True. `request`
    is the question.
    """
    fields = _fields(request)
    if action != "accept":
        return {"action": action}
    # A form with a single yes-or-no question is answered by the word itself.
    booleans = [name for name, field in fields.items() if field.get("type") == "boolean"]
    return {"action": action, "content": {booleans[0]: True} if len(booleans) == len(fields) == 1 else {}}


def _from_text(field: Mapping[str, Any], text: str) -> Any:
    """Parse a text as the value of a form's field, by the `type` in the field's schema.

    Numbers, booleans and arrays are parsed as JSON. The text itself is returned for any other type, and if it is no
    JSON; the schema's check then reports the mismatch.
    """
    kind = field.get("type")
    if kind in ("number", "integer", "boolean", "array"):
        with suppress(ValueError, RecursionError):  # the schema's check reports it
            return json.loads(text.lower() if kind == "boolean" else text)
    return text


def _content(request: Mapping[str, Any], content: Any) -> dict[str, Any]:
    """Return the values of a form, completed by the schema's defaults for fields that were left out.

    If the server's schema itself is invalid, the values are returned unchecked.

    Args:
        request: The question.
        content: The values as given; None counts as no values.

    Raises:
        DecisionError: The content is no mapping, or does not fit the schema.
    """
    given = {} if content is None else content
    if not isinstance(given, Mapping):
        raise _misfit(request, given)
    defaults = {name: field["default"] for name, field in _fields(request).items() if "default" in field}
    # A person who answers in text cannot see defaults as a form shows them.
    filled = {**defaults, **given}
    # Imported here: it loads a validator, which most sessions do not need.
    from graph_agent.base._internal.json_schema import SchemaCheck

    try:
        why = SchemaCheck(dict(request.get("requested_schema") or {}), "The schema of the answer").misfit(filled)
    except ConfigError:
        return filled  # the server's own fault; it checks the answer itself
    if why is not None:
        raise DecisionError(f"The answer does not fit the question: {why}. {_how_to_answer(request)}")
    return filled


def _fields(request: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return field name → JSON schema of the field for a question's form; an empty dict if it has no form."""
    schema = request.get("requested_schema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {name: field if isinstance(field, Mapping) else {} for name, field in properties.items()}


def _main_field(request: Mapping[str, Any]) -> str | None:
    """Return the name of the only field, or of the only required one; None if there is none or several."""
    fields, required = list(_fields(request)), _required(request)
    needed = fields if len(fields) == 1 else [name for name in fields if name in required]
    return needed[0] if len(needed) == 1 else None


def _required(request: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the form's required fields; an empty list if the schema has none."""
    schema = request.get("requested_schema")
    names = schema.get("required") if isinstance(schema, Mapping) else None
    return names if isinstance(names, list) else []


def _field_lines(request: Mapping[str, Any]) -> Sequence[str]:
    """Return one line for each field of the form: name, `(optional)` unless required, rules as JSON, and description,
    or else title."""
    required = _required(request)
    lines: list[str] = []
    for name, field in _fields(request).items():
        rules = {key: value for key, value in field.items() if key not in ("title", "description")}
        text = field.get("description") or field.get("title") or ""
        label = f"{visible(name)}{'' if name in required else ' (optional)'}: {visible_json(rules)}"
        lines.append(f"{label} {visible(str(text))}".rstrip())
    return lines


def _how_to_answer(request: Mapping[str, Any]) -> str:
    """Return a sentence that explains how to answer the question in text.

    It lists the words for actions and, for a form that is more than one boolean, a JSON object of the fields and, if it
    has one main field (see `_main_field`), the value of that field.
    """
    fields = _fields(request)
    if request.get("mode") == "url":
        return 'Answer "accept" when you have opened it, "decline", or "cancel".'
    if not fields or [field.get("type") for field in fields.values()] == ["boolean"]:
        return 'Answer "accept", "decline", or "cancel".'
    main = _main_field(request)
    form = "" if main is None else f"the value of {visible(main)}, "
    return f'Answer with {form}a JSON object of the fields, "decline", or "cancel".'


def _misfit(request: Mapping[str, Any], answer: Any) -> DecisionError:
    """Return (not raise) the error for an answer that does not fit the question; the message explains how to answer."""
    return DecisionError(f"{brief_repr(answer)} is no answer to the question. {_how_to_answer(request)}")
