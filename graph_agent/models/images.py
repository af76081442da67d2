"""Detection of model clients that download images by URL instead of sending the URL to the provider."""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel

_PASS_ON = frozenset(
    {"openai", "azure_openai", "anthropic", "mistralai", "groq", "xai", "deepseek", "fireworks", "together"}
)
"""Providers whose LangChain client sends the URL; Azure's is in langchain-openai."""
_PREFIX = "langchain_"
_NOT_CLIENTS = frozenset({"core", "classic", "tests"})


def may_download_images(model: BaseChatModel | str) -> bool:
    """Whether a model's client may download images by URL from this process.

    LangChain's clients for OpenAI, Anthropic and compatible providers send the URL to the provider. Others, such as
    Google's, download it in this process, where the URL may point to the internal network. A client outside LangChain's
    packages is assumed to send it.

    Args:
        model: A chat model, `provider:name`, or `module:factory`.
    """
    if isinstance(model, str):
        provider = model.partition(":")[0].strip()
        is_factory = "." in provider
        return not is_factory and provider not in _PASS_ON
    packages = [cls.__module__.partition(".")[0] for cls in type(model).__mro__]
    clients = {name.removeprefix(_PREFIX) for name in packages if name.startswith(_PREFIX)} - _NOT_CLIENTS
    return bool(clients) and not clients & _PASS_ON
