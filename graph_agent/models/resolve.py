"""From what a configuration calls a model to the chat model: `openai:gpt-4o-mini`, an object, or a list to try."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel

from graph_agent.errors import ConfigError, did_you_mean
from graph_agent.redaction import mask_secrets

ModelSpec = BaseChatModel | str | Sequence[BaseChatModel | str]

_OPENAI_URL = "https://api.openai.com/v1"
# The usual ones, for the hint; LangChain knows more.
_PROVIDERS = ("anthropic", "azure_openai", "bedrock_converse", "google_genai", "groq", "mistralai", "ollama", "openai")


def resolve_model(model: ModelSpec) -> BaseChatModel:
    """Give the chat model that `model` names; nothing is sent anywhere.

    Args:
        model: a chat model, returned as it is; a `provider:name`; or a sequence of these, of which the first that can
            be built is taken. `openai:` reads `OPENAI_API_KEY` and `OPENAI_BASE_URL`; other providers need the extra
            `langchain` and their own package.

    Returns:
        A chat model. Retries inside the client are off for `openai:`, as the loop has its own.

    Raises:
        ConfigError: for a name without a provider, a provider that is unknown or not installed, a missing key, and a
            sequence of which nothing can be built.
    """
    if isinstance(model, BaseChatModel):
        return model
    if isinstance(model, str):
        return _from_name(model)
    if not isinstance(model, Sequence):
        raise ConfigError(
            f"A model is a chat model or a 'provider:name'; got {type(model).__name__}. Write for example "
            "'openai:gpt-4o-mini', or give a BaseChatModel."
        )
    refusals: list[str] = []
    for candidate in model:
        try:
            return resolve_model(candidate)
        except ConfigError as error:
            refusals.append(f"- {candidate}: {error}")
    if not refusals:
        raise ConfigError("The list of models is empty. Name one, such as 'openai:gpt-4o-mini'.")
    raise ConfigError("None of the models can be built:\n" + "\n".join(refusals))


def _from_name(spec: str) -> BaseChatModel:
    provider, colon, name = (part.strip() for part in spec.partition(":"))
    if not colon:
        raise ConfigError(
            f"The model {spec!r} names no provider; did you mean 'openai:{provider or 'gpt-4o-mini'}'? "
            "Write it as 'provider:name'."
        )
    if not provider or not name:
        raise ConfigError(
            f"The model {spec!r} is incomplete; write it as 'provider:name', such as 'openai:gpt-4o-mini'."
        )
    return _openai(spec, name) if provider == "openai" else _other(spec, provider, name)


def _openai(spec: str, name: str) -> BaseChatModel:
    if not os.environ.get("OPENAI_API_KEY", "").strip():
        raise ConfigError(
            f"The model {spec!r} needs a key: set the environment variable OPENAI_API_KEY "
            "(to any text for a local server that is named by OPENAI_BASE_URL and asks for none)."
        )
    base_url = os.environ.get("OPENAI_BASE_URL")
    if base_url is not None:
        # Given explicitly, as the client takes a blank variable for an address.
        base_url = base_url.strip() or _OPENAI_URL
        if urlsplit(base_url).scheme not in {"http", "https"}:
            raise ConfigError(
                f"OPENAI_BASE_URL must be an http or https address; got {base_url!r}. "
                "Write for example 'http://localhost:8000/v1'."
            )
    # Imported here: the client is slow to load, and a scripted or another provider's model has no use for it.
    from graph_agent.models.openai_chat import LeanChatOpenAI

    return LeanChatOpenAI(model=name, base_url=base_url, max_retries=0, stream_usage=True)


def _other(spec: str, provider: str, name: str) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError:
        raise ConfigError(
            f"The model {spec!r} needs an extra: pip install 'graph-agent[langchain]', and the provider's own package. "
            "Models of 'openai:' need neither."
        ) from None
    try:
        return init_chat_model(name, model_provider=provider)
    except ImportError as error:
        raise ConfigError(f"The model {spec!r} needs a package that is not installed. {error}") from error
    except Exception as error:
        if isinstance(error, ValueError) and "Unsupported provider" in str(error):
            raise ConfigError(
                f"Unknown model provider {provider!r} in {spec!r}; {did_you_mean(provider, _PROVIDERS)} "
                "A factory of your own is written 'module:factory' in an agent's file."
            ) from error
        # A provider's constructor may raise anything, a missing key above all: say which model it was.
        raise ConfigError(f"The model {spec!r} cannot be built: {mask_secrets(str(error))}") from error
