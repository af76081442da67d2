"""Resolution of model names, and the scripted model of the environment."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from typing import Any

import pytest
from langchain.chat_models.base import _BUILTIN_PROVIDERS
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_openai import ChatOpenAI

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.models.providers import PROVIDER_PACKAGES, unknown_provider
from graph_agent.models.resolve import resolve_model
from graph_agent.models.scripted import mock_model_from_env
from tests.support.agents import says
from tests.support.openai_stub import StubFactory, openai_stub

__all__ = ["openai_stub"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "DEBUG_MOCK_RESPONSES"):
        monkeypatch.delenv(name, raising=False)


def facts(model: Any) -> dict[str, Any]:
    assert isinstance(model, ChatOpenAI)
    return {
        "model": model.model_name,
        "max_retries": model.max_retries,
        "stream_usage": model.stream_usage,
        "url": str(model.root_async_client.base_url),
    }


def test_a_model_is_returned_as_it_is() -> None:
    model = FakeListChatModel(responses=["a"])

    assert resolve_model(model) is model


@pytest.mark.parametrize(
    ("spec", "base_url", "name", "url"),
    [
        ("openai:gpt-4o-mini", None, "gpt-4o-mini", "https://api.openai.com/v1/"),
        ("openai:gpt-4o-mini", "", "gpt-4o-mini", "https://api.openai.com/v1/"),
        ("openai:llama3.1:8b", "http://127.0.0.1:1/v1", "llama3.1:8b", "http://127.0.0.1:1/v1/"),
        (" openai : gpt-4o ", None, "gpt-4o", "https://api.openai.com/v1/"),
    ],
)
def test_openai_by_name(monkeypatch: pytest.MonkeyPatch, spec: str, base_url: str | None, name: str, url: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    if base_url is not None:
        monkeypatch.setenv("OPENAI_BASE_URL", base_url)

    model = resolve_model(spec)

    assert facts(model) == {"model": name, "max_retries": 0, "stream_usage": True, "url": url}


def test_nothing_is_sent_when_a_model_is_named(monkeypatch: pytest.MonkeyPatch, openai_stub: StubFactory) -> None:
    stub = openai_stub()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("OPENAI_BASE_URL", stub.base_url)

    resolve_model("openai:gpt-4o-mini")

    assert stub.requests == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpt-4o", r"did you mean 'openai:gpt-4o'\?"),
        ("", "names no provider"),
        ("openai:", "incomplete"),
        (":gpt-4o", "incomplete"),
        ("openai:gpt-4o", "OPENAI_API_KEY"),
        ("opnai:gpt-4o", "Unknown model provider 'opnai'.*Did you mean 'openai'"),
        ("gpt-4o:foo", "Unknown model provider 'gpt-4o'"),
        ("mymodule:factory", "Unknown model provider 'mymodule'.*module:factory"),
        ("mistralai:mistral-small", "pip install langchain-mistralai"),
        ("azure_openai:x", "'azure_openai:x' cannot be built: Missing credentials"),
        ([], "list of models is empty"),
        (["gpt-4o", "openai:gpt-4o"], r"(?s)None of the models.*openai:gpt-4o'\?.*OPENAI_API_KEY"),
        (3, "got int"),
    ],
)
def test_an_unbuildable_model_reports_the_cause_and_the_fix(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_model(spec)


NAMES = {
    "gemini": "google_genai",
    "google": "google_genai",
    "Google-GenAI": "google_genai",
    "azure": "azure_openai",
    "vertexai": "google_vertexai",
    "vertex": "google_vertexai",
    "aws": "bedrock_converse",
    "claude": "anthropic",
    "grok": "xai",
    "x-ai": "xai",
    "mistral": "mistralai",
    "hf": "huggingface",
    "watsonx": "ibm",
    "nim": "nvidia",
    "pplx": "perplexity",
    "togetherai": "together",
    "antropic": "anthropic",
    "deepseak": "deepseek",
    "opnrouter": "openrouter",
}


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_provider_is_answered_with_the_right_name_and_its_package(name: str) -> None:
    meant = NAMES[name]

    text = unknown_provider(name, "m")

    assert (text.partition("known: ")[0], text.partition(" Did you mean ")[2]) == (
        f"Unknown model provider {name!r} in '{name}:m'; ",
        f"{meant!r}? Write '{meant}:m'; its package is {PROVIDER_PACKAGES[meant]}.",
    )


@pytest.mark.parametrize("name", ["vllm", "lmstudio", "LM-Studio", "llama.cpp", "llama_cpp", "sglang", "cerebras"])
def test_a_server_with_the_api_of_openai_is_answered_with_its_form(name: str) -> None:
    assert "write 'openai:m' with a base URL, such as {model: 'openai:m', base_url: 'http" in unknown_provider(
        name, "m"
    )


def test_the_known_providers_are_those_of_langchain() -> None:
    # Older versions of langchain have fewer, newer ones may have more.
    assert len({*PROVIDER_PACKAGES} & {*_BUILTIN_PROVIDERS}) > 20


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("claude-sonnet-4-5", "anthropic"),
        ("gemini-2.5-pro", "google_genai"),
        ("grok-4", "xai"),
        ("deepseek-chat", "deepseek"),
        ("mistral-large", "mistralai"),
        ("gpt-4o", "openai"),
        ("qwen3", "openai"),
    ],
)
def test_a_model_without_a_provider_is_answered_with_that_of_its_family(model: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}:{model}'"):
        resolve_model(model)


def test_an_address_without_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000/v1")

    with pytest.raises(ConfigError, match="OPENAI_BASE_URL must be an http or https address; got 'localhost:8000/v1'"):
        resolve_model("openai:x")


def test_without_langchain_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_langchain(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "langchain":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_langchain)

    with pytest.raises(ConfigError, match=r"needs the extra 'langchain'.*pip install"):
        resolve_model("anthropic:claude-sonnet-4-5")


def test_of_a_list_the_first_that_can_be_built_is_taken() -> None:
    stand_in = FakeListChatModel(responses=["a"])

    assert resolve_model(["openai:gpt-4o-mini", "gpt-4o", stand_in, "openai:other"]) is stand_in


@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "no-provider", FakeListChatModel(responses=["real"]), []])
async def test_the_environment_replaces_any_model_and_needs_no_key(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", '["a", "b"]')

    first, second = create_graph_agent(model), create_graph_agent(model)

    replies = [(await graph.ainvoke(says("x")))["messages"][-1].text for graph in (first, first, second)]
    assert replies == ["a", "b", "a"]


VERBATIM = [
    r"""["{\"tool_calls\": [{\"id\": \"call_1\", \"name\": \"echo\", \"arguments\": {\"text\": \"hello\"}}]}", """
    r""""No more actions.", "The echo returned: hello"]""",
    r"""["{\"tool_calls\": [{\"id\": \"call_1\", \"name\": \"delegate_to_researcher\", """
    r"""\"arguments\": {\"task\": \"Find quantum info\"}}]}", "No more actions.", """
    r""""Based on the research, quantum computing uses qubits."]""",
    r"""["Hello! How can I help you?"]""",
]


@pytest.mark.parametrize("raw", VERBATIM)
def test_scripts_of_the_environment_play_to_their_end(raw: str) -> None:
    model = mock_model_from_env({"DEBUG_MOCK_RESPONSES": raw})

    assert isinstance(model, ScriptedChatModel)
    replies = [model.invoke("x") for _ in json.loads(raw)]
    model.assert_spent()
    assert replies[-1].text == json.loads(raw)[-1]
    assert [call["id"] for reply in replies for call in reply.tool_calls] == ["call_1"][: len(replies) - 1]


@pytest.mark.parametrize(
    "reply", ['{"name": "echo", "arguments": {"text": "x"}}', '[{"name": "echo", "arguments": {"text": "x"}}]']
)
def test_a_call_in_the_variable_needs_no_text_with_escaped_quotes(reply: str) -> None:
    model = mock_model_from_env({"DEBUG_MOCK_RESPONSES": f'[{reply}, "done"]'})

    assert model is not None
    called, answered = model.invoke("x"), model.invoke("x")
    assert ([(call["name"], call["args"]) for call in called.tool_calls], answered.text) == (
        [("echo", {"text": "x"})],
        "done",
    )


@pytest.mark.parametrize("environ", [{}, {"DEBUG_MOCK_RESPONSES": ""}, {"DEBUG_MOCK_RESPONSES": "  "}])
def test_an_unset_variable_gives_no_model(environ: dict[str, str]) -> None:
    assert mock_model_from_env(environ) is None


def test_a_script_in_a_cycle_begins_again() -> None:
    model = mock_model_from_env({"DEBUG_MOCK_RESPONSES": '{"cycle": ["a", "b"]}'})

    assert model is not None
    assert [model.invoke("x").text for _ in range(3)] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("hello", "is not JSON"),
        ('{"cycle": []}', "holds no replies"),
        ('{"cycle": ["a"], "more": 1}', "must be a JSON array, and this is an object"),
        ('["a"', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('"a"', "must be a JSON array, and this is a string"),
        ('{"a": 1}', "must be a JSON array, and this is an object"),
        ("null", "must be a JSON array, and this is null"),
        ("[]", "holds no replies"),
        ('["a", 1]', "item 2 is a number"),
        ('["a", {"total": 3}]', "Step 2 of the script is of type dict and no call"),
        ("[null]", "item 1 is null"),
        (r'["{\"tool_calls\": [{\"id\": \"x\"}]}"]', "Step 1 of the script has a tool call without a name"),
    ],
    ids=lambda value: value[:30],
)
def test_a_malformed_variable_is_one_clear_error(raw: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        mock_model_from_env({"DEBUG_MOCK_RESPONSES": raw})

    text = str(caught.value)
    assert text.startswith("DEBUG_MOCK_RESPONSES ")
    assert """DEBUG_MOCK_RESPONSES='[{"name": "weather", "arguments": {"city": "Bergen"}}, "It rains."]'""" in text
    assert len(text) < 700


def test_naming_models_loads_no_provider() -> None:
    code = (
        "import sys, graph_agent.models.resolve, graph_agent.models.scripted, graph_agent.models.capabilities;"
        "print({'openai', 'langchain_openai', 'langchain', 'mcp'} & {*sys.modules})"
    )

    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert out.stdout.strip() == "set()"
