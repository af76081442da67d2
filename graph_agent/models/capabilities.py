"""Predicts offline from a model whether it supports tool calling."""

from __future__ import annotations

import re
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel

from graph_agent.models.endpoints import ModelEndpoint

ToolCallMode = Literal["native", "text", "wave"]

_WRAPPERS = 10
"""Maximum number of nested LangChain wrappers that are unwrapped."""

_NAME_FIELDS = ("model_name", "model", "model_id", "repo_id", "model_path")
"""Fields of chat models that hold the model's name, in order of precedence."""

_FOR_TOOLS = re.compile(r"tool|func|gorilla|hermes-?2-?pro")
"""Matches names of variants that were trained for tool calls."""

_PUBLISHER = re.compile(r"(?:(?:meta|mistral|google|microsoft)[.-])?(?=[a-z])")
"""Optional publisher before the family: `meta.llama2…` (Bedrock), `Meta-Llama-3…`."""

_END = r"(?![a-z0-9])"

_WITHOUT_TOOLS = re.compile(
    rf"""
    # Microsoft: Phi 1 to 3.5, and Phi-4 with 14B; not Phi-4-mini and Phi-4-multimodal.
    phi(?=:|[-_](?!\d)|\Z) | phi[-_]?(?:[123]|1[._]5|3[._]5){_END}
    | phi[-_]?4{_END}(?![-_](?:mini|multimodal))
    # Google: Gemma 1 and 2 (gemma:2b is the first, with 2B), CodeGemma; not Gemma 3 and later.
    | gemma(?=[-_:.\d]|\Z)(?![-_]?(?:[3-9]|[1-9]\d)n?{_END})
    | (?:code|shield|recurrent|data)gemma{_END}
    # Hugging Face: SmolLM 1, and SmolLM2 but with 1.7B.
    | smollm(?![-_]?[2-9]{_END}){_END} | smollm[-_]?2{_END}(?![-_:]1[._]7b)
    # Meta: Llama 1, 2 and 3.0; not 3.1 and later, however they are written (3.1, 3_1, 3-1).
    | llama[-_:]?\d+b{_END}
    | llama[-_]?2{_END}
    | llama[-_]?3{_END}(?![._-][1-9](?!\d*b))
    | code[-_]?llama | open[-_]?llama | tiny[-_]?llama | yarn-(?:llama|mistral) | med(?:llama|itron)
    # Mistral 7B before 0.3.
    | mistral[-_:](?:.*[-_])?v?0[.:]?[12](?!\d)
    | mistral-?lite | mistral-(?:7b-)?openorca
    # Alibaba: Qwen 1 and 1.5, CodeQwen; not the hosted qwen-max, qwen-plus, qwen-turbo.
    | qwen[-_]?1[._]5 | qwen[-_:]\d+(?:[._]\d+)?b{_END} | qwen(?::latest)?\Z | codeqwen
    # Others of the first generations.
    | deepseek-(?:llm|coder(?![-_:]?v[2-9])) | falcon2?(?=[-_:]|\Z)(?![-_][he]\d?) | olmo(?![-_]?3)(?=[-_:12]|\Z)
    | yi[-_:](?:1[._]5|6b|9b|34b|coder|vl) | yi\Z | aya(?=[-_:]|\Z) | solar(?:[-_:](?:10|0)|\Z)
    | stable-?(?:lm|beluga|code) | granite-(?:\d+b-)?code | star-?coder | santacoder | mpt-\d | dolly{_END} | redpajama
    | gpt-?(?:2|j|neo|neox|4all){_END} | pythia | opt-\d | bloomz?{_END} | (?:flan-)?t5{_END}
    # Fine-tuned variants of these.
    | vicuna | alpaca | guanaco | koala | wizard(?!.*-?3) | orca[-_]?(?:mini|2) | zephyr | openhermes | nous-hermes
    | neural-chat | starling-lm | openchat | tinydolphin | dolphin-(?:phi|mistral|mixtral|llama-?3{_END}) | samantha
    | xwin | goliath | everythinglm | notus | notux | phind | magicoder | codeup | codebooga | sqlcoder | duckdb-nsql
    # Vision models.
    | (?:bak)?llava | moondream | minicpm-v | bunny-
    # Completions: instruct and base models of OpenAI.
    | gpt-3\.5-turbo-instruct | (?:text|code)-(?:davinci|curie|babbage|ada|cushman)
    | (?:davinci|babbage|curie|ada){_END}
    """,
    re.VERBOSE,
)
"""Families of models without tool calling, by name.

Ollama's library lists them without the capability `tools`, or their model cards show no training for it, or they only
complete text. Newer generations of the same families (Phi-4-mini, Gemma 3, SmolLM3, Llama 3.1, Qwen 2.5, Mistral 0.3)
call tools or have variants that do, so they do not match.
"""


def choose_tool_calling(model: Any, configured: Literal["auto", "native", "text", "wave"]) -> ToolCallMode:
    """Choose how a model calls tools, without a request to the provider.

    With `auto`, the entry `tool_calling` of the model's profile decides: `native` if it is true, else `text`. Without
    that entry, a model that cannot bind tools, or whose name belongs to a family without tool calling, gets `text`; any
    other gets `native`.

    Args:
        model: A chat model, bare or wrapped (e.g. by `bind`).
        configured: The setting `tool_calling`; returned unchanged unless it is `auto`.
    """
    if configured != "auto":
        return configured
    bare = _unwrap(model)
    known = (getattr(bare, "profile", None) or {}).get("tool_calling")
    if known is not None:
        return "native" if known else "text"
    return "native" if _can_bind_tools(bare) and not lacks_tools(bare) else "text"


def lacks_tools(model: Any) -> bool:
    """Whether an unwrapped chat model's name belongs to a family without tool calling; False if it has no name."""
    names = (getattr(model, field, None) for field in _NAME_FIELDS)
    name = next((name for name in names if isinstance(name, str) and name), "")
    return name_lacks_tools(name)


def name_lacks_tools(name: str) -> bool:
    """Whether a model's name belongs to a family that was not trained for tool calls; case is ignored.

    Accepts the names of Ollama (`gemma:2b`), Hugging Face (`microsoft/Phi-3-mini-4k-instruct`), LiteLLM
    (`ollama/phi3`), LM Studio, and file names (`phi-2.Q4_K_M.gguf`). False for unknown names.
    """
    last = re.split(r"[/\\]", name.strip().lower().rstrip("/\\"))[-1]
    if _FOR_TOOLS.search(last):
        return False
    publisher = _PUBLISHER.match(last)
    return any(_WITHOUT_TOOLS.match(last, at) for at in {0, publisher.end() if publisher else 0})


def _unwrap(model: Any) -> Any:
    """Return the chat model inside LangChain's wrappers; of a model with fallbacks, the first one.

    At most `_WRAPPERS` wrappers are removed; a value without a model inside is returned as far as it was unwrapped.
    """
    for _ in range(_WRAPPERS):
        if isinstance(model, BaseChatModel):
            break
        inner = getattr(model, "bound", None) or getattr(model, "runnable", None)
        if inner is None:
            break
        model = inner
    return model


def _can_bind_tools(model: Any) -> bool:
    """Whether a model's class has a `bind_tools` of its own; LangChain's base class only raises an error."""
    bind_tools = getattr(type(model), "bind_tools", None)
    # The method of the base class raises NotImplementedError.
    return bind_tools is not None and bind_tools is not BaseChatModel.bind_tools


_PASS_ON = frozenset(
    {"openai", "azure_openai", "anthropic", "mistralai", "groq", "xai", "deepseek", "fireworks", "together"}
)
"""Providers whose LangChain client sends the URL; Azure's is in langchain-openai."""
_PREFIX = "langchain_"
_NOT_CLIENTS = frozenset({"core", "classic", "tests"})


def may_download_images(model: BaseChatModel | ModelEndpoint | str) -> bool:
    """Whether a model's client may download, in this process, an image that a message gives by URL.

    LangChain's clients for OpenAI, Anthropic and compatible providers pass the URL to the provider. Others, such as
    Google's, download the image here, where a URL may point to the internal network. A class outside LangChain's
    packages, and a factory `module:function`, is assumed to pass the URL on.

    Args:
        model: A chat model, an endpoint, or a name `provider:name`.
    """
    if isinstance(model, str | ModelEndpoint):
        provider = (model if isinstance(model, str) else model.model).partition(":")[0].strip()
        # The name of a module has dots, that of a provider has none.
        is_factory = "." in provider
        return not is_factory and provider not in _PASS_ON
    packages = [cls.__module__.partition(".")[0] for cls in type(model).__mro__]
    clients = {name.removeprefix(_PREFIX) for name in packages if name.startswith(_PREFIX)} - _NOT_CLIENTS
    return bool(clients) and not clients & _PASS_ON
