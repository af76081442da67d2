"""Holds the rules of known providers and servers, and those that a model's name adds.

The rules were collected from public reports, recorded replies, and the sources of servers and clients; the emulators of
`tests/providers` enforce them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from graph_agent.base._internal.media import ALL_MEDIA, Media
from graph_agent.models.wire.rules import WireRules

_IMAGES: frozenset[Media] = frozenset({"image"})
_NO_MEDIA = frozenset[Media]()
_NO_FILES: frozenset[Media] = frozenset({"image", "audio", "video"})
_NO_FIELDS = frozenset[str]()

IN_PROCESS = WireRules(
    provider="in-process",
    repeated_users=True,
    text_parts=True,
    result_media=ALL_MEDIA,
    cache_control=True,
    root_combinators=True,
    free_keys=True,
    reply_names=True,
    provider_tools=frozenset(("openai", "anthropic", "gemini")),
)
"""Rules of a chat model that is not a client of a known package, e.g. a fake model; it receives messages unchanged."""

_OPENAI = WireRules(
    provider="openai",
    repeated_users=True,
    text_parts=True,
    reasoning_fields=_NO_FIELDS,
    json_schema=True,
    reply_names=True,
    provider_tools=frozenset(("openai",)),
)
_CLAUDE = WireRules(
    provider="anthropic",
    repeated_users=True,
    empty_text=False,
    call_ids="plain",
    text_parts=True,
    result_media=frozenset({"image", "pdf"}),
    user_media=frozenset({"image", "pdf", "file"}),
    cache_control=True,
    json_schema=True,
    provider_tools=frozenset(("anthropic",)),
)
_GEMINI = WireRules(
    provider="google-gemini",
    repeated_users=True,
    empty_text=False,
    text_parts=True,
    json_schema=True,
    schema_with_tools=False,
    text_enums=True,
    free_keys=True,
    provider_tools=frozenset(("gemini",)),
    # Gemini 3 accepts both with an option that LangChain's client does not send.
    provider_tools_mixed=False,
)
_THINKING = frozenset({"reasoning_content"})

PROVIDERS: dict[str, WireRules] = {
    rules.provider: rules
    for rules in (
        IN_PROCESS,
        _OPENAI,
        replace(_OPENAI, provider="azure-openai", user_media=_NO_FILES),
        _CLAUDE,
        _GEMINI,
        replace(_GEMINI, provider="google-vertex"),
        WireRules(
            provider="aws-bedrock",
            # The models of some makers refuse text in the message of the results, which LangChain would make of both.
            user_after_tool=False,
            repeated_users=True,
            empty_text=False,
            call_ids="plain",
            tools_with_calls=True,
            text_parts=True,
            result_media=frozenset({"image", "pdf", "file", "video"}),
            user_media=frozenset({"image", "pdf", "file", "video"}),
            plain_file_names=True,
            choice_none=False,
        ),
        WireRules(
            provider="mistral",
            user_after_tool=False,
            empty_text=False,
            user_names=False,
            call_ids="nine",
            user_media=frozenset({"image", "pdf", "audio"}),
            reasoning_fields=_NO_FIELDS,
            json_schema=True,
            stream_usage=False,
            max_tokens="max_tokens",
        ),
        WireRules(
            provider="deepseek",
            user_media=_NO_MEDIA,
            reasoning_fields=_THINKING,
            reasoning_needed="reasoning_content",
            choice_forced=False,
            json_schema=False,
            max_tokens="max_tokens",
        ),
        WireRules(
            provider="groq",
            user_media=_IMAGES,
            reasoning_fields=frozenset({"reasoning"}),
            json_schema=True,
            schema_with_tools=False,
            schema_with_stream=False,
        ),
        WireRules(provider="xai", empty_text=False, reasoning_fields=_NO_FIELDS, json_schema=True),
        WireRules(
            provider="cohere",
            reply_parts=False,
            empty_text=False,
            user_media=_IMAGES,
            image_urls=True,
            choice_named=False,
            json_schema=True,
            schema_with_tools=False,
        ),
        WireRules(
            provider="cerebras",
            user_media=_NO_MEDIA,
            reasoning_fields=frozenset({"reasoning"}),
            json_schema=True,
            strict_schema=True,
        ),
        WireRules(
            provider="moonshot-kimi",
            user_media=frozenset({"image", "video"}),
            reasoning_fields=_THINKING,
            reasoning_needed="reasoning_content",
            choice_forced=False,
        ),
        WireRules(provider="zai-glm", reasoning_fields=_THINKING, user_media=_NO_FILES, max_tokens="max_tokens"),
        WireRules(
            provider="minimax",
            reasoning_split=True,
            reasoning_fields=frozenset({"reasoning_details"}),
            user_media=_NO_FILES,
        ),
        WireRules(provider="qwen-dashscope", reasoning_fields=_THINKING, user_media=_NO_FILES, choice_forced=False),
        WireRules(
            provider="openrouter",
            reasoning_fields=frozenset({"reasoning", "reasoning_details"}),
            cache_control=True,
            json_schema=True,
        ),
        WireRules(provider="together", reasoning_fields=frozenset({"reasoning"}), user_media=_NO_FILES),
        WireRules(
            provider="fireworks",
            reasoning_fields=_THINKING,
            user_media=_NO_FILES,
            json_schema=True,
            schema_with_tools=False,
        ),
        WireRules(provider="perplexity", reasoning_fields=_NO_FIELDS, json_schema=True),
        WireRules(provider="ollama", user_media=frozenset({"image", "audio"}), json_schema=True),
        WireRules(provider="lm-studio", user_media=_IMAGES, choice_named=False, json_schema=True),
        WireRules(provider="nvidia-nim", user_media=_NO_FILES, calls_in_kwargs=True),
    )
}
"""Name of a provider or server → its rules."""

PROVIDER_OF_PACKAGE: dict[str, str] = {
    **{
        f"langchain_{name}": name
        for name in (
            *("anthropic", "cerebras", "cohere", "deepseek", "fireworks", "groq", "ollama", "openrouter"),
            *("perplexity", "together", "xai"),
        )
    },
    "langchain_aws": "aws-bedrock",
    "langchain_dashscope": "qwen-dashscope",
    "langchain_google_genai": "google-gemini",
    "langchain_google_vertexai": "google-vertex",
    "langchain_mistralai": "mistral",
    "langchain_moonshot": "moonshot-kimi",
    "langchain_nvidia_ai_endpoints": "nvidia-nim",
    "langchain_qwq": "qwen-dashscope",
}
"""Package of a chat model's class → the provider that it is made for."""

HOSTS: dict[str, str] = {
    "api.openai.com": "openai",
    **dict.fromkeys(("openai.azure.com", "services.ai.azure.com"), "azure-openai"),
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "google-gemini",
    "aiplatform.googleapis.com": "google-vertex",
    "api.mistral.ai": "mistral",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.x.ai": "xai",
    **dict.fromkeys(("api.cohere.com", "api.cohere.ai"), "cohere"),
    "api.cerebras.ai": "cerebras",
    **dict.fromkeys(("api.moonshot.ai", "api.moonshot.cn"), "moonshot-kimi"),
    **dict.fromkeys(("api.z.ai", "open.bigmodel.cn"), "zai-glm"),
    **dict.fromkeys(("api.minimax.io", "api.minimaxi.com"), "minimax"),
    **dict.fromkeys(("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com"), "qwen-dashscope"),
    "openrouter.ai": "openrouter",
    **dict.fromkeys(("api.together.xyz", "api.together.ai"), "together"),
    "api.fireworks.ai": "fireworks",
    "api.perplexity.ai": "perplexity",
    "integrate.api.nvidia.com": "nvidia-nim",
    "ollama.com": "ollama",
}
"""Host of a model's base URL → provider; a key also stands for its subdomains."""

PORTS: dict[int, str] = {11434: "ollama", 1234: "lm-studio"}
"""Usual port of a model server on this machine → name of the server."""


def _family(pattern: str) -> re.Pattern[str]:
    """Return the pattern of a model's name at the begin of a text or after its publisher."""
    # Behind a publisher, as in `mistralai/…` or `mistral.…`.
    return re.compile(rf"(?:^|[./\\]){pattern}")


FAMILIES: tuple[tuple[re.Pattern[str], dict[str, Any]], ...] = (
    # The tokenizer of Mistral's models and their templates, on any server.
    (
        _family(r"(?:open-)?(?:mistral|mixtral|ministral|magistral|codestral|devstral|pixtral)"),
        # LangChain's client of Bedrock puts images of a result behind it, into the same message.
        {"user_after_tool": False, "call_ids": "nine", "result_media": _NO_MEDIA},
    ),
    (_family(r"(?:code)?gemma(?:[:-]?2b|-?1|-?2)?(?![\w.]|-?[3-9])"), {"system_role": False}),
    (_family(r"deepseek-(?:v4|reasoner)"), {"reasoning_needed": "reasoning_content", "choice_forced": False}),
    (
        _family(r"kimi-k(?:2\.[5-9]|[3-9])"),
        {"reasoning_needed": "reasoning_content", "choice_forced": False, "left_out": ["temperature"]},
    ),
    (_family(r"moonshot-v1(?!.*vision)"), {"user_media": _NO_MEDIA}),
    # Sampling is fixed while the model reasons.
    (_family(r"(?:gpt-5(?!.*chat)|o[1-9](?:-|$))"), {"left_out": ["temperature", "top_p"]}),
    (_family(r"grok-(?:[3-9](?!\.\d{1,2}\b.*non-reasoning)|code-fast)"), {"left_out": ["stop"]}),
    # Images in results of functions; older models count them as further results.
    (_family(r"gemini-(?:[3-9]|\d\d)"), {"result_media": _IMAGES, "schema_with_tools": True, "signature_needed": True}),
    (_family("claude"), {"user_after_tool": True}),
    (
        _family(r"claude-(?:opus-(?:4[-.][7-9](?!\d)|[5-9])|haiku-5[-.]5)"),
        {"left_out": ["temperature", "top_p", "top_k"]},
    ),
)
"""Pairs of a pattern of a model's name, which may follow a publisher, and fields of `WireRules` that it changes.

They apply whichever provider serves the model, in this order.
"""
