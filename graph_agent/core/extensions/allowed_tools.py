"""Compares calls with the `allowed-tools` of the loaded skills, the tools that may run without approval."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from graph_agent.base._compat import read_running_state
from graph_agent.base._internal.text import visible
from graph_agent.base.calls import reviewed_together
from graph_agent.base.input_messages import since_input
from graph_agent.base.types import Call
from graph_agent.core.extensions.read_result import READ_RESULT
from graph_agent.core.extensions.skill_folder import Skill

LOAD_SKILL = "load_skill"
"""Name of the tool that loads a skill."""
READ_SKILL_FILE = "read_skill_file"
"""Name of the tool that reads a file of a skill."""
_ALWAYS = frozenset({LOAD_SKILL, READ_SKILL_FILE, READ_RESULT})
"""Names of tools that need no entry in `allowed-tools`, because they only read what the agent has."""
_LIMITED = re.compile(r"([^()]+)\(([^()]*)\)")
"""Matches an entry of `allowed-tools` with a limit on arguments, such as `Bash(git:*)`."""
_SEPARATORS = frozenset(";&|<>$`\\(){}")
"""Characters by which a shell runs more than the command at the start of a line."""
_SPACES = " \t\n\r"
"""Characters that a shell skips around a command."""


def allows(entry: str, call: Call) -> bool:
    """Whether an entry of a skill's `allowed-tools` permits a call without approval.

    - `search` permits the tool of that name, and `files_*` each tool whose name fits the pattern; a pattern may also
      stand before the parenthesis of the forms below.
    - `shell(git:*)` permits a call whose only argument is a text that is `git` or begins with `git `, without invisible
      characters and without those by which a shell runs further commands.
    - `shell(git status)` permits exactly that text as the only argument, and `shell(*)` every call of the tool.
    - A limit with a `*` elsewhere permits nothing. Spaces and line ends around the argument are ignored.
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
    text = texts[0].strip(_SPACES)
    if not limit.endswith(":*"):
        return text == limit and "*" not in limit
    prefix = limit.removesuffix(":*")
    fits = bool(prefix) and "*" not in prefix and (text == prefix or text.startswith(f"{prefix} "))
    # Programs and screens end lines at other characters than sh does, such as U+2028, or do not show them.
    flat = text.replace("\t", " ")
    return fits and _SEPARATORS.isdisjoint(text) and visible(flat) == flat


def loaded_since_input(messages: Sequence[AnyMessage]) -> dict[str, Mapping[str, Any]]:
    """Return the skills loaded since the newest user message, as name → value of the result of `load_skill`.

    The value is `{"skill": …, "digest": …}`, with `allowed_tools` if the skill has such a list. Failed loads, and
    results whose value middleware removed, do not count; of two loads of a skill, the newer one does.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for message in since_input(messages):
        if isinstance(message, ToolMessage) and message.name == LOAD_SKILL and message.status == "success":
            # Middleware may have replaced the result.
            value = message.artifact.get("structured_content") if isinstance(message.artifact, dict) else None
            if isinstance(value, dict) and "skill" in value:
                found[value["skill"]] = value
    return found


def loaded_together(messages: Sequence[AnyMessage]) -> set[str]:
    """Return the names of the skills that the newest reply of the model loads, including those in `reviewed_together`.

    The other calls of this reply may run before the skill is loaded.
    """
    reply = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    stored = [(call["name"], call["args"]) for call in reply.tool_calls] if reply is not None else []
    calls = [*stored, *((call["name"], call["arguments"]) for call in reviewed_together.get())]
    return {str(arguments.get("name", "")) for name, arguments in calls if name == LOAD_SKILL}


def review_call(call: Call, find: Callable[[str], Skill | None]) -> str | None:
    """Return why a call needs approval because of the loaded skills, as text for the person; None if it needs none.

    It needs approval if at least one loaded skill has `allowed-tools` and no such list permits the call. Skills that
    the same reply loads count as loaded, with the list that `find` gives; the others count with the list in the result
    of `load_skill`. The tools of skills themselves and `read_result` need none. Call this within a node, whose messages
    are read.

    Args:
        find: Returns the skill of a name; None if there is none.
    """
    if call["name"] in _ALWAYS:
        return None
    messages = read_running_state(["messages"]).get("messages", ())
    loading = filter(None, map(find, loaded_together(messages)))
    lists = {skill.name: [*skill.allowed_tools] for skill in loading if skill.allowed_tools is not None}
    loaded = loaded_since_input(messages)
    lists |= {name: value["allowed_tools"] for name, value in loaded.items() if "allowed_tools" in value}
    if not lists or any(allows(entry, call) for entries in lists.values() for entry in entries):
        return None
    given = "; ".join(f"{name}: {' '.join(entries) or 'none'}" for name, entries in lists.items())
    return f"{call['name']} is not in the allowed-tools of the loaded skills ({given})."
