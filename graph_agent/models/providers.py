"""Names the providers of models, for the errors about names that are not known."""

from __future__ import annotations

import difflib
import re

PROVIDER_PACKAGES = {
    **{
        name: f"langchain-{name}"
        for name in (
            *("anthropic", "baseten", "cohere", "deepseek", "fireworks", "groq", "huggingface", "ibm", "litellm"),
            *("meta", "mistralai", "ollama", "openai", "openrouter", "perplexity", "together", "upstage", "xai"),
        )
    },
    **dict.fromkeys(("bedrock", "bedrock_converse", "anthropic_bedrock"), "langchain-aws"),
    **dict.fromkeys(("bedrock_mantle_anthropic", "bedrock_mantle_openai"), "langchain-aws"),
    **dict.fromkeys(("google_anthropic_vertex", "google_vertexai"), "langchain-google-vertexai"),
    **dict.fromkeys(("azure_openai", "langsmith"), "langchain-openai"),
    "azure_ai": "langchain-azure-ai",
    "google_genai": "langchain-google-genai",
    "nvidia": "langchain-nvidia-ai-endpoints",
}
"""Provider name of LangChain's `init_chat_model` → the package that has its chat model."""
_OTHER_NAMES = {
    "anthropic": "claude anthropicai",
    "azure_openai": "azure azureopenai openaiazure",
    "azure_ai": "azureai azureaifoundry foundry azurefoundry azureinference",
    "bedrock_converse": "aws awsbedrock amazon amazonbedrock bedrockconverse nova",
    "cohere": "command commandr",
    "fireworks": "fireworksai",
    "google_genai": "gemini google googleai googlegemini googlegenai genai googleaistudio aistudio googlegenerativeai",
    "google_vertexai": "vertex vertexai googlevertex gcp googlecloud",
    "groq": "groqcloud",
    "huggingface": "hf huggingfacehub hub",
    "ibm": "watson watsonx watsonxai ibmwatsonx",
    "litellm": "lite",
    "meta": "llama metallama",
    "mistralai": "mistral magistral codestral",
    "nvidia": "nim nvidianim nvidiaaiendpoints",
    "ollama": "ollamalocal ollamacloud",
    "openai": "gpt chatgpt openaichat oai",
    "openrouter": "router openrouterai",
    "perplexity": "pplx sonar perplexityai",
    "together": "togetherai",
    "upstage": "solar",
    "xai": "grok",
}
"""Provider → other spellings of its name that users write, without punctuation."""
_COMPATIBLE = {
    "cerebras": "https://api.cerebras.ai/v1",
    "dashscope": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    "glm": "https://api.z.ai/api/paas/v4",
    "kimi": "https://api.moonshot.ai/v1",
    "llamacpp": "http://localhost:8080/v1",
    "llamaserver": "http://localhost:8080/v1",
    "lmstudio": "http://localhost:1234/v1",
    "local": "http://localhost:8080/v1",
    "localai": "http://localhost:8080/v1",
    "minimax": "https://api.minimax.io/v1",
    "moonshot": "https://api.moonshot.ai/v1",
    "qwen": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    "sambanova": "https://api.sambanova.ai/v1",
    "sglang": "http://localhost:30000/v1",
    "tgi": "http://localhost:8080/v1",
    "vllm": "http://localhost:8000/v1",
    "zai": "https://api.z.ai/api/paas/v4",
    "zhipu": "https://api.z.ai/api/paas/v4",
}
"""Name of a server with OpenAI's API → its usual base URL."""
_ALIASES = {name: provider for provider, names in _OTHER_NAMES.items() for name in names.split()}
_MODELS = {
    "claude": "anthropic",
    "command": "cohere",
    "deepseek": "deepseek",
    "gemini": "google_genai",
    "grok": "xai",
    "ministral": "mistralai",
    "mistral": "mistralai",
    "sonar": "perplexity",
}
"""First part of a model's name → provider."""


def provider_of_model(name: str) -> str:
    """Guess the provider of a model from the family at the beginning of its name.

    `openai` if the family is not known.
    """
    return _MODELS.get(re.split(r"[-_.:/\d]", name.strip().lower(), maxsplit=1)[0], "openai")


def unknown_provider(provider: str, name: str) -> str:
    """Return the text of the error for an unknown provider, with the known ones and, if a name is similar, the provider
    that was probably meant.

    For a server that has OpenAI's API, the text has the base URL to use.

    Args:
        provider: The given provider.
        name: The model's name that follows it.
    """
    plain = re.sub(r"[^a-z0-9]", "", provider.casefold())
    what = f"Unknown model provider {provider!r} in '{provider}:{name}'; known: {', '.join(sorted(PROVIDER_PACKAGES))}."
    if (url := _COMPATIBLE.get(plain)) is not None:
        return (
            f"{what} This server has OpenAI's API: write 'openai:{name}' with a base URL, "
            f"such as {{model: 'openai:{name}', base_url: '{url}'}} in an agent's file."
        )
    by_plain = {each.replace("_", ""): each for each in PROVIDER_PACKAGES}
    meant = _ALIASES.get(plain) or by_plain.get(plain)
    if meant is None:
        near = difflib.get_close_matches(plain, {**by_plain, **_ALIASES}, n=1, cutoff=0.7)
        meant = {**by_plain, **_ALIASES}[near[0]] if near else None
    if meant is None:
        return what
    return f"{what} Did you mean {meant!r}? Write '{meant}:{name}'; its package is {PROVIDER_PACKAGES[meant]}."
