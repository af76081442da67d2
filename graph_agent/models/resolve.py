"""Resolves a configured model to a chat model, and probes its endpoint.

A configured model is a name such as `openai:gpt-4o-mini`, a `ModelEndpoint`, an object, or a list of candidates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from pydantic import SecretStr

from graph_agent.base._internal.extras import needs_extra
from graph_agent.base._internal.secrets import mask_secrets
from graph_agent.base._internal.text import excerpt
from graph_agent.base.errors import ConfigError
from graph_agent.base.types import OK
from graph_agent.models.endpoints import ModelEndpoint, endpoint_in
from graph_agent.models.providers import provider_of_model, unknown_provider

ModelSpec = BaseChatModel | str | ModelEndpoint | Sequence[BaseChatModel | str | ModelEndpoint]

_OPENAI_URL = "https://api.openai.com/v1"
_GPT = re.compile(r"gpt-(\d{1,3})(?:\.(\d{1,3}))?(?![\d.])")
"""Matches the version in the name of a GPT model."""
_NEEDS_RESPONSES = (5, 6)
"""First GPT version (major, minor) whose tools OpenAI accepts only in the Responses API."""


def resolve_model(model: ModelSpec) -> BaseChatModel:
    """Return the chat model for `model`; sends no request.

    Args:
        model: A chat model, returned unchanged; a name `provider:name`; a `ModelEndpoint`; or a sequence of these, of
            which the first that can be built is returned. `openai:` reads `OPENAI_API_KEY` and `OPENAI_BASE_URL`; other
            providers need the extra `langchain` and their own package. A name with an address
            (`provider:name@http://…`) is refused, because the names of runs may come from clients.

    Returns:
        A chat model. An `openai:` model is built without the client's own retries, because the loop retries.

    Raises:
        ConfigError: A value of another type; a name without a provider or with an address; a provider that is unknown
            or not installed, or that accepts no address or headers; a missing key; or a sequence in which no model can
            be built, with the reason for each.
    """
    if isinstance(model, BaseChatModel):
        return model
    if isinstance(model, ModelEndpoint):
        return _from_endpoint(model)
    if isinstance(model, str):
        if endpoint_in(model) is not None:
            raise ConfigError(
                f"The model {excerpt(mask_secrets(repr(model)))} has an address, which only an agent's file and the "
                "command line may give; pass a chat model such as ChatOpenAI(model=..., base_url=...) in Python."
            )
        return _from_endpoint(ModelEndpoint(model=model or " "))
    given: object = model
    if not isinstance(given, Sequence):
        fix = "Write for example 'openai:gpt-4o-mini', or give a BaseChatModel."
        if isinstance(given, Runnable):
            fix = (
                "Give the BaseChatModel itself, with the options of bind() in its constructor. LoopConfig has "
                "`model_retries` for with_retry(), and `fallback_models` for with_fallbacks(); a run selects another "
                "model with context={'model': 'provider:name'}."
            )
        raise ConfigError(f"A model is a chat model or a 'provider:name'; got {type(given).__name__}. {fix}")
    refusals: list[str] = []
    for candidate in model:
        try:
            return resolve_model(candidate)
        except ConfigError as error:
            refusals.append(f"- {candidate}: {error}")
    if not refusals:
        raise ConfigError("The list of models is empty. Name one, such as 'openai:gpt-4o-mini'.")
    raise ConfigError("None of the models can be built:\n" + "\n".join(refusals))


def _from_endpoint(endpoint: ModelEndpoint) -> BaseChatModel:
    """Build the chat model of an endpoint, for the provider `openai` by `_openai`, for others by `_other`.

    Raises `ConfigError` for a name without a provider (with the one that was probably meant) or without a model.
    """
    spec = endpoint.model
    provider, colon, name = (part.strip() for part in spec.partition(":"))
    if not colon:
        meant = f"{provider_of_model(provider)}:{provider}" if provider else "openai:gpt-4o-mini"
        raise ConfigError(
            f"The model {spec.strip()!r} names no provider; did you mean {meant!r}? Write it as 'provider:name'."
        )
    if not provider or not name:
        raise ConfigError(
            f"The model {spec!r} is incomplete; write it as 'provider:name', such as 'openai:gpt-4o-mini'."
        )
    return (_openai if provider == "openai" else _other)(endpoint, provider, name)


def _openai(endpoint: ModelEndpoint, provider: str, name: str) -> BaseChatModel:
    """Build the chat model for OpenAI's API; raise `ConfigError` if no key or an invalid address is set.

    The endpoint's own key and address come before `OPENAI_API_KEY` and `OPENAI_BASE_URL`; a blank address means
    OpenAI's. Some models at OpenAI's address use the Responses API.

    Args:
        name: Name of the model, without the provider.
    """
    base_url, key = endpoint.address(), endpoint.key()
    if key is None and not os.environ.get("OPENAI_API_KEY", "").strip():
        raise ConfigError(
            f"The model {endpoint.model!r} needs a key: set the environment variable OPENAI_API_KEY "
            "(to any text for a local server that is named by OPENAI_BASE_URL and asks for none). To try the agent "
            """without a model, set DEBUG_MOCK_RESPONSES='["Hello."]'."""
        )
    if base_url is None and (base_url := os.environ.get("OPENAI_BASE_URL")) is not None:
        # Passed explicitly, because the client uses a blank variable as an address.
        base_url = base_url.strip() or _OPENAI_URL
        if urlsplit(base_url).scheme not in {"http", "https"}:
            raise ConfigError(
                f"OPENAI_BASE_URL must be an http or https address; got {base_url!r}. "
                "Write for example 'http://localhost:8000/v1'."
            )
    # Imported here: the client loads slowly, and other models do not need it.
    from langchain_openai import ChatOpenAI

    options: dict[str, Any] = {"api_key": SecretStr(key)} if key is not None else {}
    if headers := endpoint.sent_headers():
        options["default_headers"] = headers
    if needs_responses(name, base_url):
        options["use_responses_api"] = True
    return ChatOpenAI(model=name, base_url=base_url, max_retries=0, stream_usage=True, **options)


def needs_responses(name: str, base_url: str | None) -> bool:
    """Whether OpenAI accepts the tools of a model only in the Responses API.

    So from `gpt-5.6` on: these models reason by default, and chat completions refuse tools together with reasoning.

    Args:
        name: The model's name.
        base_url: Address of the server; False is returned for another host. None for OpenAI's own.
    """
    found = _GPT.match(name.strip().lower())
    if found is None or (base_url is not None and urlsplit(base_url).hostname != urlsplit(_OPENAI_URL).hostname):
        return False
    return (int(found[1]), int(found[2] or 0)) >= _NEEDS_RESPONSES


def _other(endpoint: ModelEndpoint, provider: str, name: str) -> BaseChatModel:
    """Build the chat model of another provider by LangChain's `init_chat_model`.

    Args:
        provider: Provider in the endpoint's name.
        name: Name of the model, without the provider.

    Raises:
        ConfigError: The extra `langchain` or the provider's package is missing, the provider is unknown, its
            constructor failed or was given a blank key, or its class ignores the endpoint's address or headers.
    """
    spec = endpoint.model
    base_url, headers, key = endpoint.address(), endpoint.sent_headers(), endpoint.key()
    with needs_extra(f"The model {spec!r}", "langchain"):
        from langchain.chat_models import init_chat_model
    options = _headers_option(provider, headers)
    if base_url is not None:
        options["base_url"] = base_url
    if key is not None:
        options["api_key"] = key
    try:
        model: BaseChatModel = init_chat_model(name, model_provider=provider, **options)
    except ImportError as error:
        raise ConfigError(f"The model {spec!r} needs a package that is not installed. {error}") from error
    except Exception as error:
        if isinstance(error, ValueError) and "Unsupported provider" in str(error):
            raise ConfigError(
                f"{unknown_provider(provider, name)} A factory of your own is written 'module:factory' in an agent's "
                "file."
            ) from error
        # A provider's constructor may raise anything, e.g. for a missing key: name the model.
        raise ConfigError(f"The model {spec!r} cannot be built: {mask_secrets(str(error))}") from error
    _check_key(spec, model, headers)
    # LangChain's classes ignore options that they lack, or send them to the model.
    values = [getattr(model, field, None) for field in type(model).model_fields if field != "model_kwargs"]
    if base_url is not None and base_url not in values:
        raise ConfigError(f"The model {spec!r}: provider {provider!r} takes no base_url; {_INSTEAD}")
    if headers and headers not in values and {"headers": headers} not in values:
        raise ConfigError(f"The model {spec!r}: provider {provider!r} takes no headers; {_INSTEAD}")
    return model


def _check_key(spec: str, model: BaseChatModel, headers: dict[str, str]) -> None:
    """Raise `ConfigError` for a model that its class has built with a blank key, because its provider would refuse
    every request.

    No error if any header is given, or if the variable of Anthropic's token is set, which may take the place of a key.

    Args:
        spec: The configured name, for the message.
        model: The chat model.
        headers: The headers of its requests.
    """
    for name, variable in model.lc_secrets.items():
        value = getattr(model, name, None)
        token = variable.replace("_API_KEY", "_AUTH_TOKEN")  # Anthropic's client reads it itself
        if headers or not isinstance(value, SecretStr) or value.get_secret_value().strip() or os.environ.get(token):
            continue
        raise ConfigError(
            f"The model {spec!r} needs a key: set the environment variable {variable}. To try the agent without a "
            """model, set DEBUG_MOCK_RESPONSES='["Hello."]'."""
        )


_INSTEAD = "name a factory 'module:factory' that builds the model, or 'openai:NAME' for a server with OpenAI's API."


def _headers_option(provider: str, headers: dict[str, str]) -> dict[str, Any]:
    """Return the constructor's argument by which a provider's class takes headers; empty without headers."""
    if not headers:
        return {}
    if provider == "ollama":
        return {"client_kwargs": {"headers": headers}}
    return {"additional_headers" if provider.startswith("google_") else "default_headers": headers}


_TIMEOUT_S = 3.0
"""Seconds that one request of a test of an endpoint may take."""
_REFUSED = {401: "auth", 403: "permission"}
"""HTTP status of a refused key → state of the endpoint."""


async def endpoint_state(model: Any) -> tuple[str, str]:
    """Test whether a model's endpoint answers and accepts its key. Never raises; each request may take 3 s.

    The endpoint's list of models is requested. If that fails, an empty completion request is sent, because some servers
    have no list, or a broken one; a working endpoint refuses it with an error of its own. A server error, 404, or a web
    page in answer to that means `unreachable`.

    Args:
        model: The chat model; one without an OpenAI client is `ok`, because nothing can be tested.

    Returns:
        The state `ok`, `auth`, `permission` or `unreachable`, and a remark about a broken list of models, else empty;
        none for a server that answers with 404, because it has no list.
    """
    client: Any = getattr(model, "root_async_client", None)
    if not callable(getattr(client, "with_options", None)):
        return OK, ""
    client = client.with_options(max_retries=0, timeout=_TIMEOUT_S)
    listed = f"GET {str(client.base_url).rstrip('/')}/models"
    try:
        answer = await client.models.with_raw_response.list()
        if _is_list(answer.http_response):
            return OK, ""
        remark = f"{listed} answers with no list of models"
    except Exception as error:  # noqa: BLE001 - a client may raise anything; any error is a state
        status = getattr(error, "status_code", None)
        if not isinstance(status, int):
            return "unreachable", ""
        if status in _REFUSED:
            return _REFUSED[status], ""
        # Some servers have no list.
        remark = "" if status == 404 else f"{listed} fails with HTTP {status}"
    try:
        answer = await client.post("/chat/completions", body={}, cast_to=httpx.Response)
        status = answer.status_code
    except Exception as error:  # noqa: BLE001 - as above
        status, answer = getattr(error, "status_code", None), getattr(error, "response", None)
    if status in _REFUSED:
        return _REFUSED[status], remark
    # A web page is not an answer of a model's endpoint.
    # The answer is one of httpx, or of the library that newer clients have in its place.
    is_page = "html" in getattr(answer, "headers", {}).get("content-type", "")
    if not isinstance(status, int) or status >= 500 or status == 404 or is_page:
        return "unreachable", remark
    return OK, remark


def _is_list(answer: httpx.Response) -> bool:
    """Whether a response is a list of models: a JSON object with `data`, or an array, as some servers send."""
    try:
        found = answer.json()
    except ValueError:
        return False
    return isinstance(found, list) or (isinstance(found, dict) and "data" in found)


_WINDOWS = (
    *("loaded_context_length", "n_ctx", "max_model_len", "context_window", "context_length"),
    *("max_context_length", "max_input_tokens"),
)
"""Names of the context window in servers' replies (LM Studio, llama.cpp, vLLM, hosted ones), in order of precedence."""


async def served_window(model: Any) -> int | None:
    """Ask a model's server for its context window in tokens; None if it reports none.

    Reads `/v1/models`, llama.cpp's `/props` and LM Studio's `/api/v0/models`, in this order; errors are ignored. None
    also for a model without an OpenAI client.
    """
    client: Any = getattr(model, "root_async_client", None)
    if not callable(getattr(client, "with_options", None)):
        return None
    client = client.with_options(max_retries=0, timeout=_TIMEOUT_S)
    root = str(client.base_url).rstrip("/").removesuffix("/v1")
    name = getattr(model, "model_name", "")
    for url in (f"{str(client.base_url).rstrip('/')}/models", f"{root}/props", f"{root}/api/v0/models"):
        try:
            answer = await client.get(url, cast_to=httpx.Response)
            found = window_in_listing(answer.json(), name)
        except Exception:  # noqa: BLE001 - a server may lack the page, and a client may raise anything
            continue
        if found is not None:
            return found
    return None


def window_in_listing(page: Any, name: str) -> int | None:
    """Return the context window in tokens that a server's list of models, or its properties, state; None if there is
    none.

    Args:
        page: The decoded JSON: an object with the list under `data`, or with the properties of one model.
        name: The model's name in the list. A list of a single model may have it under another name.
    """
    if not isinstance(page, dict):
        return None
    entries = page.get("data")
    if isinstance(entries, list):
        models = [entry for entry in entries if isinstance(entry, dict)]
        named = [entry for entry in models if entry.get("id") == name] or (models if len(models) == 1 else [])
        return next((window for entry in named if (window := _window_of(entry)) is not None), None)
    return _window_of(page)


def _window_of(entry: dict[str, Any]) -> int | None:
    """Return the context window in one entry of a list of models: the first positive integer under a known field, in
    the entry itself or a known part of it; None if there is none.
    """
    parts = [entry, entry.get("meta"), entry.get("default_generation_settings")]
    return next(
        (
            value
            for field in _WINDOWS
            for part in parts
            if isinstance(part, dict) and isinstance(value := part.get(field), int) and value > 0
        ),
        None,
    )
