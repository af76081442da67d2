"""Requests to an unknown path: the error names the client setting that leads to the right one."""

from __future__ import annotations

import pytest

from tests.server.process import Served

BASE = "give the client a base URL that ends in /v1."


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (
            "/responses",
            f" Responses are at /v1/responses: {BASE}",
        ),
        ("/chat/completions", f" Chat completions are at /v1/chat/completions: {BASE}"),
        ("/models", f" The models are at /v1/models: {BASE}"),
        (
            "/v1/v1/messages",
            " Messages are at /v1/messages: Anthropic's own clients want a base URL without /v1, and add it.",
        ),
        ("/v1/embeddings", ""),
    ],
)
def test_a_404_suggests_the_path_if_known(served: Served, path: str, hint: str) -> None:
    with served.http() as http:
        answer = http.post(path, json={})

    error = answer.json()["error"]
    assert (answer.status_code, error["message"] if path.startswith("/v1/") else error) == (
        404,
        f"There is nothing at {path}.{hint}",
    )
