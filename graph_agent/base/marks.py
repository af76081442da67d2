"""Adds metadata to tools that describes the effects and limits of their calls (marks), as MCP's annotations do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from typing_extensions import TypedDict, Unpack

from graph_agent.base.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from graph_agent.base.approvals.requests import DecisionType

MARKS: dict[str, str] = {
    "effect": '`"read"` for a tool that changes nothing; `"write"`, the default, for one that may',
    "idempotent": "running a call again does no more than running it once",
    "poll": "the same call is meant to be repeated: it is never reported as a loop",
    "approve": "whether a person must approve each call: `True`, a list of the decisions allowed (`approve`, `edit`, "
    "`reject`, `respond`), a description, or a mapping of `allowed_decisions` and `description`",
    "timeout_s": "seconds one call may run; None for no limit",
    "retry": 'LangGraph\'s `RetryPolicy` by its names, such as `{"max_attempts": 2}`',
    "max_output_chars": "characters of one output shown to the model",
    "max_output_lines": "lines of one output shown to the model",
    "truncate": '`"head_tail"` or `"tail"`: which part of a long output is shown',
    "source": '`"untrusted"` for a tool whose results outsiders can write, or a list of the fields that they write; '
    '`"trusted"`, the default, for others. Tools of MCP servers are untrusted by default. For the setting `origins`',
    "sinks": "names of the arguments that decide where a call goes, such as a recipient or an amount. For the setting "
    "`origins`",
    "kind": '`"file_read"`, `"shell"`, `"search"` or `"listing"`: which default limits its outputs get',
}
"""Key of a tool's metadata → its meaning, for documentation."""


_CHOICES: dict[str, tuple[str, ...]] = {
    "effect": ("read", "write"),
    "truncate": ("head_tail", "tail"),
    "kind": ("file_read", "shell", "search", "listing"),
}
"""Key of a tool's metadata → the values that it may have, for keys with a fixed set."""


class Marks(TypedDict, total=False):
    """Types of the keys of a tool's metadata that this package reads; `MARKS` explains them."""

    effect: Literal["read", "write"]
    idempotent: bool
    poll: bool
    approve: bool | str | Sequence[DecisionType] | Mapping[str, Any]
    timeout_s: float | None
    retry: Mapping[str, Any]
    max_output_chars: int
    max_output_lines: int
    truncate: Literal["head_tail", "tail"]
    source: Literal["trusted", "untrusted"] | Collection[str]
    sinks: Collection[str]
    kind: Literal["file_read", "shell", "search", "listing"]


def tool_of(function: Callable[..., Any]) -> BaseTool:
    """Return a tool made of a function with a docstring and type hints; the function's attribute `metadata`, a mapping,
    becomes that of the tool."""
    tool, metadata = as_tool(function), getattr(function, "metadata", None)
    return tool.model_copy(update={"metadata": {**metadata}}) if isinstance(metadata, Mapping) else tool


def marked(given: BaseTool | Callable[..., Any], **marks: Unpack[Marks]) -> BaseTool:
    """Return a copy of a tool with metadata added, e.g. `marked(weather, effect="read", timeout_s=5)`.

    Args:
        given: A LangChain tool, or a callable with a docstring and type hints, from which a tool is made.
        **marks: Keys of `MARKS` with their values; they override those of the tool.

    Raises:
        ConfigError: A key is not in `MARKS`, a value of `effect`, `truncate` or `kind` is none that it may have, or
            `timeout_s` is no positive number. Values of other keys are checked when an agent is built.
    """
    for name, value in marks.items():
        if name not in MARKS:
            raise ConfigError(f"Unknown mark {name!r} on a tool; {did_you_mean(name, MARKS)}")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise ConfigError(f"The mark {name}={value!r} on a tool: use {' or '.join(map(repr, _CHOICES[name]))}.")
        if name == "timeout_s" and not (value is None or (isinstance(value, int | float) and value > 0)):
            raise ConfigError(f"The mark timeout_s={value!r} on a tool: use a positive number of seconds, or None.")
    tool = given if isinstance(given, BaseTool) else tool_of(given)
    return tool.model_copy(update={"metadata": {**(tool.metadata or {}), **marks}})
