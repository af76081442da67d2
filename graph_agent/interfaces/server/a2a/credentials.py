"""Reads the credentials in the headers of an A2A request, and hides these headers from the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.utils.errors import InvalidParamsError
from pydantic import SecretStr
from starlette.requests import Request

from graph_agent.base._internal.credential_headers import credentials_of
from graph_agent.base.errors import InputError

_STATE = "graph_agent_credentials"
_HEADERS = "headers"


class CredentialContext(ServerCallContextBuilder):
    """Builds the SDK's call context with the credentials of a request.

    Their headers are removed from it, so that the SDK cannot log or store them.

    Args:
        inner: Builds the rest of the context.
        names: Credential name → request header.
    """

    def __init__(self, inner: ServerCallContextBuilder, names: Mapping[str, str]) -> None:
        self._inner = inner
        self._names = names
        self._headers = frozenset(header.lower() for header in names.values())

    def build(self, request: Request) -> ServerCallContext:
        """Return the call context of a request, without the credential headers, and with the credentials in its state.

        If a credential header occurs twice, nothing is raised here: `request_credentials` raises the error later.
        """
        context = self._inner.build(request)
        headers: Mapping[str, Any] = context.state.get(_HEADERS, {})
        context.state[_HEADERS] = {name: value for name, value in headers.items() if name.lower() not in self._headers}
        try:
            context.state[_STATE] = credentials_of(request.headers, self._names)
        except InputError as error:
            # Raised by `request_credentials` instead: the SDK maps no exception of a builder to a response.
            context.state[_STATE] = InvalidParamsError(message=str(error))
        return context


def request_credentials(context: ServerCallContext) -> dict[str, SecretStr]:
    """Return the credentials of a request by name; empty if the server reads none from headers.

    Raises `InvalidParamsError` if a credential header occurs twice.
    """
    found: dict[str, SecretStr] | InvalidParamsError = context.state.get(_STATE, {})
    if isinstance(found, InvalidParamsError):
        raise found
    return found
