"""Credentials from request headers, passed to the run that the request starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.utils.errors import InvalidParamsError
from pydantic import SecretStr
from starlette.requests import Request

from graph_agent._internal.credential_headers import credentials_of
from graph_agent.errors import InputError

_STATE = "graph_agent_credentials"
_HEADERS = "headers"


class CredentialContext(ServerCallContextBuilder):
    """Builds the SDK's call context, with credentials as secrets and without their headers.

    Args:
        inner: Builds the rest of the context.
        names: Credential name → header name.
    """

    def __init__(self, inner: ServerCallContextBuilder, names: Mapping[str, str]) -> None:
        self._inner = inner
        self._names = names
        self._headers = frozenset(header.lower() for header in names.values())

    def build(self, request: Request) -> ServerCallContext:
        """Build the context of a request."""
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
    """Return the credentials of a request.

    Raises:
        InvalidParamsError: If a credential header occurs twice.
    """
    found: dict[str, SecretStr] | InvalidParamsError = context.state.get(_STATE, {})
    if isinstance(found, InvalidParamsError):
        raise found
    return found
