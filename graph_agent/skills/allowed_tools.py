"""Compares calls with the `allowed-tools` of the skills that an input has loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage

from graph_agent._compat import read_running_state
from graph_agent.state.messages import since_input
from graph_agent.tools.read_result import READ_RESULT
from graph_agent.types import Call

LOAD_SKILL = "load_skill"
READ_SKILL_FILE = "read_skill_file"
_ALWAYS = frozenset({LOAD_SKILL, READ_SKILL_FILE, READ_RESULT})
"""Tools that only read what the agent has."""
_LIMITED = re.compile(r"([^()]+)\(([^()]*)\)")
"""An entry with a limit on arguments, such as `Bash(git:*)`."""
_SEPARATORS = frozenset(";&|<>$`\\\n\r(){}")
"""Characters by which a shell runs more than the command at the start of a line."""


def allows(entry: str, call: Call) -> bool:
    """Whether an entry of `allowed-tools` allows a call.

    `search` allows the tool of that name, and `files_*` each tool that fits the pattern. `shell(git:*)` allows a call
    whose only argument is a text that is `git` or begins with `git `, without characters by which a shell runs further
    commands; `shell(git status)` allows exactly that text, and `shell(*)` every call. Any other limit allows nothing.
    """
    limited = _LIMITED.fullmatch(entry)
    if limited is None:
        return fnmatchcase(call["name"], entry)
    name, limit = limited[1], limited[2].strip()
    if not fnmatchcase(call["name"], name):
        return False
    if limit == "*":
        return True
    texts = list(call["arguments"].values())
    if len(texts) != 1 or not isinstance(texts[0], str):
        return False
    text = texts[0].strip()
    if not limit.endswith(":*"):
        return text == limit and "*" not in limit
    prefix = limit.removesuffix(":*")
    fits = bool(prefix) and "*" not in prefix and (text == prefix or text.startswith(f"{prefix} "))
    return fits and _SEPARATORS.isdisjoint(text)


def loaded_since_input(messages: Sequence[AnyMessage]) -> dict[str, Mapping[str, Any]]:
    """Return the skills that the newest input has loaded: name → value of the result of `load_skill`."""
    found: dict[str, Mapping[str, Any]] = {}
    for message in since_input(messages):
        if isinstance(message, ToolMessage) and message.name == LOAD_SKILL and message.status == "success":
            # Middleware may have replaced the result.
            value = message.artifact.get("structured_content") if isinstance(message.artifact, dict) else None
            if isinstance(value, dict) and "skill" in value:
                found[value["skill"]] = value
    return found


def review_call(call: Call) -> str | None:
    """Return why a call needs approval: it is outside the lists of the loaded skills; None if it needs none.

    A skill without a list limits nothing. With several lists, one that allows the call is enough.
    """
    if call["name"] in _ALWAYS:
        return None
    loaded = loaded_since_input(read_running_state(["messages"]).get("messages", ()))
    lists = {name: value["allowed_tools"] for name, value in loaded.items() if "allowed_tools" in value}
    if not lists or any(allows(entry, call) for entries in lists.values() for entry in entries):
        return None
    given = "; ".join(f"{name}: {' '.join(entries) or 'none'}" for name, entries in lists.items())
    return f"{call['name']} is not in the allowed-tools of the loaded skills ({given})."
