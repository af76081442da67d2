"""Chat model classes that take options, tools and tool choices in forms of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import AzureChatOpenAI, ChatOpenAI

from graph_agent.models.wire.clients import bind_tools, choice_of, client_options, client_rules, schema_options

ECHO = {"type": "function", "function": {"name": "echo", "description": "Echo.", "parameters": {"type": "object"}}}
OPTIONS = {
    "temperature": 0.25,
    "max_tokens": 77,
    "top_p": 0.35,
    "stop": ["END"],
    "reasoning_effort": "low",
}


def of(package: str, name: str, **namespace: Any) -> type[BaseChatModel]:
    """A chat model class of another package, whose subclass has another name."""

    class Model(BaseChatModel):
        def _generate(self, *_: Any, **__: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage("Hi."))])

        @property
        def _llm_type(self) -> str:
            return "someone-elses"

    annotations = {field: Any for field, value in namespace.items() if not callable(value)}
    fields = {"__module__": f"{package}.chat_models", "__annotations__": annotations, **namespace}
    parent = type(name, (Model,), fields)
    return type("OurOwn", (parent,), {"__module__": __name__})


def chat_openai(**fields: Any) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o", api_key="k", **fields)  # type: ignore[arg-type]  # pydantic converts the text


@pytest.mark.parametrize(
    ("package", "name", "sent", "unsupported"),
    [
        (
            "langchain_ollama",
            "ChatOllama",
            {
                "options": {"num_ctx": 4096, "temperature": 0.25, "num_predict": 77, "top_p": 0.35, "stop": ["END"]},
                "reasoning": "low",
            },
            (),
        ),
        (
            "langchain_cohere",
            "ChatCohere",
            {"temperature": 0.25, "max_tokens": 77, "p": 0.35, "stop": ["END"], "request_options": {"max_retries": 0}},
            ("reasoning_effort",),
        ),
        (
            "langchain_google_vertexai",
            "ChatVertexAI",
            {"temperature": 0.25, "max_output_tokens": 77, "top_p": 0.35, "stop": ["END"]},
            ("reasoning_effort",),
        ),
        (
            "langchain_huggingface",
            "ChatHuggingFace",
            {
                "temperature": 0.25,
                "max_tokens": 77,
                "top_p": 0.35,
                "stop": ["END"],
                "extra_body": {"reasoning_effort": "low"},
            },
            (),
        ),
        (
            "langchain_perplexity",
            "ChatPerplexity",
            {
                "temperature": 0.25,
                "max_tokens": 77,
                "top_p": 0.35,
                "reasoning_effort": "low",
                "extra_body": {"stop": ["END"]},
            },
            (),
        ),
        ("langchain_openrouter", "ChatOpenRouter", {**OPTIONS, "retries": None}, ()),
        (
            "langchain_aws",
            "ChatBedrockConverse",
            {"temperature": 0.25, "max_tokens": 77, "top_p": 0.35, "stop": ["END"]},
            ("reasoning_effort",),
        ),
        ("somebody", "ChatElse", OPTIONS, ()),
    ],
)
def test_options_are_written_in_the_form_of_a_class_and_its_subclasses(
    package: str, name: str, sent: dict[str, Any], unsupported: tuple[str, ...]
) -> None:
    model = of(package, name, num_ctx=4096)()

    assert client_options(model, OPTIONS) == (sent, unsupported)


def test_gemini_has_another_name_for_the_output_limit() -> None:
    model = ChatGoogleGenerativeAI(model="gemini-2.5-flash", api_key="k")

    assert client_options(model, {"max_tokens": 7, "top_p": 0.5}) == ({"max_output_tokens": 7, "top_p": 0.5}, ())


def test_the_keyword_of_a_class_that_the_user_gave_wins() -> None:
    model = of("langchain_ollama", "ChatOllama")()
    gemini = ChatGoogleGenerativeAI(model="gemini-2.5-flash", api_key="k")

    given = [
        client_options(model, {"options": {"seed": 1}, "temperature": 0.5}).options,
        client_options(gemini, {"max_output_tokens": 9, "max_tokens": 7}).options,
    ]

    assert given == [{"options": {"seed": 1, "temperature": 0.5}}, {"max_output_tokens": 9}]


@pytest.mark.parametrize(("model", "sent"), [("grok-4", False), ("grok-2-1212", True)])
def test_stop_is_not_sent_to_a_model_of_xai_that_reasons(model: str, sent: bool) -> None:
    chat = of("langchain_xai", "ChatXAI", model_name=model, _use_responses_api=no)()

    assert client_options(chat, {"stop": ["END"]}) == (({"stop": ["END"]}, ()) if sent else ({}, ("stop",)))


def no(*_: Any) -> bool:
    return False


def test_the_responses_api_has_no_stop_sequences() -> None:
    options = {"stop": ["END"], "top_p": 0.5}

    found = [client_options(chat_openai(use_responses_api=used), options) for used in (True, False)]

    assert found == [({"top_p": 0.5}, ("stop",)), (options, ())]


@pytest.mark.parametrize(
    ("model", "choices"),
    [
        (chat_openai(), ["none", "required", "echo"]),
        (
            AzureChatOpenAI(azure_endpoint="http://127.0.0.1:1", api_version="1", api_key="k", azure_deployment="d"),  # type: ignore[arg-type]  # pydantic converts the text
            ["none", "required", "echo"],
        ),
        (ChatAnthropic(model="claude-sonnet-4-5", api_key="k"), [{"type": "none"}, "any", "echo"]),  # type: ignore[call-arg,arg-type]  # pydantic's names
        (ChatGoogleGenerativeAI(model="gemini-2.5-flash", api_key="k"), ["none", "any", "echo"]),
        (of("langchain_ollama", "ChatOllama")(), [None, None, None]),
        (of("langchain_cohere", "ChatCohere")(), ["NONE", "REQUIRED", None]),
        (of("somebody", "ChatElse")(), [None, "any", "echo"]),
        (of("somebody", "ChatElse", supports_tool_choice_values=("auto", "any"))(), [None, "any", None]),
        (of("somebody", "ChatElse", supports_tool_choice_values=("auto",))(), [None, None, None]),
    ],
    ids=["openai", "azure", "anthropic", "gemini", "ollama", "cohere", "unknown", "any-only", "auto-only"],
)
def test_each_class_has_its_own_tool_choices(model: BaseChatModel, choices: list[Any]) -> None:
    assert [choice_of(model, wanted) for wanted in ("none", "any", "echo")] == choices


class ToolsOnly(BaseChatModel):
    """Takes LangChain's tools only, and no tool choice that is a name."""

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: str | None = None, **options: Any) -> Any:
        if not all(isinstance(tool, BaseTool) for tool in tools):
            raise ValueError("Unsupported dict type.")
        if tool_choice not in (None, "any"):
            raise KeyError(tool_choice)
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], tool_choice=tool_choice, **options)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Hi."))])

    @property
    def _llm_type(self) -> str:
        return "tools-only"


class Picky(ToolsOnly):
    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        raise ValueError("No tools today.")


@pytest.mark.parametrize(
    ("given", "sent"), [({"tool_choice": "any"}, "any"), ({"tool_choice": "echo"}, None), ({}, None)]
)
def test_a_class_that_refuses_dicts_gets_tools_and_one_that_refuses_a_choice_gets_none(
    given: Mapping[str, Any], sent: str | None
) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    function = {"name": "echo", "description": "Echo.", "parameters": schema}

    bound: Any = bind_tools(ToolsOnly(), [{"type": "function", "function": function}], {"top_p": 1, **given})

    tools = [{"type": "function", "function": function}]
    assert bound.kwargs == {"tools": tools, "tool_choice": sent, "top_p": 1}


def test_a_class_that_takes_no_form_of_tools_raises_its_own_error() -> None:
    with pytest.raises(ValueError, match=r"No tools today\."):
        bind_tools(Picky(), [ECHO], {"tool_choice": "any"})


FORM = {"type": "json_schema", "json_schema": {"name": "r", "schema": {"type": "object"}, "strict": True}}


@pytest.mark.parametrize(
    ("model", "alone", "with_tools"),
    [
        (chat_openai(), {"extra_body": {"response_format": FORM}}, {"extra_body": {"response_format": FORM}}),
        (
            chat_openai(extra_body={"top_k": 3}),
            {"extra_body": {"top_k": 3, "response_format": FORM}},
            {"extra_body": {"top_k": 3, "response_format": FORM}},
        ),
        (chat_openai(use_responses_api=True), {"response_format": FORM}, {"response_format": FORM}),
        (
            of("langchain_cohere", "ChatCohere")(),
            {"response_format": {"type": "json_object", "schema": {"type": "object"}}},
            None,
        ),
        (of("somebody", "ChatElse")(), {"response_format": FORM}, {"response_format": FORM}),
        (of("langchain_aws", "ChatBedrock")(), None, None),
    ],
    ids=["openai", "own-body", "responses", "cohere", "unknown", "none"],
)
def test_each_class_takes_a_schema_in_its_own_keyword(
    model: BaseChatModel, alone: dict[str, Any] | None, with_tools: dict[str, Any] | None
) -> None:
    assert [schema_options(model, FORM, given) for given in ({}, {"tools": [ECHO]})] == [alone, with_tools]


def test_the_nearest_class_of_the_table_decides() -> None:
    parent: Callable[..., Any] = of("langchain_openai", "BaseChatOpenAI")
    child = type("ChatXAI", (parent,), {"__module__": "langchain_xai.chat_models"})  # type: ignore[arg-type]  # a class

    assert (client_rules(child()).options == client_rules(parent()).options, client_rules(child()).schema) == (
        False,
        "extra_body",
    )
