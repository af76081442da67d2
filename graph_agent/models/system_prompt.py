"""Reads the system prompt from its source, and builds the description of tools in it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from langchain_core.messages import BaseMessage, SystemMessage

from graph_agent.base._internal.failure_log import exception_text, get_logger, log_user_error
from graph_agent.base.errors import ConfigError
from graph_agent.models.prompts import Prompts

logger = get_logger("graph_agent.prompts.system_prompt")

DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant."

PromptContent: TypeAlias = str | list[str | dict[Any, Any]]
"""Content of a message: text, or content blocks."""


def system_prompt_source(
    given: object, state: Callable[[], dict[str, Any]] = dict
) -> PromptContent | Callable[[], PromptContent]:
    """Validate an agent's system prompt, and return its content, or a function that returns the content for each
    request.

    That function calls the user's function. If this raises, or returns neither text nor a `SystemMessage`, it logs the
    exception and raises `ConfigError`.

    Args:
        given: Text, a `SystemMessage`, or a plain function that returns one of them. The function has no required
            parameter, or one, which receives the running node's state.
        state: Returns the running node's state.

    Raises:
        ConfigError: `given` is none of these.
    """
    if (fixed := _content(given)) is not None:
        return fixed
    if not callable(given):
        raise ConfigError(
            f"system_prompt={given!r}: give text or a SystemMessage, or a function that returns one of them."
        )
    name = getattr(given, "__name__", repr(given))
    if inspect.iscoroutinefunction(given):
        raise ConfigError(f"system_prompt: {name} is a coroutine function; give a plain function that returns text.")
    needed = _needed_parameters(given)
    if len(needed) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed):
        names = ", ".join(repr(parameter.name) for parameter in needed)
        raise ConfigError(
            f"system_prompt: the function {name} needs {names}, and it is called with the state alone, or without "
            "arguments; give its other parameters defaults, or pass e.g. functools.partial or a lambda."
        )

    def source() -> PromptContent:
        try:
            text = given(state()) if needed else given()
        except (Exception, SystemExit) as error:
            log_user_error(logger, f"The system_prompt function {name}", error)
            raise ConfigError(f"system_prompt: the function {name} failed: {exception_text(error)}") from error
        if (content := _content(text)) is None:
            raise ConfigError(f"system_prompt: the function {name} returned {text!r}; return text or a SystemMessage.")
        return content

    return source


def text_of_source(given: object) -> str | None:
    """Return the system prompt as text before its variables are filled in; None for a function without a template.

    The template of a function is its attribute `template`, if it has one. Content blocks become JSON.
    """
    content = _content(given)
    if content is None:
        template = getattr(given, "template", None)
        return template if isinstance(template, str) else None
    return content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=str)


def joined_sections(sections: Sequence[PromptContent]) -> PromptContent:
    """Join the sections of a system prompt, leaving out empty ones; the result is text unless a section has blocks.

    Sections of text are separated by a blank line.
    """
    given = [section for section in sections if section]
    if all(isinstance(section, str) for section in given):
        return "\n\n".join(section for section in given if isinstance(section, str))
    blocks = [[{"type": "text", "text": section}] if isinstance(section, str) else section for section in given]
    return [block for section in blocks for block in section]


def _content(given: object) -> PromptContent | None:
    """Return the content of a text or a `SystemMessage`; None for any other object."""
    if isinstance(given, SystemMessage):
        return given.content
    return given if isinstance(given, str) else None


def _needed_parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of a function that have no default; empty if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []  # some C callables have no signature
    return [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


M = TypeVar("M", bound=BaseMessage)


def tools_in_text(prompts: Prompts, schemas: Sequence[Mapping[str, Any]], *, plan: bool) -> str:
    """Return the description of tools for the system prompt; empty if there are no tools.

    Args:
        prompts: The agent's prompts, of which `text_tools` is rendered.
        schemas: The tools, in OpenAI's function format.
        plan: Whether the tools are called in structured plans; otherwise in text.
    """
    if not schemas:
        return ""
    # A caller's function may lack these keys.
    absent = {"description": "", "parameters": {}}
    return prompts.render("text_tools", tools=[{**absent, **schema["function"]} for schema in schemas], plan=plan)


def replace_tools_text(messages: Sequence[M], before: str, after: str) -> list[M]:
    """Return a request with the text `before` in its system prompt replaced by `after`; all else is unchanged."""
    return [
        _replace_in(message, before, after) if isinstance(message, SystemMessage) else message for message in messages
    ]


def _replace_in(message: M, before: str, after: str) -> M:
    """Return a copy of a message with the text `before` replaced by `after` wherever it occurs in the texts of its
    content."""
    content = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": content.replace(before, after)})
    blocks = [
        {**block, "text": str(block.get("text", "")).replace(before, after)}
        if isinstance(block, dict) and block.get("type") == "text"
        else block
        for block in content
    ]
    return message.model_copy(update={"content": blocks})
