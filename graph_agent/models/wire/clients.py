"""Describes how LangChain's chat model classes take options, tools, tool choices and schemas: `ClientRules` by class.

`WireRules` describe the endpoint behind a model; these rules describe the Python class in front of it. A subclass has
the rules of its nearest parent in the table, whatever its name.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable

from graph_agent.base._compat import uses_responses_api

RequestWriter = Callable[[BaseChatModel, Any, dict[str, Any]], bool]
"""Writes an option into the keyword arguments of a call, in place; returns False if the model does not support it.

Receives the model, the option's value, and the keyword arguments.
"""

SchemaForm = Literal["response_format", "extra_body", "json_object"]
"""How a chat model class takes the JSON schema of a reply.

`response_format`: as OpenAI's option. `extra_body`: inside `extra_body`, for a class that interprets that option
itself. `json_object`: in Cohere's form.
"""


@dataclass(frozen=True, kw_only=True)
class ClientRules:
    """How one chat model class takes options, tools and schemas.

    The defaults apply to a class that is not in the table.
    """

    options: Mapping[str, str | RequestWriter | None] = field(default_factory=dict)
    """LangChain's name of an option → the keyword of the class, or a function that writes it.

    None if the class has no such option.

    An option that is not listed is passed under its own name.
    """
    without_retries: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of each call that switch off the retries of the class's client."""
    binds_tools: bool = True
    """Whether to bind tools by `bind_tools`. Otherwise the keyword `tools` is set to OpenAI's dicts."""
    choice_none: Any = None
    """Value of `tool_choice` that forbids calls while tools are offered; None if there is none."""
    choice_any: Any = "any"
    """Value of `tool_choice` that requires a call of any tool; None if there is none."""
    choice_named: bool = True
    """Whether `tool_choice` may be a tool's name."""
    schema: SchemaForm | None = "response_format"
    """How the JSON schema of a reply is sent; None if the class cannot send one."""
    schema_with_tools: bool = True
    """Whether a JSON schema can be sent together with tools."""


class ClientOptions(NamedTuple):
    """Keyword arguments of a model call, as one class takes them."""

    options: dict[str, Any]
    unsupported: tuple[str, ...]
    """Names of the options that the class cannot send, and that are left out."""


def client_rules(model: BaseChatModel) -> ClientRules:
    """Return the rules of the first class in the model's MRO that is in the table; the defaults if none is."""
    return _rules_of(type(model))


@lru_cache(maxsize=256)
def _rules_of(kind: type) -> ClientRules:
    """Return the rules of a class; cached."""
    names = (f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in kind.__mro__)
    return next((_TABLE[name] for name in names if name in _TABLE), _UNKNOWN)


def client_options(model: BaseChatModel, options: Mapping[str, Any]) -> ClientOptions:
    """Convert options under LangChain's names to the keyword arguments of a model's class.

    Unknown options are kept, and for a class that is not in the table, all of them. If LangChain's name and the class's
    own keyword are both given, the keyword wins. The keywords that switch off the client's retries are added unless
    `options` has them.

    Args:
        model: The chat model.
        options: Option → value.

    Returns:
        The keyword arguments, and the names of the options that the class cannot send.
    """
    rules = client_rules(model)
    if isinstance(options.get("stop"), tuple):
        options = {**options, "stop": list(options["stop"])}
    if not rules.options and not rules.without_retries:
        return ClientOptions(dict(options), ())
    sent = {name: value for name, value in options.items() if name not in rules.options}
    unsupported = []
    for name, target in rules.options.items():
        if name not in options:
            continue
        if target is None:
            unsupported.append(name)
        elif isinstance(target, str):
            # The class's own keyword, given by the user, wins.
            sent.setdefault(target, options[name])
        elif not target(model, options[name], sent):
            unsupported.append(name)
    return ClientOptions({**rules.without_retries, **sent}, tuple(unsupported))


def keeps_provider_calls(model: BaseChatModel, options: Mapping[str, Any]) -> bool:
    """Whether a request may contain calls that the provider ran, in the provider's own form.

    It may, except for a client of OpenAI that sends the request to chat completions, which refuse what the Responses
    API returned.

    Args:
        model: The chat model.
        options: The keyword arguments of the request, by which the client chooses its API.
    """
    return not hasattr(model, "_use_responses_api") or uses_responses_api(model, options)


def choice_of(model: BaseChatModel, wanted: str) -> Any:
    """Return the value of `tool_choice` by which a model's class expresses a choice; None if it has no such value.

    Args:
        model: The chat model.
        wanted: `none`, `any`, or a tool's name.
    """
    rules = client_rules(model)
    if wanted == "none":
        return rules.choice_none
    # A list of the choices that the model accepts, as that of Bedrock's Converse API.
    accepted = getattr(model, "supports_tool_choice_values", None)
    if wanted == "any":
        return rules.choice_any if accepted is None or "any" in accepted else None
    return wanted if rules.choice_named and (accepted is None or "tool" in accepted) else None


def schema_options(model: BaseChatModel, form: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the keyword arguments that enforce the schema of a reply; None if the class cannot send it with `given`.

    Args:
        model: The chat model.
        form: OpenAI's `response_format` of type `json_schema`.
        given: The other keyword arguments of the call, including `tools`. Bind the result to the model after
            `bind_tools`, because OpenAI's `bind_tools` accepts only strict tools together with a schema.
    """
    rules = client_rules(model)
    if not rules.schema_with_tools and given.get("tools"):
        return None
    match rules.schema:
        case "extra_body" if not uses_responses_api(model, given):
            # With the option `response_format`, OpenAI's client refuses tools that are not strict, and raises on a
            # reply that was cut off.
            own = given.get("extra_body") or getattr(model, "extra_body", None) or {}
            return {"extra_body": {**own, "response_format": dict(form)}}
        case "response_format" | "extra_body":
            return {"response_format": dict(form)}
        case "json_object":
            return {"response_format": {"type": "json_object", "schema": form["json_schema"]["schema"]}}
        case None:
            return None


def bind_tools(
    model: BaseChatModel, schemas: Sequence[dict[str, Any]], options: Mapping[str, Any]
) -> Runnable[LanguageModelInput, AIMessage]:
    """Bind tools and further options to a chat model, in the first form that its class accepts.

    These are, in order: OpenAI's format, LangChain tools, and both again without the tool choice. `NotImplementedError`
    of the first attempt is raised at once. A class whose rules have `binds_tools` False gets OpenAI's format by `bind`.

    Args:
        model: The chat model.
        schemas: The tools, in OpenAI's function format.
        options: Keyword arguments of each call.

    Raises:
        Exception: The error of the class's first refusal, if it accepts no form.
    """
    if not client_rules(model).binds_tools:
        return model.bind(tools=list(schemas), **options)
    try:
        return model.bind_tools(schemas, **options)
    except NotImplementedError:
        raise
    except Exception as refusal:
        free = {name: value for name, value in options.items() if name != "tool_choice"}
        for others in (options, free) if "tool_choice" in options else (options,):
            for given in (schemas, _as_tools(schemas)):
                # Any class may raise anything for a form that it does not know; the first error is raised in the end.
                with contextlib.suppress(Exception):
                    return model.bind_tools(given, **others)
        raise refusal


def _as_tools(schemas: Sequence[dict[str, Any]]) -> list[Any]:
    """Convert tools in OpenAI's function format to LangChain tools that do nothing when called.

    A tool without a description gets its name as such, one without parameters an empty object.
    """
    # Imported here: only a class without OpenAI's format needs it.
    from langchain_core.tools import StructuredTool

    functions = [schema["function"] for schema in schemas]
    return [
        StructuredTool(
            name=each["name"],
            description=each.get("description") or each["name"],
            args_schema=each.get("parameters") or {"type": "object", "properties": {}},
            func=lambda **_: None,
        )
        for each in functions
    ]


def _into(keyword: str, name: str) -> RequestWriter:
    """Return a writer that adds an option to a keyword whose value is a dict, such as `extra_body`, and keeps the
    entries that the call or else the model has there.

    Args:
        keyword: The keyword.
        name: Name of the option in the keyword's value.
    """

    def write(model: BaseChatModel, value: Any, sent: dict[str, Any]) -> bool:
        own = sent.get(keyword) or getattr(model, keyword, None) or {}
        # Parameters of IBM may be an object.
        fields = own if isinstance(own, Mapping) else own.to_dict()
        sent[keyword] = {**fields, name: value}
        return True

    return write


_OLLAMA_FIELDS = (
    *("mirostat", "mirostat_eta", "mirostat_tau", "num_ctx", "num_gpu", "num_thread", "num_predict", "repeat_last_n"),
    *("repeat_penalty", "temperature", "seed", "stop", "tfs_z", "top_k", "top_p"),
)
"""Fields of `ChatOllama` that are ignored as soon as the keyword `options` is passed, so they are copied into it."""


def _ollama(name: str) -> RequestWriter:
    """Return a writer that stores an option in Ollama's keyword `options`. The keyword replaces the options that the
    model's own fields set, so these are copied into it.

    Args:
        name: Name of the option in `options`.
    """

    def write(model: BaseChatModel, value: Any, sent: dict[str, Any]) -> bool:
        if sent.get("options") is None:
            fields = {each: getattr(model, each, None) for each in _OLLAMA_FIELDS}
            sent["options"] = {each: set_ for each, set_ in fields.items() if set_ is not None}
        sent["options"] = {**sent["options"], name: value}
        return True

    return write


_OLLAMA_EFFORTS: Mapping[str, bool | str] = {"none": False, "minimal": "low", "xhigh": "high", "max": "high"}
"""Value of `reasoning_effort` → Ollama's value of `reasoning`; other values are passed unchanged."""


def _ollama_reasoning(model: BaseChatModel, value: Any, sent: dict[str, Any]) -> bool:
    """Write `reasoning_effort` as Ollama's keyword `reasoning`, with Ollama's name of the value, unless that is given;
    return True.
    """
    sent.setdefault("reasoning", _OLLAMA_EFFORTS.get(value, value))
    return True


def _chat_stop(model: BaseChatModel, value: Any, sent: dict[str, Any]) -> bool:
    """Write `stop` and return True; False for a request of the Responses API, which has no stop sequences.

    Args:
        value: The stop sequences.
        sent: The keyword arguments of the request.
    """
    if uses_responses_api(model, sent):
        return False
    sent["stop"] = value
    return True


_XAI_WITHOUT_STOP = re.compile(r"grok-[34]|.*grok-code-fast")


def _xai_stop(model: BaseChatModel, value: Any, sent: dict[str, Any]) -> bool:
    """Write `stop` and return True; False for a model that reasons, because xAI refuses it then, and the class drops it
    without a warning.

    Args:
        value: The stop sequences.
        sent: The keyword arguments of the request.
    """
    reasons: Any = (model.profile or {}).get("reasoning_output")
    if reasons is None:
        reasons = _XAI_WITHOUT_STOP.match(getattr(model, "model_name", "") or "")
    return False if reasons else _chat_stop(model, value, sent)


def _profiled_effort(model: BaseChatModel, value: Any, sent: dict[str, Any]) -> bool:
    """Write `reasoning_effort` and return True if the model's profile lists the value; else False, because the class
    would refuse or drop it.

    Args:
        value: The effort.
        sent: The keyword arguments of the request.
    """
    if value not in ((model.profile or {}).get("reasoning_effort_levels") or ()):
        return False
    sent["reasoning_effort"] = value
    return True


def _litellm_effort(model: BaseChatModel, value: Any, sent: dict[str, Any]) -> bool:
    """Write `reasoning_effort` into `sent` if LiteLLM supports it for the model, or does not know the model; return
    whether it was written.

    Args:
        value: The effort.
        sent: The keyword arguments of the request.
    """
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    router = getattr(model, "router", None)
    for each in getattr(router, "model_list", None) or ():
        # The name is that of a group of the router.
        if each.get("model_name") == name:
            name = each.get("litellm_params", {}).get("model", name)
            break
    litellm: Any = sys.modules["litellm"]
    try:
        bare, provider, *_ = litellm.get_llm_provider(model=name, custom_llm_provider=model.custom_llm_provider)  # type: ignore[attr-defined]  # of ChatLiteLLM
        known = litellm.get_supported_openai_params(model=bare, custom_llm_provider=provider)
    except Exception:  # noqa: BLE001 - LiteLLM raises its errors of a request for a name that it does not know
        known = None
    if known is not None and "reasoning_effort" not in known:
        return False
    sent["reasoning_effort"] = value
    return True


_UNKNOWN = ClientRules()
_OPENAI = ClientRules(options={"stop": _chat_stop}, choice_none="none", choice_any="required", schema="extra_body")
_ANTHROPIC = ClientRules(choice_none={"type": "none"})
_OPENAI_FORM = ClientRules(choice_none="none")

_TABLE: Mapping[str, ClientRules] = {
    "graph_agent.ScriptedChatModel": _OPENAI_FORM,
    "langchain_openai.BaseChatOpenAI": _OPENAI,
    "langchain_xai.ChatXAI": replace(_OPENAI, options={"stop": _xai_stop}),
    # The class writes `auto` for any required call.
    "langchain_qwq._BaseChatQwen": replace(_OPENAI, choice_any=None),
    "langchain_anthropic.ChatAnthropic": _ANTHROPIC,
    "langchain_aws.ChatBedrockConverse": ClientRules(options={"reasoning_effort": _profiled_effort}),
    "langchain_aws.ChatBedrock": replace(_ANTHROPIC, options={"reasoning_effort": None}, choice_none=None, schema=None),
    "langchain_google_genai.ChatGoogleGenerativeAI": replace(_OPENAI_FORM, options={"max_tokens": "max_output_tokens"}),
    "langchain_google_vertexai.ChatVertexAI": replace(
        _OPENAI_FORM,
        options={"max_tokens": "max_output_tokens", "reasoning_effort": None},
        # It takes a schema in Google's own form only, and renames keys of the given object.
        schema=None,
    ),
    **dict.fromkeys(("langchain_mistralai.ChatMistralAI", "langchain_groq.ChatGroq"), _OPENAI_FORM),
    **dict.fromkeys(("langchain_fireworks.ChatFireworks", "langchain_sambanova.ChatSambaNova"), _OPENAI_FORM),
    "langchain_nvidia_ai_endpoints.ChatNVIDIA": _OPENAI_FORM,
    "langchain_openrouter.ChatOpenRouter": replace(_OPENAI_FORM, without_retries={"retries": None}),
    "langchain_litellm.ChatLiteLLM": replace(
        _OPENAI_FORM, options={"reasoning_effort": _litellm_effort}, without_retries={"max_retries": 0}
    ),
    "langchain_litellm.ChatLiteLLMRouter": replace(
        _OPENAI_FORM,
        options={"reasoning_effort": _litellm_effort},
        without_retries={"max_retries": 0, "num_retries": 0},
    ),
    # It sends `stop` under a name that its API does not have.
    "langchain_ibm.ChatWatsonx": replace(_OPENAI_FORM, options={"stop": _into("params", "stop")}),
    "langchain_huggingface.ChatHuggingFace": replace(
        _OPENAI_FORM, options={"reasoning_effort": _into("extra_body", "reasoning_effort")}, choice_any="required"
    ),
    "langchain_perplexity.ChatPerplexity": replace(
        _OPENAI_FORM, options={"stop": _into("extra_body", "stop")}, choice_named=False
    ),
    "langchain_cohere.ChatCohere": ClientRules(
        options={"top_p": "p", "reasoning_effort": None},
        without_retries={"request_options": {"max_retries": 0}},
        binds_tools=False,
        choice_none="NONE",
        choice_any="REQUIRED",
        choice_named=False,
        schema="json_object",
        schema_with_tools=False,
    ),
    # Ollama's server has no tool choice.
    "langchain_ollama.ChatOllama": ClientRules(
        options={
            "temperature": _ollama("temperature"),
            "max_tokens": _ollama("num_predict"),
            "top_p": _ollama("top_p"),
            "stop": _ollama("stop"),
            "reasoning_effort": _ollama_reasoning,
        },
        choice_any=None,
        choice_named=False,
    ),
}
"""Package and name of a class → its rules."""
