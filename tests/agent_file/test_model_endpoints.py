"""The address, the headers and the key variable of each model in an agent file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from graph_agent import Session
from graph_agent.errors import ConfigError
from graph_agent.models.endpoints import ModelEndpoint
from graph_agent.models.resolve import resolve_model
from graph_agent.spec import load_spec, open_agent
from tests.support.openai_stub import Failure, OpenAIStub, StubFactory, openai_stub

__all__ = ["openai_stub"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "DEBUG_MOCK_RESPONSES", "GRAPH_AGENT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-openai-only")
    monkeypatch.setenv("MY_KEY", "key-of-the-server")


def written(tmp_path: Path, model: Any, **keys: Any) -> Path:
    file = tmp_path / "agent.yaml"
    file.write_text(yaml.safe_dump({"name": "a", "model": model, "db": "memory:", **keys}))
    return file


async def answer(file: Path, **context: Any) -> str:
    async with open_agent(load_spec(file)) as graph:
        return (await Session(graph, "s").run("Hello", context=context)).answer


def sent(stub: OpenAIStub) -> list[tuple[Any, ...]]:
    """Model, key and one header of each request."""
    headers = ("authorization", "x-team")
    return [(each.body["model"], *(each.headers.get(name) for name in headers)) for each in stub.requests]


async def test_a_model_has_its_own_address_headers_and_key(
    tmp_path: Path, openai_stub: StubFactory, caplog: pytest.LogCaptureFixture
) -> None:
    stub = openai_stub("Hi.")
    model = {"model": "openai:qwen3", "base_url": stub.base_url, "api_key_env": "MY_KEY", "headers": {"X-Team": "t"}}

    with caplog.at_level(logging.DEBUG):
        got = await answer(written(tmp_path, model))

    assert (got, sent(stub)) == ("Hi.", [("qwen3", "Bearer key-of-the-server", "t")])
    assert "key-of-the-server" not in caplog.text


@pytest.mark.parametrize("form", ["mapping", "short", "list", "environment", "variable"])
async def test_a_server_without_a_key_variable_receives_no_key(
    tmp_path: Path, openai_stub: StubFactory, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = openai_stub("Hi.")
    monkeypatch.setenv("MY_URL", stub.base_url)
    mapping = {"model": "openai:qwen3", "base_url": stub.base_url}
    short = f"openai:qwen3@{stub.base_url}"
    if form == "environment":
        monkeypatch.setenv("GRAPH_AGENT_MODEL", short)
    model: Any = {
        "mapping": mapping,
        "short": short,
        "list": ["no_provider_of_this_name:x", mapping],
        "environment": "openai:other",
        "variable": {"model": "openai:qwen3", "base_url": "${MY_URL}"},
    }[form]

    got = await answer(written(tmp_path, model))

    assert (got, sent(stub)) == ("Hi.", [("qwen3", "Bearer not-needed", None)])


@pytest.mark.parametrize("short", [True, False])
async def test_a_fallback_model_has_its_own_address(tmp_path: Path, openai_stub: StubFactory, short: bool) -> None:
    main, spare = openai_stub(Failure(503, "Down.")), openai_stub("Hi.")
    other = {"model": "openai:spare", "base_url": spare.base_url, "api_key_env": "MY_KEY"}
    fallback = f"openai:spare@{spare.base_url}" if short else other
    config = {"fallback_models": [fallback], "model_retries": 0}
    file = written(tmp_path, {"model": "openai:main", "base_url": main.base_url}, config=config)

    got = await answer(file)

    key = "Bearer not-needed" if short else "Bearer key-of-the-server"
    assert (got, sent(main), sent(spare)) == (
        "Hi.",
        [("main", "Bearer not-needed", None)],
        [("spare", key, None)],
    )


async def test_a_run_gives_no_address(tmp_path: Path, openai_stub: StubFactory) -> None:
    own, other = openai_stub("Hi."), openai_stub("No.")
    file = written(tmp_path, {"model": "openai:main", "base_url": own.base_url})

    with pytest.raises(ConfigError, match="only an agent's file and the command line may give"):
        await answer(file, model=f"openai:x@{other.base_url}")

    assert other.requests == []


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"base_url": "http://h/v1"}, "the field 'model' is missing"),
        ({"model": "openai:x", "base_ur": "http://h/v1"}, "unknown field 'base_ur'.*Did you mean 'base_url'"),
        ({"model": "openai:x", "base_url": "h:80/v1"}, "is no http or https address; write for example 'http://local"),
        ({"model": "openai:x", "base_url": "http://me:pw@h/v1"}, "a password does not belong in the address"),
        ({"model": "openai:x", "headers": {"Authorization": "Bearer abcdefgh"}}, "is a secret, which does not belong"),
        ({"model": "openai:x", "api_key": "sk-abcdefgh"}, "unknown field 'api_key'.*api_key_env"),
    ],
)
@pytest.mark.parametrize("key", ["model", "fallback_models"])
def test_a_wrong_endpoint_is_refused_with_its_fix(tmp_path: Path, model: Any, message: str, key: str) -> None:
    file = written(tmp_path, model) if key == "model" else written(tmp_path, "openai:x", config={key: [model]})

    with pytest.raises(ConfigError, match=message) as refused:
        load_spec(file)

    assert ("abcdefgh" in str(refused.value), "pw" in str(refused.value)) == (False, False)


@pytest.mark.parametrize("model", [[], ["openai:x", 3], 3, ""])
def test_a_value_that_is_no_model_is_refused(tmp_path: Path, model: Any) -> None:
    with pytest.raises(ConfigError, match="name a model as 'provider:name'"):
        load_spec(written(tmp_path, model))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"model": "openai:x", "api_key_env": "NO_SUCH_KEY"}, "set the environment variable NO_SUCH_KEY"),
        ({"model": "openai:x", "base_url": "${NO_SUCH_URL}"}, "NO_SUCH_URL.*write a default"),
        ({"model": "openai:x", "headers": {"Authorization": "Bearer ${NO_SUCH_KEY}"}}, "NO_SUCH_KEY"),
        ("openai:x@http://", "with an address: base_url.*is no http or https address"),
        ({"model": "gemini:x", "base_url": "http://127.0.0.1:1"}, "Did you mean 'google_genai'"),
    ],
)
async def test_a_missing_variable_is_named(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await answer(written(tmp_path, model))


async def test_other_providers_take_an_address_too(
    tmp_path: Path, openai_stub: StubFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-anthropic")
    stub = openai_stub(Failure(400, "Enough."))
    address = stub.base_url.removesuffix("/v1")
    headers = {"X-Team": "t"}
    model = {"model": "anthropic:claude-x", "base_url": address, "headers": headers, "api_key_env": "MY_KEY"}

    built: Any = resolve_model(load_spec(written(tmp_path, model)).model)

    assert (built.anthropic_api_url, built.anthropic_api_key.get_secret_value(), built.default_headers) == (
        address,
        "key-of-the-server",
        headers,
    )


@pytest.mark.parametrize(
    ("name", "base_url", "uses"),
    [
        ("gpt-5.6", None, True),
        ("gpt-5.6-luna", None, True),
        ("gpt-5.10", None, True),
        ("gpt-6", None, True),
        ("gpt-6.1-mini-2027-01-01", "https://api.openai.com/v1", True),
        ("gpt-5.5", None, False),
        ("gpt-5-2025-08-07", None, False),
        ("gpt-4o", None, False),
        ("gpt-oss-120b", None, False),
        ("gpt-5.6", "http://127.0.0.1:1/v1", False),
    ],
)
def test_new_models_of_openai_use_the_responses_api(name: str, base_url: str | None, uses: bool) -> None:
    built: Any = resolve_model(ModelEndpoint(model=f"openai:{name}", base_url=base_url))

    assert bool(built.use_responses_api) is uses
