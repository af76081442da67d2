"""Providers and servers of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.providers.exchange import Usage
from tests.providers.protocols.openai_chat import ChatShape, OpenAIChat, openai_usage
from tests.providers.row import Ability, Row
from tests.providers.rows import odd_chat
from tests.providers.rows.building import KEY, by_openai, from_class, openai_environment
from tests.providers.rule import Rule
from tests.providers.rules import compatible, gateways, openai, servers

CHAT = OpenAIChat()
_NO_IMAGES = "The model takes text only: an image is replaced by a text that names it."
_NO_DOCUMENTS = "The API takes no documents: one is replaced by a text that names it."
_WITHOUT_DOCUMENTS: dict[Ability, str] = {"documents": _NO_DOCUMENTS}
_TEXT_ONLY: dict[Ability, str] = {"images": _NO_IMAGES, **_WITHOUT_DOCUMENTS}
_HIDDEN: dict[Ability, str] = {"reasoning": "Chat completions show no reasoning."}


def _deepseek_usage(usage: Usage) -> dict[str, Any]:
    missed = usage.input - usage.cached
    hits = {"prompt_cache_hit_tokens": usage.cached, "prompt_cache_miss_tokens": missed}
    return {**openai_usage(usage), **hits}


def _xai_usage(usage: Usage) -> dict[str, Any]:
    """The completion excludes the reasoning, the total includes it."""
    return {
        **openai_usage(usage),
        "completion_tokens": usage.output - usage.reasoning,
        "num_sources_used": 0,
        "cost_in_usd_ticks": 1_330_500,
    }


def _openrouter_usage(usage: Usage) -> dict[str, Any]:
    return {**openai_usage(usage), "cost": 0.00014, "is_byok": False}


def _kimi_id(name: str, number: int) -> str:
    """Ids repeat from turn to turn."""
    return f"functions.{name}:0"


def _signature(id_: str, at: int) -> dict[str, Any]:
    """Gemini signs the first call of a turn."""
    return {} if at else {"extra_content": {"google": {"thought_signature": f"signed-{id_}"}}}


def _provider(
    name: str,
    package: str,
    cls: str,
    model: str,
    rules: tuple[Rule, ...],
    faults: Mapping[str, Rule],
    shape: ChatShape,
    *,
    host: str,
    suffix: str,
    **fields: Any,
) -> tuple[Row, Row]:
    """Return the row of the provider's own package, and that by `openai:` with the provider's address."""
    # The client's own retries stay on: the agent switches them off.
    own = Row(
        name=name,
        protocol=CHAT,
        build=from_class(cls, suffix=suffix, model=model, api_key=KEY),
        package=package,
        model=model,
        rules=rules,
        faults=faults,
        shape=shape,
        host=host,
        **fields,
    )
    return own, _by_openai(own, f"{name} (openai:)", suffix)


def _by_openai(row: Row, name: str, suffix: str) -> Row:
    return replace(
        row,
        name=name,
        build=by_openai(row.model),
        package="langchain-openai",
        environment=lambda address: openai_environment(address, suffix),
    )


def _alone(
    name: str,
    model: str,
    rules: tuple[Rule, ...],
    faults: Mapping[str, Rule],
    shape: ChatShape,
    *,
    host: str = "",
    suffix: str = "/v1",
    learned: Mapping[str, str] | None = None,
    **fields: Any,
) -> Row:
    """Return the row of a provider without a package, or of a server, by `openai:`."""
    return Row(
        name=name,
        protocol=CHAT,
        build=by_openai(model),
        package="langchain-openai",
        model=model,
        rules=rules,
        faults=faults,
        shape=shape,
        host=host,
        environment=lambda address: openai_environment(address, suffix),
        learned=learned or {},
        **fields,
    )


OPENAI = _alone(
    "openai",
    "gpt-4o",
    openai.BASIC,
    openai.FAULTS,
    ChatShape(usage_unasked=False),
    host="api.openai.com",
    answers=("openai-18", "openai-19", "openai-20"),
    odd=odd_chat.OPENAI,
    limits=_HIDDEN,
)
_OPENAI_REASONING = replace(
    OPENAI,
    name="openai (reasoning model)",
    build=by_openai("gpt-5"),
    model="gpt-5",
    rules=(*openai.BASIC, *openai.REASONING),
    answers=("openai-17",),
)
_AZURE = replace(
    OPENAI,
    name="azure-openai",
    build=from_class(
        "langchain_openai:AzureChatOpenAI",
        url="azure_endpoint",
        api_version="2026-06-01",
        azure_deployment="gpt-4o",
        model="gpt-4o",
        api_key=KEY,
    ),
    rules=(*openai.AZURE, *openai.BASIC),
    faults=openai.AZURE_FAULTS,
    shape=ChatShape(
        usage_unasked=False,
        opening=(
            b'data: {"id":"","object":"","created":0,"model":"","choices":[],'
            b'"prompt_filter_results":[{"prompt_index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}}]}\n\n',
        ),
    ),
    answers=("azure-openai-01",),
    odd=odd_chat.AZURE,
    limits={**_HIDDEN, **_WITHOUT_DOCUMENTS},
    host="emulator.openai.azure.com",
    environment=lambda address: {},
)
_DEEPSEEK = _provider(
    "deepseek",
    "langchain-deepseek",
    "langchain_deepseek:ChatDeepSeek",
    "deepseek-v4-flash",
    (*compatible.DEEPSEEK, *compatible.DEEPSEEK_THINKING),
    compatible.DEEPSEEK_FAULTS,
    ChatShape(
        reasoning="reasoning_content",
        usage="with_finish",
        usage_of=_deepseek_usage,
        opening=(b": keep-alive\n\n", b": keep-alive\n\n"),
    ),
    host="api.deepseek.com",
    suffix="/v1",
    answers=("deepseek-08", "deepseek-09", "deepseek-11"),
    odd=odd_chat.DEEPSEEK,
    limits=_TEXT_ONLY,
)
_GROQ = _provider(
    "groq",
    "langchain-groq",
    "langchain_groq:ChatGroq",
    "openai/gpt-oss-120b",
    (*compatible.GROQ, *openai.PAIRING, *openai.NAMES),
    compatible.GROQ_FAULTS,
    ChatShape(calls="whole", reasoning="reasoning", usage="twice"),
    host="api.groq.com",
    suffix="",
    answers=("groq-06",),
    odd=odd_chat.GROQ,
    limits=_WITHOUT_DOCUMENTS,
)
_GROQ = (
    _GROQ[0],
    replace(_GROQ[1], environment=lambda address: openai_environment(address, "/openai/v1")),
)
_XAI = _provider(
    "xai",
    "langchain-xai",
    "langchain_xai:ChatXAI",
    "grok-4.6",
    (*compatible.XAI, *openai.PAIRING, *openai.NAMES),
    compatible.XAI_FAULTS,
    ChatShape(calls="whole", reasoning="reasoning_content", finish_key=False, usage_of=_xai_usage),
    host="api.x.ai",
    suffix="/v1",
    answers=("xai-03", "xai-05"),
    odd=odd_chat.XAI,
)
_CEREBRAS = _provider(
    "cerebras",
    "langchain-cerebras",
    "langchain_cerebras:ChatCerebras",
    "gpt-oss-120b",
    (*compatible.CEREBRAS, *openai.PAIRING, *openai.NAMES),
    compatible.CEREBRAS_FAULTS,
    ChatShape(calls="whole", reasoning="reasoning", finish_key=False, usage="with_finish", extra={"time_info": {}}),
    host="api.cerebras.ai",
    suffix="/v1",
    answers=("cerebras-03",),
    limits=_TEXT_ONLY,
)
_MOONSHOT = _provider(
    "moonshot-kimi",
    "langchain-moonshot",
    "langchain_moonshot:ChatMoonshot",
    "kimi-k2.5",
    compatible.MOONSHOT,
    compatible.MOONSHOT_FAULTS,
    ChatShape(reasoning="reasoning_content", usage="with_finish", call_id=_kimi_id),
    host="api.moonshot.ai",
    suffix="/v1",
    answers=("moonshot-kimi-01", "moonshot-kimi-04"),
    limits=_WITHOUT_DOCUMENTS,
)
_OPENROUTER_OWN, _OPENROUTER_BY_OPENAI = _provider(
    "openrouter",
    "langchain-openrouter",
    "langchain_openrouter:ChatOpenRouter",
    "deepseek/deepseek-v4-pro",
    gateways.OPENROUTER,
    gateways.OPENROUTER_FAULTS,
    ChatShape(
        reasoning="reasoning_details",
        thinks_before_calls=True,
        call_id=lambda name, number: f"call_or{number:022d}",
        usage_of=_openrouter_usage,
        opening=(b": OPENROUTER PROCESSING\n\n",),
        extra={"provider": "DeepSeek", "system_fingerprint": None},
    ),
    host="openrouter.ai",
    suffix="/api/v1",
    answers=("openrouter-02", "openrouter-05"),
    odd=odd_chat.OPENROUTER,
)
_TOGETHER = _provider(
    "together",
    "langchain-together",
    "langchain_together:ChatTogether",
    "deepseek-ai/DeepSeek-V4",
    gateways.TOGETHER,
    gateways.TOGETHER_FAULTS,
    ChatShape(reasoning="reasoning", usage="with_finish"),
    host="api.together.xyz",
    suffix="/v1",
    answers=("together-01",),
    other_overflows=gateways.TOGETHER_OVERFLOWS,
    limits=_WITHOUT_DOCUMENTS,
)
_FIREWORKS = _provider(
    "fireworks",
    "langchain-fireworks",
    "langchain_fireworks:ChatFireworks",
    "accounts/fireworks/models/kimi-k2",
    gateways.FIREWORKS,
    gateways.FIREWORKS_FAULTS,
    ChatShape(reasoning="reasoning_content", usage="with_finish"),
    host="api.fireworks.ai",
    suffix="/inference/v1",
    answers=("fireworks-02",),
    limits=_WITHOUT_DOCUMENTS,
)
_LITELLM = replace(
    OPENAI,
    name="litellm",
    build=from_class("langchain_litellm:ChatLiteLLM", url="api_base", suffix="/v1", model="openai/gpt-4o", api_key=KEY),
    package="langchain-litellm",
    environment=lambda address: {},
)
_NIM = _provider(
    "nvidia-nim",
    "langchain-nvidia-ai-endpoints",
    "langchain_nvidia_ai_endpoints:ChatNVIDIA",
    "mistralai/mistral-small-4-119b-2603",
    servers.NIM,
    servers.NIM_FAULTS,
    ChatShape(reasoning="reasoning_content", usage_unasked=False),
    host="integrate.api.nvidia.com",
    suffix="/v1",
    odd=odd_chat.NIM,
    limits=_WITHOUT_DOCUMENTS,
)
_GEMINI = _alone(
    "gemini (openai-compatible)",
    "gemini-3-pro",
    gateways.GEMINI,
    gateways.GEMINI_FAULTS,
    ChatShape(calls="index_zero", call_extra=_signature),
    host="generativelanguage.googleapis.com",
    suffix="/v1beta/openai",
    answers=("google-gemini-28", "google-gemini-29"),
    limits={"reasoning": "The compatible API shows no reasoning unless it is asked for."},
)
_ALONE = (
    _alone(
        "zai-glm",
        "glm-5.3",
        compatible.ZAI,
        compatible.ZAI_FAULTS,
        ChatShape(reasoning="reasoning_content", usage="with_finish"),
        host="api.z.ai",
        suffix="/api/paas/v4",
        odd=odd_chat.ZAI,
        limits=_WITHOUT_DOCUMENTS,
        note="langchain-zhipuai is a first upload only.",
    ),
    _alone(
        "minimax",
        "MiniMax-M2.5",
        compatible.MINIMAX,
        compatible.MINIMAX_FAULTS,
        ChatShape(reasoning="think_tags"),
        host="api.minimax.io",
        answers=("minimax-06",),
        odd=odd_chat.MINIMAX,
        limits=_WITHOUT_DOCUMENTS,
        note="There is no LangChain package.",
    ),
    _alone(
        "qwen-dashscope",
        "qwen3-max",
        compatible.QWEN,
        compatible.QWEN_FAULTS,
        ChatShape(calls="empty_ids", reasoning="reasoning_content", finish_apart=True, usage_unasked=False),
        host="dashscope-intl.aliyuncs.com",
        suffix="/compatible-mode/v1",
        answers=("qwen-dashscope-03",),
        limits={**_WITHOUT_DOCUMENTS},
        note="langchain-qwq pins another version of json-repair.",
    ),
    _alone(
        "qwen-dashscope (open model)",
        "qwen3-235b-a22b",
        (*compatible.QWEN, *compatible.QWEN_OPEN),
        compatible.QWEN_FAULTS,
        ChatShape(calls="empty_ids", reasoning="reasoning_content", finish_apart=True, usage_unasked=False),
        host="dashscope-intl.aliyuncs.com",
        suffix="/compatible-mode/v1",
        limits={**_WITHOUT_DOCUMENTS, "whole": "The model refuses requests that are not streamed."},
    ),
    _alone(
        "moonshot (text model)",
        "moonshot-v1-8k",
        compatible.MOONSHOT_TEXT,
        compatible.MOONSHOT_FAULTS,
        ChatShape(usage="with_finish", call_id=_kimi_id),
        host="api.moonshot.ai",
        limits={**_TEXT_ONLY, "reasoning": "The model does not reason."},
    ),
    _alone(
        "groq (model without reasoning)",
        "moonshotai/kimi-k2-instruct",
        (*compatible.GROQ, *compatible.GROQ_PLAIN),
        compatible.GROQ_FAULTS,
        ChatShape(calls="whole", usage="with_finish"),
        host="api.groq.com",
        suffix="/openai/v1",
        limits={**_WITHOUT_DOCUMENTS, "reasoning": "The model does not reason."},
    ),
    _alone(
        "vllm (Qwen)",
        "Qwen/Qwen3.5-27B",
        servers.VLLM_QWEN,
        servers.VLLM_FAULTS,
        ChatShape(reasoning="reasoning", usage_unasked=False),
        answers=("vllm-09",),
        other_overflows=servers.VLLM_OVERFLOWS,
        limits={**_WITHOUT_DOCUMENTS},
        learned={"vllm-08": "the server takes no documents"},
    ),
    _alone(
        "vllm (Gemma without tools)",
        "google/gemma-2-9b-it",
        servers.VLLM_GEMMA,
        servers.VLLM_FAULTS,
        ChatShape(usage_unasked=False),
        limits={"reasoning": "The model does not reason.", "tools": "The server refuses tools: calls are text."},
        learned={
            "vllm-06": "it takes no tools",
            "vllm-03": "there is no system role",
            "vllm-01": "user and assistant take turns",
        },
    ),
    _alone(
        "vllm (Mistral)",
        "mistralai/Mistral-Small-3.2-24B",
        servers.VLLM_MISTRAL,
        servers.VLLM_FAULTS,
        ChatShape(usage_unasked=False, call_id=lambda name, number: f"vllm{number:05d}"),
        limits={"reasoning": "The model does not reason."},
        learned={
            "vllm-05": "no user message stands behind a result",
            "vllm-05-ids": "ids of calls have nine letters and digits",
        },
    ),
    _alone(
        "sglang",
        "Qwen/Qwen3-32B",
        servers.SGLANG,
        servers.SGLANG_FAULTS,
        ChatShape(reasoning="reasoning_content", usage_unasked=False),
        other_overflows=servers.SGLANG_OVERFLOWS,
    ),
    _alone(
        "llama.cpp",
        "qwen3-4b",
        servers.LLAMA_CPP,
        servers.LLAMA_CPP_FAULTS,
        ChatShape(
            reasoning="reasoning_content", object_arguments=True, extra={"timings": {"prompt_n": 10, "predicted_n": 5}}
        ),
        answers=("llama.cpp-05", "llama.cpp-06"),
        other_overflows=servers.LLAMA_CPP_OVERFLOWS,
        odd=odd_chat.LLAMA_CPP,
    ),
    _alone(
        "llama.cpp (Gemma without tools)",
        "gemma-2-2b-it",
        servers.LLAMA_CPP_GEMMA,
        servers.LLAMA_CPP_FAULTS,
        ChatShape(),
        limits={"reasoning": "The model does not reason.", "tools": "The server refuses tools: calls are text."},
        learned={"llama.cpp-03": "user and assistant take turns", "llama.cpp-04": "it takes no tools"},
    ),
    _alone(
        "lm-studio",
        "qwen/qwen3-8b",
        servers.LM_STUDIO,
        servers.LM_STUDIO_FAULTS,
        ChatShape(reasoning="reasoning_content", usage_unasked=False),
        learned={
            "lm-studio-02": "a tool cannot be required by name",
            "lm-studio-06": "there is no JSON mode",
            "lm-studio-03": "each tool needs properties",
        },
    ),
    _alone(
        "tgi",
        "mistralai/Mistral-7B-Instruct-v0.3",
        servers.TGI,
        servers.TGI_FAULTS,
        ChatShape(calls="whole", usage="with_finish"),
        other_overflows=servers.TGI_OVERFLOWS,
        limits={"reasoning": "The model does not reason."},
        learned={"tgi-01": "user and assistant take turns"},
    ),
    _alone(
        "ollama (openai-compatible)",
        "qwen3:8b",
        servers.OLLAMA,
        servers.OLLAMA_FAULTS,
        ChatShape(calls="whole", reasoning="reasoning", finish_apart=True, usage_unasked=False),
        answers=("ollama-06",),
        limits={
            **_WITHOUT_DOCUMENTS,
            "overflow_error": "The server cuts a request that is too long, without an error.",
        },
        learned={"ollama-05-parts": "it takes no documents"},
    ),
    _alone(
        "ollama (model without tools)",
        "gemma:2b",
        (*servers.OLLAMA_TEXT, *servers.OLLAMA),
        servers.OLLAMA_FAULTS,
        ChatShape(finish_apart=True, usage_unasked=False),
        limits={
            **_WITHOUT_DOCUMENTS,
            "reasoning": "The model does not reason.",
            "overflow_error": "The server cuts a request that is too long, without an error.",
            "tools": "The server refuses tools: calls are text.",
        },
        learned={"ollama-05-parts": "it takes no documents", "ollama-03": "the model takes no tools"},
    ),
    _alone(
        "gateway (pieces without index)",
        "any-model",
        openai.BASIC,
        openai.FAULTS,
        ChatShape(calls="no_index", usage="cumulative", reasoning="reasoning_content"),
        answers=("openai-39", "openai-41"),
    ),
    _alone(
        "gateway (index in the opening)",
        "any-model",
        openai.BASIC,
        openai.FAULTS,
        ChatShape(calls="opened_only"),
        answers=("openai-39",),
    ),
    _alone(
        "gateway (index 0 for each call)",
        "any-model",
        openai.BASIC,
        openai.FAULTS,
        ChatShape(calls="index_zero"),
        answers=("openai-39",),
    ),
    _alone(
        "gateway (first call at index 1)",
        "any-model",
        openai.BASIC,
        openai.FAULTS,
        ChatShape(calls="index_one"),
        answers=("openai-38",),
        other_overflows=gateways.COPILOT_OVERFLOWS,
    ),
    _alone(
        "gateway (JSON for a stream)",
        "any-model",
        openai.BASIC,
        openai.FAULTS,
        ChatShape(json_for_stream=True),
        answers=("openai-40",),
        limits={"abort_in_reply": "A reply has no pieces between which it could be cut."},
    ),
)

ROWS: tuple[Row, ...] = (
    OPENAI,
    _OPENAI_REASONING,
    _AZURE,
    *_DEEPSEEK,
    *_GROQ,
    *_XAI,
    *_CEREBRAS,
    *_MOONSHOT,
    replace(
        _OPENROUTER_OWN,
        limits={"abort_in_wait": "The client leaves a response open that arrives in the moment of a cancellation."},
    ),
    _OPENROUTER_BY_OPENAI,
    *_TOGETHER,
    *_FIREWORKS,
    *_NIM,
    _LITELLM,
    _GEMINI,
    *_ALONE,
)
