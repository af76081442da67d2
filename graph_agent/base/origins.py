"""Defines the origin of an argument of a call, and describes it in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

_AUTHORS: dict[str, str] = {
    "user": "from the user",
    "system": "from the system prompt",
    "memory": "from the memory",
    "task": "from untrusted text in the task",
    "context": "from the conversation of the delegating agent",
    "model": "written by the model",
    "unknown": "unknown, because there is too much text to search",
}
_HOW = {"reference": "by reference", "prose": "in prose"}
OriginKind = Literal["user", "system", "memory", "result", "delegate", "task", "context", "model", "unknown"]
"""The author of an argument: the `user` or a reviewer, the `system` prompt, the `memory`, the `result` of a tool, the
answer of a `delegate`, untrusted text in a delegate's own `task` or in the `context` of it, or the `model` itself,
because nothing that it has read has the value. `unknown` if there was too much text to search all of it."""


class ArgumentOrigin(TypedDict):
    """Where the value of a call's argument comes from."""

    kind: OriginKind
    """Who wrote the value."""
    how: NotRequired[Literal["reference", "field", "prose"]]
    """`reference` if the plan names the result, `field` if the value is a whole field of a result, `prose` if it is a
    part of a longer text; absent for `model` and `unknown`."""
    call: NotRequired[str]
    """Id of the call whose result has the value; absent for other kinds than `result` and `delegate`."""
    name: NotRequired[str]
    """Name of the tool or delegate; absent as above."""
    field: NotRequired[str]
    """Path of the field in the result that has the value, such as `emails[0].body`.

    Absent if the result is one text.
    """
    part: NotRequired[str]
    """The part of the argument that was found, without punctuation; absent if the whole was."""
    untrusted: NotRequired[Literal[True]]
    """The value comes from text that outsiders can write, and the user did not write it; absent if not."""
    parts: NotRequired[list[str]]
    """Of a delegation's task, and of a fact for the memory, the parts that come from untrusted text; absent if there
    are none."""


class TracedCall(TypedDict):
    """The fields of a call that exist only with the setting `origins`, which traces where arguments come from."""

    origins: NotRequired[dict[str, ArgumentOrigin]]
    """Path of an argument, such as `recipients[0]` → where it comes from; absent unless origins are traced."""
    tainted: NotRequired[list[str]]
    """Paths of the arguments for which the call is held or refused; absent if there are none.

    Such an argument is one of the tool's `sinks` (e.g. a recipient) and comes from untrusted text.
    """


def origin_text(origin: Mapping[str, Any]) -> str:
    """Return an origin in words, such as `from read_email, call c3, emails[0].body, in prose, untrusted`, without the
    parts that it does not have."""
    words = [_AUTHORS.get(origin["kind"]) or f"from {origin['name']}, call {origin['call']}"]
    if field := origin.get("field"):
        words.append(field)
    if how := _HOW.get(origin.get("how", "")):
        words.append(how)
    if part := origin.get("part"):
        words.append(f"only the part {part!r}")
    if "untrusted" in origin:
        words.append("untrusted")
    return ", ".join(words)


def origins_text(call: Mapping[str, Any], *, tainted: bool = False) -> list[str]:
    """Return one line for each argument whose origin is known: its path, a colon, and the origin in words.

    Args:
        call: A call, or a dict with its fields, such as an event, a span or an approval request.
        tainted: Whether to return only the arguments for which the call is held or refused.
    """
    origins: Mapping[str, Any] = call.get("origins", {})
    paths = call.get("tainted", ()) if tainted else origins
    return [f"{path}: {origin_text(origins[path])}" for path in paths]
