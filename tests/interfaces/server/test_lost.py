"""Requests that look for the server's paths: an unknown path, the root, and the list of operations."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from tests.interfaces.server.process import Served

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


def test_the_root_leads_to_the_documentation_and_the_apis(served: Served) -> None:
    with served.http() as http:
        links = http.get("/", headers={"accept": "application/json"}).json()["links"]
        found = {name: http.get(links[name]) for name in ("docs", "openapi", "health", "ready", "agent card")}

    versions = [found["openapi"].json()["info"]["version"], found["agent card"].json()["version"]]
    assert ([page.status_code for page in found.values()], versions) == (
        [200] * 5,
        [metadata.version("graph-agent")] * 2,
    )


def test_the_page_of_operations_loads_nothing_and_runs_no_script(served: Served) -> None:
    with served.http() as http:
        page = http.get("/docs").text
        paths = http.get("/openapi.json").json()["paths"]

    assert ([path for path in paths if f" {path}</th>" not in page], re.findall(r"(?:src|href)=\"([^\"]*)", page)) == (
        [],
        ["/openapi.json"],
    )
    assert ("<script" in page, "http://" in page, "https://" in page) == (False, False, False)
