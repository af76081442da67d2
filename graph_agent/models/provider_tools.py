"""Reads the tools that a model's provider runs, such as web search, from the dicts and objects that name them.

The provider runs such a tool inside a request: the agent offers it, and receives the calls with their results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel

from graph_agent.base._compat import uses_responses_api
from graph_agent.base.errors import ConfigError
from graph_agent.models.wire.rules import ProviderApi, WireRules

_OPENAI = re.compile(
    r"(web_search)(?:_preview)?(?:_\d{4}_\d\d_\d\d)?|file_search|code_interpreter|image_generation|mcp"
)
"""Types of tools that OpenAI's Responses API runs; the group is the name without a version."""
_ANTHROPIC = re.compile(r"(web_search|web_fetch|code_execution)_\d{8}|mcp_toolset|(tool_search)_tool_\w+_\d{8}")
"""Types of tools that Anthropic's Messages API runs."""
_GEMINI = frozenset(
    {"google_search", "google_search_retrieval", "google_maps", "code_execution", "url_context", "file_search"}
)
"""Names of tools that Gemini's API runs."""
_OF_CALLER = re.compile(
    r"(?:bash|text_editor|computer|memory)_\d{8}|computer_use_preview|computer_use|local_shell|shell|apply_patch|custom"
)
"""Types of tools that a provider defines and that the caller has to run."""
_NAMES: dict[ProviderApi, str] = {
    "openai": "OpenAI's Responses API",
    "anthropic": "Anthropic's Messages API",
    "gemini": "Gemini's API",
}


@dataclass(frozen=True)
class ProviderTool:
    """A tool that the model's provider runs inside a request, such as a web search."""

    name: str
    """Name of the tool, without the version in its type; for an MCP server of OpenAI's API, its label."""
    api: ProviderApi
    """The kind of API that runs it."""
    definition: Mapping[str, Any]
    """The entry that a request has in `tools`, unchanged."""


def read_provider_tools(given: object, where: str) -> list[ProviderTool]:
    """Return the tools of a provider that one item of an agent's `tools` names; empty for anything else, such as an own
    tool.

    A dict of Gemini's API gives one tool for each key.

    Args:
        given: A dict in the form of a provider's API, or a `Tool` of `google.genai`, which may contain several.
        where: Text that names the item, such as `tools[2]`, for errors.

    Raises:
        ConfigError: The caller would have to run the tool, or it asks for approval (`approve`, or an MCP server of
            OpenAI's API without `require_approval: never`).
    """
    if type(given).__module__.startswith("google.genai") and isinstance(given, BaseModel):
        given = given.model_dump(exclude_none=True)
    if not isinstance(given, Mapping):
        return []
    if "approve" in given:
        raise ConfigError(f"{where}: {_NO_APPROVAL}")
    kind = given.get("type")
    if isinstance(kind, str):
        if found := _OPENAI.fullmatch(kind):
            if kind == "mcp" and given.get("require_approval") != "never":
                raise ConfigError(
                    f"{where}: OpenAI asks for approval before a call of this MCP server, and {_NO_APPROVAL} Set "
                    "'require_approval': 'never', or connect the server with `open_mcp_tools`."
                )
            name = str(given.get("server_label") or "mcp") if kind == "mcp" else found[1] or kind
            return [ProviderTool(name, "openai", given)]
        if found := _ANTHROPIC.fullmatch(kind):
            name = str(given.get("name") or given.get("mcp_server_name") or found[1] or found[2] or kind)
            return [ProviderTool(name, "anthropic", given)]
        if _OF_CALLER.fullmatch(kind):
            raise ConfigError(
                f"{where}: a tool of the type {kind!r} is not run by the provider, but by your program. Give the agent "
                "a tool of its own, such as those of `workspace_tools`."
            )
        return []
    # LangChain's client accepts one kind in each dict.
    return (
        [ProviderTool(key, "gemini", {key: given[key]}) for key in given] if given and given.keys() <= _GEMINI else []
    )


_NO_APPROVAL = (
    "a tool that the provider runs cannot wait for approval, because its calls have run when the reply arrives. Leave "
    "`approve` out, or give the agent a tool of its own that makes the same call."
)


def split_tools(given: object) -> tuple[object, tuple[ProviderTool, ...]]:
    """Separate the provider's tools from the agent's own in the argument `tools`.

    Args:
        given: The argument; a text, a mapping, a LangGraph `ToolNode` or another object that is not iterable has no
            provider's tools.

    Returns:
        The other items, and the provider's tools, each once. If there are none, the given object itself, or a list of
        an iterator's items.

    Raises:
        ConfigError: The errors of `read_provider_tools`.
    """
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping) or hasattr(given, "tools_by_name"):
        return given, ()
    found: list[ProviderTool] = []
    others: list[object] = []
    # A list of `open_mcp_tools` keeps its identity, by which its server is found.
    items = given if isinstance(given, Sequence) else list(given)
    for at, each in enumerate(items):
        tools = read_provider_tools(each, f"tools[{at}]")
        # A provider refuses the same tool twice.
        found += [tool for tool in tools if tool not in found]
        if not tools:
            others.append(each)
    return (others, tuple(found)) if found else (items, ())


def check_provider_tools(
    tools: Sequence[ProviderTool],
    models: Sequence[tuple[str, BaseChatModel, WireRules]],
    own_names: Iterable[str],
    tool_calling: str,
) -> None:
    """Check that each tool is offered to at least one model of the agent, and that no tool of the agent has its name.

    Args:
        tools: The provider's tools.
        models: Name, chat model and endpoint rules of each configured model, the agent's own first.
        own_names: Names of the agent's own tools and delegates.
        tool_calling: The setting `tool_calling`, which must be `auto` or `native`.

    Raises:
        ConfigError: One of these is not so, `tool_calling` has another value, or a model does not accept such a tool
            together with tools of the agent.
    """
    if tool_calling not in ("auto", "native"):
        raise ConfigError(
            f"tool_calling={tool_calling!r} asks for calls in the model's text, and the tools that the provider runs "
            f"({', '.join(tool.name for tool in tools)}) are offered natively. Leave tool_calling at 'auto'."
        )
    taken = set(own_names)
    for tool in tools:
        if tool.name in taken and "name" in tool.definition:
            raise ConfigError(f"Two tools are named {tool.name!r}, of which the provider runs one; rename the other.")
        if not any(is_offered(tool, model, rules) for _, model, rules in models):
            raise ConfigError(_refusal(tool, *models[0]))
    for name, model, rules in models:
        if taken and not rules.provider_tools_mixed and any(is_offered(tool, model, rules) for tool in tools):
            raise ConfigError(
                f"{name} accepts no tools of the agent in a request with tools that the provider runs "
                f"({', '.join(tool.name for tool in tools)}). Give these to a delegate that has no other tools."
            )


def is_offered(tool: ProviderTool, model: BaseChatModel, rules: WireRules) -> bool:
    """Whether a model's endpoint runs a tool, and the model's client can send it there.

    OpenAI's client can only if the request would use the Responses API.
    """
    if tool.api not in rules.provider_tools:
        return False
    is_client = tool.api == "openai" and hasattr(model, "_use_responses_api")
    return not is_client or uses_responses_api(model, {"tools": [dict(tool.definition)]})


def _refusal(tool: ProviderTool, name: str, model: BaseChatModel, rules: WireRules) -> str:
    """Return the text of the error for a tool that a model does not have, with the fix: the Responses API if the
    provider has the tool there, otherwise a tool of the agent's own.

    Args:
        tool: The provider's tool.
        name: Name of the model.
        model: The chat model.
        rules: The rules of the model's endpoint, which name the provider.
    """
    if tool.api in rules.provider_tools:
        return (
            f"The tool {tool.name!r} needs the Responses API, and the client of {name} is set to chat completions; "
            "build it with use_responses_api=True."
        )
    known = " and ".join(sorted(_NAMES[api] for api in rules.provider_tools))
    return (
        f"The tool {tool.name!r} is one of {_NAMES[tool.api]}, and {name} is served by {rules.provider!r}, which has "
        f"{f'those of {known}' if known else 'no tools that it runs itself'}. Give the agent a tool of its own; for a "
        f"server with this API, set model_rules={{{name!r}: {{'provider_tools': [{tool.api!r}]}}}}."
    )


def check_approvals(tools: Sequence[ProviderTool], rules: Iterable[object]) -> None:
    """Check that no approval rule selects a tool that the provider runs, because its calls cannot wait.

    Args:
        tools: The provider's tools.
        rules: The rules of `approve`; only names and patterns are compared.

    Raises:
        ConfigError: A rule selects such a tool.
    """
    from fnmatch import fnmatchcase

    for tool in tools:
        if any(isinstance(rule, str) and fnmatchcase(tool.name, rule) for rule in rules):
            raise ConfigError(f"approve: {tool.name!r} is run by the provider: {_NO_APPROVAL}")
