"""Chooses the rules of a model's endpoint, by class, base URL and name of the model, without a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel

from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.table import FAMILIES, HOSTS, IN_PROCESS, PORTS, PROVIDER_OF_PACKAGE, PROVIDERS

_URL_FIELDS = ("openai_api_base", "anthropic_api_url", "base_url", "azure_endpoint", "api_base", "endpoint_url")
_NAME_FIELDS = ("model_name", "model", "model_id", "deployment_name")
_OPENAI_URL = "https://api.openai.com/v1"
_LOCAL = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}
_CLAUDES = {"anthropic", "aws-bedrock"}
_CLOUDS = {"aws-bedrock", "google-vertex"}
_CLIENTS = re.compile(r"langchain_(?!core\b|classic\b|tests\b)\w+")


def rules_for(model: BaseChatModel, settings: Mapping[str, Any] | None = None) -> WireRules:
    """Return the rules of a model's endpoint, found by the model's class, base URL and name; sends no request.

    A client of Claude that requests reasoning gets further rules: no temperature and no required calls.

    Args:
        model: A chat model; a subclass has the rules of its parent.
        settings: Fields of the rules that the user has set in `model_rules`; they override those of the table.

    Raises:
        ConfigError: A field does not exist or has a value of another type.
    """
    rules = _from_table(model)
    if rules.provider in _CLAUDES and (thinking := _thinking(model)) in ("enabled", "adaptive"):
        # Claude refuses another temperature while it thinks; LangChain's client sends no forced choice then. A reply
        # begins with reasoning only if there is a budget for it.
        fixed = {"left_out": rules.left_out | {"temperature"}, "choice_forced": False}
        rules = rules.with_fields({**fixed, "thinking_first": thinking == "enabled"})
    return rules.with_fields(settings) if settings else rules


def _from_table(model: BaseChatModel) -> WireRules:
    """Return the rules of a model's endpoint from the table of providers and model families.

    A class that is no provider's client runs in this process. The provider is that of the client's package; for a
    client of several providers, that of the address. Rules of the model's family are added.
    """
    packages = [name for cls in type(model).__mro__ if (name := client_package(cls)) is not None]
    if not packages:
        return IN_PROCESS
    # The last package defines the API: Bedrock has clients that are subclasses of those of Anthropic and OpenAI.
    named = PROVIDER_OF_PACKAGE.get(packages[-1])
    if named is None and (own := PROVIDER_OF_PACKAGE.get(packages[0])) not in _CLOUDS:
        named = own
    # A class for one provider is used with that provider's API at any address.
    default = _OPENAI_URL if packages[-1] == "langchain_openai" else ""
    provider = named if named is not None else _provider_at(base_url(model) or default)
    if provider == "google-gemini" and getattr(model, "vertexai", False):
        provider = "google-vertex"  # which refuses the signatures of Gemini's own API
    rules = PROVIDERS.get(provider or "", WireRules())
    name = model_name(model).lower()
    added = {field: value for family, fields in FAMILIES if family.search(name) for field, value in fields.items()}
    return rules.with_fields(added) if added else rules


def _thinking(model: BaseChatModel) -> object:
    """Return the `type` of reasoning that a client of Claude requests, such as `enabled`; None if it requests none."""
    fields = getattr(model, "additional_model_request_fields", None) or {}
    thinking = getattr(model, "thinking", None) or (fields.get("thinking") if isinstance(fields, dict) else None)
    return thinking.get("type") if isinstance(thinking, dict) else None


def client_package(cls: type) -> str | None:
    """Return the top package of a class if it is one of LangChain's integrations (`langchain_…`); None otherwise."""
    name = cls.__module__.partition(".")[0]
    return name if _CLIENTS.fullmatch(name) else None


def base_url(model: BaseChatModel) -> str:
    """Return the base URL of a model's requests; empty if unknown."""
    client: Any = getattr(model, "root_async_client", None) or getattr(model, "root_client", None)
    if (url := getattr(client, "base_url", None)) is not None:
        return str(url)
    given = (getattr(model, field, None) for field in _URL_FIELDS)
    return next((found for found in given if isinstance(found, str) and found), "")


def model_name(model: BaseChatModel) -> str:
    """Return the model's name at the endpoint; empty if unknown."""
    return next((name for field in _NAME_FIELDS if isinstance(name := getattr(model, field, None), str) and name), "")


def _provider_at(url: str) -> str | None:
    """Return the provider at an address, by its host, or on this machine by its port; None if unknown. Subdomains count
    as their host.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    # On this machine only the port identifies a server.
    if host in _LOCAL:
        try:
            return PORTS.get(parts.port or 0)
        except ValueError:
            return None
    return next(
        (name for known, name in HOSTS.items() if host == known or host.endswith((f".{known}", f"-{known}"))), None
    )
