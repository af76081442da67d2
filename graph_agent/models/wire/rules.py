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
"""Form of a call's id that an endpoint accepts.

`any` is any text; `plain` is 1 to 64 letters, digits, `_` and `-`; `nine` is exactly nine letters and digits.
"""


@dataclass(frozen=True, kw_only=True)
class WireRules:
    """Describes what the endpoint of one model accepts in a request; the defaults are the form that nearly all accept.

    Each field can be set by a user under `model_rules` of the configuration.
    """

    provider: str = "unknown"
    """Name of the provider or server; a reply's reasoning is sent back only to an endpoint of the same name."""

    # The order of roles.
    user_after_tool: bool = True
    """Whether a user message may follow a tool result; otherwise its text is added to the result."""
    repeated_users: bool = False
    """Whether a user message may follow another; otherwise both are joined."""
    system_role: bool = True
    """Whether messages with the role `system` are accepted.

    Otherwise the system prompt begins the first user message.
    """
    empty_text: bool = True
    """Whether the text of a message may be empty; otherwise it is replaced, e.g. by `(no text)`."""
    user_names: bool = True
    """Whether a user message may have the field `name`, which is left out otherwise."""
    reply_names: bool = False
    """Whether a message of the assistant may have the field `name`, which is left out otherwise."""

    # Calls and their results.
    call_ids: CallIds = "any"
    """The form of a call's id that is accepted; ids of another form are replaced by a hash of the same call's id."""
    tools_with_calls: bool = False
    """Whether the endpoint refuses calls in the history unless the request offers tools.

    Then the calls and results of a history are written as text in a request without tools.
    """
    text_parts: bool = False
    """Whether the content of a message may be a list of texts; otherwise they are joined to one string."""
    result_media: frozenset[Media] = frozenset()
    """Kinds of media that a tool result may hold; others are put into a user message behind the results."""
    user_media: frozenset[Media] = ALL_MEDIA
    """Kinds of media that a user message may hold; any other is replaced by a text that names it."""
    image_urls: bool = False
    """Whether images are converted to OpenAI's form `image_url`, because LangChain's client drops any other form."""
    plain_file_names: bool = False
    """Whether each document must have a name and its message a text.

    The name may have letters, digits, white space, hyphens and brackets only.
    """

    # What a reply holds in addition to text and calls.
    reasoning_fields: frozenset[str] = frozenset({"reasoning_content", "reasoning", "reasoning_details"})
    """Fields with reasoning in an OpenAI-compatible assistant message that the endpoint accepts in later requests."""
    reasoning_needed: str = ""
    """The field with reasoning that each assistant message with calls must have.

    It is sent empty if the reasoning is unknown. Empty if no field is required.
    """
    thinking_first: bool = False
    """Whether each assistant message with calls since the newest user message must begin with this provider's
    reasoning. If one such message was written by another model, all calls since then are sent as text, with their
    results."""
    signature_needed: bool = False
    """Whether the first call of an assistant message must have Gemini's thought signature.

    Gemini sends this encrypted token with its calls. Calls that another model wrote get a placeholder.
    """
    reply_parts: bool = True
    """Whether an assistant message may hold content blocks other than text, such as the reasoning of this provider."""
    reasoning_split: bool = False
    """Whether requests set the option `reasoning_split`, so that the server returns reasoning apart from the text."""
    calls_in_kwargs: bool = False
    """Whether calls are also written to `additional_kwargs`, because LangChain's client reads them from there only."""
    cache_control: bool = False
    """Whether content blocks may have the field `cache_control`, Anthropic's mark for the cache of prompts."""

    # Options of a request.
    choice_none: bool = True
    """Whether the tool choice `none`, which forbids calls, is accepted while tools are offered."""
    choice_forced: bool = True
    """Whether the tool choice can require a call."""
    choice_named: bool = True
    """Whether the tool choice can require one tool by its name.

    Otherwise only that tool is offered and any call is required.
    """
    json_schema: bool | None = None
    """Whether the server makes a reply follow a JSON schema in the request; None if unknown."""
    schema_with_tools: bool = True
    """Whether one request may have both a JSON schema of the reply and tools."""
    schema_with_stream: bool = True
    """Whether a reply with a JSON schema can be streamed; otherwise it is requested whole."""
    strict_schema: bool = False
    """Whether a JSON schema must have OpenAI's strict form; one that has none is not sent."""
    stream: bool = True
    """Whether replies can be streamed."""
    stream_usage: bool = True
    """Whether a streamed reply reports its token usage if the request asks for that.

    Otherwise the request does not ask.
    """
    tools: bool = True
    """Whether tools can be offered through the API; otherwise the model writes its calls as text."""
    provider_tools: frozenset[ProviderApi] = frozenset()
    """APIs whose provider-run tools, such as web search, the endpoint offers."""
    provider_tools_mixed: bool = True
    """Whether a request with provider-run tools may also offer tools of the agent."""
    left_out: frozenset[str] = frozenset()
    """Options of a request that the endpoint refuses, such as `temperature`; they are not sent."""
    max_tokens: str = ""
    """The name under which the maximum number of output tokens is sent.

    Empty for the name that LangChain's client uses.
    """
    window: int | None = None
    """Most tokens that the endpoint accepts in one request, the context window; None if unknown."""

    # The schemas of tools.
    root_combinators: bool = False
    """Whether the root of a tool's schema may have `anyOf`, `oneOf` or `allOf`."""
    text_enums: bool = False
    """Whether an `enum` in a tool's schema may hold strings only; other values are then listed in the description."""
    free_keys: bool = False
    """Whether argument names may have any character.

    Otherwise those beyond letters, digits, `_`, `.` and `-` are replaced.
    """

    @cached_property
    def is_known(self) -> bool:
        """Whether the endpoint's provider or server is one of `wire/table.py`."""
        return self.provider != UNKNOWN

    def with_fields(self, values: Mapping[str, Any], where: str = "model_rules") -> Self:
        """Return a copy with some fields replaced by values of a configuration; other fields stay.

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
        """Return field → value for the fields that differ from those of `other`, in the form that `with_fields`
        accepts. Sets become sorted lists."""
        changed = {name: getattr(self, name) for name in _TYPES if getattr(self, name) != getattr(other, name)}
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in changed.items()}


UNKNOWN = "unknown"
"""Name of the provider in the rules of an endpoint that is not in the table."""
_TYPES: dict[str, str] = {field.name: str(field.type) for field in dataclasses.fields(WireRules)}
_CHOICES = {"CallIds": get_args(CallIds)}
_APIS: tuple[str, ...] = get_args(ProviderApi)


def _fits(kind: str, value: Any) -> bool:
    """Whether a value has the type of a field of `WireRules`, given as the annotation's text.

    `int` must be positive.
    """
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
    """Return the values that a field of `WireRules` accepts, in words, for the end of the sentence `… is …` of an
    error."""
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
