"""The credentials that a client's request brings in headers, on their way to the run that it begins."""

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
    """Makes the SDK's context of a request, with its credentials as secrets, and their headers taken out.

    Args:
        inner: Makes the context otherwise.
        names: Credential name → header name.
    """

    def __init__(self, inner: ServerCallContextBuilder, names: Mapping[str, str]) -> None:
        self._inner = inner
        self._names = names
        self._headers = frozenset(header.lower() for header in names.values())

    def build(self, request: Request) -> ServerCallContext:
        """As the SDK's."""
        context = self._inner.build(request)
        shown: Mapping[str, Any] = context.state.get(_HEADERS, {})
        context.state[_HEADERS] = {name: value for name, value in shown.items() if name.lower() not in self._headers}
        try:
            context.state[_STATE] = credentials_of(request.headers, self._names)
        except InputError as error:
            # Raised where the request is answered: the SDK has no answer for what a builder raises.
            context.state[_STATE] = InvalidParamsError(message=str(error))
        return context


def brought_by(context: ServerCallContext) -> dict[str, SecretStr]:
    """The credentials that a request has brought.

    Raises:
        InvalidParamsError: When the header of one is there twice.
    """
    found: dict[str, SecretStr] | InvalidParamsError = context.state.get(_STATE, {})
    if isinstance(found, InvalidParamsError):
        raise found
    return found
