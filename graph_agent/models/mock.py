"""The scripted model that replaces every other model: `DEBUG_MOCK_RESPONSES`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from graph_agent.errors import ConfigError
from graph_agent.models.scripted import ScriptedChatModel

MOCK_VARIABLE = "DEBUG_MOCK_RESPONSES"
_EXAMPLE = """["No more actions.", "Hello!"]"""
_SHOWN_CHARS = 80


class MockChatModel(ScriptedChatModel):
    """The scripted model of `DEBUG_MOCK_RESPONSES`; agents that are opened together share it."""


def mock_model_from_env(environ: Mapping[str, str] = os.environ) -> MockChatModel | None:
    """Build a scripted model from `DEBUG_MOCK_RESPONSES`, a JSON array of strings.

    Each call returns a new model, which starts at the first reply.

    Args:
        environ: the environment. Default: that of the process.

    Returns:
        The model; None if the variable is unset or blank.

    Raises:
        ConfigError: if the variable is not a non-empty JSON array of strings, or one of the strings cannot be parsed as
            a reply.
    """
    raw = environ.get(MOCK_VARIABLE, "")
    if not raw.strip():
        return None
    try:
        replies = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"is not JSON ({error})", raw) from None
    if not isinstance(replies, list):
        raise _refusal(f"must be a JSON array, and this is {_kind(replies)}", raw)
    if not replies:
        raise _refusal("holds no replies", raw)
    for number, reply in enumerate(replies, 1):
        if not isinstance(reply, str):
            raise _refusal(f"must hold strings only, and item {number} is {_kind(reply)}", raw)
    try:
        return MockChatModel(responses=replies)
    except ConfigError as error:
        raise _refusal(f"cannot be used: {error}", raw) from None


def _refusal(problem: str, raw: str) -> ConfigError:
    got = raw if len(raw) <= _SHOWN_CHARS else f"{raw[:_SHOWN_CHARS]}…"
    return ConfigError(
        f"{MOCK_VARIABLE} {problem}; got {got!r}. Set it to a JSON array of strings, such as "
        f"{MOCK_VARIABLE}='{_EXAMPLE}', or unset it to use the real model."
    )


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names[type(value)]
