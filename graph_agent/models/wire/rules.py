"""Defines what the endpoint of a model accepts in a request: `WireRules`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, get_args

from graph_agent.base._internal.media import ALL_MEDIA, Media
from graph_agent.base.errors import ConfigError, did_you_mean

ProviderApi = Literal["openai", "anthropic", "gemini"]
"""An API that has tools which the provider runs: OpenAI's Responses API, Anthropic's Messages API, or Gemini's."""
CallIds = Literal["any", "plain", "nine"]
"""Form of a call's id: any text; at most 64 letters, digits, `_` and `-`; or exactly nine letters and digits."""


@dataclass(frozen=True, kw_only=True)
class WireRules:
    """What one endpoint accepts; the defaults are the form that nearly all endpoints accept.

    Each field can be set by a user, as `model_rules` of the configuration.
    """

    provider: str = "unknown"
    """Name of the provider or server; a reply's reasoning is sent back only to an endpoint of the same name."""

    # The order of roles.
    user_after_tool: bool = True
    """Whether a user message may follow a tool result; otherwise its text is added to the result."""
    repeated_users: bool = False
    """Whether a user message may follow another; otherwise both are joined."""
    system_role: bool = True
    """Whether there is a system role; otherwise the system prompt is put before the first user message."""
    empty_text: bool = True
    """Whether a message may have an empty text."""
    user_names: bool = True
    """Whether a user message may have the field `name`, which is left out otherwise."""
    reply_names: bool = False
    """Whether a message of the assistant may have the field `name`, which is left out otherwise."""

    # Calls and their results.
    call_ids: CallIds = "any"
    """The form of call ids."""
    tools_with_calls: bool = False
    """Whether a request whose history has calls must offer tools; otherwise calls and results are written as text."""
    text_parts: bool = False
    """Whether the content of a message may be a list of texts; otherwise they are joined to one string."""
    result_media: frozenset[Media] = frozenset()
    """Kinds of media that a tool result may hold; others are put into a user message behind the results."""
    user_media: frozenset[Media] = ALL_MEDIA
    """Kinds of media that a user message may hold; any other is replaced by a text that names it."""
    image_urls: bool = False
    """Whether an image must have OpenAI's form `image_url`, because LangChain's client drops any other."""
    plain_file_names: bool = False
    """Whether a document needs a name, of letters, digits, white space, hyphens and brackets, and a text before it."""

    # What a reply holds in addition to text and calls.
    reasoning_fields: frozenset[str] = frozenset({"reasoning_content", "reasoning", "reasoning_details"})
    """Fields of an OpenAI-compatible assistant message with reasoning that the endpoint accepts back."""
    reasoning_needed: str = ""
    """The field with reasoning that each message with calls must have, empty if need be; no name if none must."""
    thinking_first: bool = False
    """Whether a message with calls of the newest input must begin with the reasoning of this provider.

    Calls of other models since that input are otherwise written as text, with their results.
    """
    signature_needed: bool = False
    """Whether the first call of a message needs a thought signature of Gemini; calls of others get a placeholder."""
    reply_parts: bool = True
    """Whether the content of a model's message may hold other blocks than text, such as its reasoning."""
    reasoning_split: bool = False
    """Whether a request must ask for the reasoning outside of the text."""
    calls_in_kwargs: bool = False
    """Whether LangChain's client reads calls from `additional_kwargs` alone."""
    cache_control: bool = False
    """Whether content blocks may have the field `cache_control`."""

    # Options of a request.
    choice_none: bool = True
    """Whether tool choice `none` exists while tools are offered."""
    choice_forced: bool = True
    """Whether a tool can be required by the tool choice."""
    choice_named: bool = True
    """Whether a single tool can be required by its name; otherwise it is offered alone and any tool is required."""
    json_schema: bool | None = None
    """Whether a JSON schema of the reply is enforced; None if unknown."""
    schema_with_tools: bool = True
    """Whether a JSON schema of the reply can be sent with tools."""
    schema_with_stream: bool = True
    """Whether a reply with a JSON schema can be streamed; otherwise it is requested whole."""
    strict_schema: bool = False
    """Whether a JSON schema must have OpenAI's strict form; one that has none is not sent."""
    stream: bool = True
    """Whether replies can be streamed."""
    stream_usage: bool = True
    """Whether a streamed reply reports its usage if the request asks for it."""
    tools: bool = True
    """Whether tools can be offered natively; otherwise calls are written as text."""
    provider_tools: frozenset[ProviderApi] = frozenset()
    """APIs whose tools that the provider runs, such as web search, the endpoint has."""
    provider_tools_mixed: bool = True
    """Whether a request with such tools may offer tools of the agent, too."""
    left_out: frozenset[str] = frozenset()
    """Options of a request that the endpoint refuses, such as `temperature`; they are not sent."""
    max_tokens: str = ""
    """The name of the option for the maximum number of output tokens; empty for the client's own."""
    window: int | None = None
    """Tokens that the endpoint accepts in one request; None if unknown."""

    # The schemas of tools.
    root_combinators: bool = False
    """Whether the root of a tool's schema may have `anyOf`, `oneOf` or `allOf`."""
    text_enums: bool = False
    """Whether an enumeration in a tool's schema may hold texts only."""
    free_keys: bool = False
    """Whether the names of a tool's arguments may have characters other than letters, digits, `_`, `.` and `-`."""

    @cached_property
    def is_known(self) -> bool:
        """Whether the rules describe a known provider or server."""
        return self.provider != UNKNOWN

    def with_fields(self, values: Mapping[str, Any], where: str = "model_rules") -> Self:
        """Return a copy with some fields replaced by values of a configuration.

        Args:
            values: Field → value; a list is accepted for a set.
            where: Name of the setting, for errors.

        Raises:
            ConfigError: A field is unknown or its value has another type.
        """
        fields: dict[str, Any] = {}
        for name, value in values.items():
            if name not in _TYPES:
                raise ConfigError(f"{where}: unknown field {name!r}; {did_you_mean(name, _TYPES)}")
            kind = _TYPES[name]
            given = (
                frozenset(value) if kind.startswith("frozenset") and isinstance(value, list | tuple | set) else value
            )
            if not _fits(kind, given):
                raise ConfigError(f"{where}: {name} is {_described(kind)}; got {value!r}.")
            fields[name] = given
        return dataclasses.replace(self, **fields)

    def changes_from(self, other: WireRules) -> dict[str, Any]:
        """Return the fields whose values differ from those of `other`, in the form that `with_fields` accepts."""
        changed = {name: getattr(self, name) for name in _TYPES if getattr(self, name) != getattr(other, name)}
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in changed.items()}


UNKNOWN = "unknown"
"""Name of the provider in the rules of an endpoint that is not in the table."""
_TYPES: dict[str, str] = {field.name: str(field.type) for field in dataclasses.fields(WireRules)}
_CHOICES = {"CallIds": get_args(CallIds)}
_APIS: tuple[str, ...] = get_args(ProviderApi)


def _fits(kind: str, value: Any) -> bool:
    match kind:
        case "bool":
            return isinstance(value, bool)
        case "bool | None":
            return value is None or isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        case "int | None":
            return value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0)
        case "frozenset[Media]":
            return isinstance(value, frozenset) and value <= ALL_MEDIA
        case "frozenset[str]":
            return isinstance(value, frozenset) and all(isinstance(each, str) for each in value)
        case "frozenset[ProviderApi]":
            return isinstance(value, frozenset) and value <= {*_APIS}
        case _:
            return value in _CHOICES[kind]


def _described(kind: str) -> str:
    match kind:
        case "bool":
            return "true or false"
        case "bool | None":
            return "true, false or null"
        case "str":
            return "a text"
        case "int | None":
            return "a positive number or null"
        case "frozenset[Media]":
            return f"a list of {', '.join(sorted(ALL_MEDIA))}"
        case "frozenset[str]":
            return "a list of texts"
        case "frozenset[ProviderApi]":
            return f"a list of {', '.join(_APIS)}"
        case _:
            return f"one of {', '.join(_CHOICES[kind])}"
