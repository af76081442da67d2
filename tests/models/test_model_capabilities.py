"""The choice of tool calling, and the detection of a provider's refusal."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain_core.language_models import BaseChatModel, ModelProfile
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from graph_agent import ScriptedChatModel
from graph_agent.errors import ScriptError
from graph_agent.models.capabilities import choose_tool_calling
from graph_agent.models.errors import classify_model_error
from tests.support.openai_stub import Failure, StubFactory, StubReply, error_of, openai_stub

__all__ = ["openai_stub"]


def rejects_tools(error: BaseException) -> bool:
    return classify_model_error(error) == "tools_rejected"


class Plain(BaseChatModel):
    """Cannot bind tools."""

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("hi"))])

    @property
    def _llm_type(self) -> str:
        return "plain"


class Binding(Plain):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=tools, **kwargs)


CAN: ModelProfile = {"tool_calling": True}
CANNOT: ModelProfile = {"tool_calling": False}
SILENT: ModelProfile = {"max_input_tokens": 8192}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ScriptedChatModel([]), "native"),
        (ScriptedChatModel([], profile=CANNOT), "text"),
        (Plain(), "text"),
        (Plain(profile=CAN), "native"),
        (Plain(profile=SILENT), "text"),
        (GenericFakeChatModel(messages=iter([])), "text"),
        (Binding(), "native"),
        (Binding(profile=SILENT), "native"),
        (Binding(profile=CANNOT), "text"),
        (Binding(profile=CANNOT).bind(stop=["x"]), "text"),
        (Binding(profile=CANNOT).with_config(tags=["x"]).with_retry(), "text"),
        (Binding(profile=CANNOT).with_fallbacks([Binding()]), "text"),
        (Plain().with_config(tags=["x"]), "text"),
        (ChatOpenAI(model="gpt-4o-mini", api_key=SecretStr("sk-x")), "native"),
        (ChatOpenAI(model="llama3.1:8b", api_key=SecretStr("sk-x")), "native"),
        (ChatOpenAI(model="gpt-4o-mini", api_key=SecretStr("sk-x"), profile=CANNOT), "text"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_auto_reads_the_profile_then_the_class(model: Any, expected: str) -> None:
    assert choose_tool_calling(model, "auto") == expected


@pytest.mark.parametrize("configured", ["native", "text", "wave"])
def test_the_configured_tool_calling_wins(configured: Literal["native", "text", "wave"]) -> None:
    models = [ScriptedChatModel([]), Plain(), Binding(profile=CANNOT)]

    assert [choose_tool_calling(model, configured) for model in models] == [configured] * 3


TOOL = {"type": "function", "function": {"name": "echo", "parameters": {"type": "object", "properties": {}}}}

REJECTIONS = [
    (400, "registry.ollama.ai/library/gemma3:4b does not support tools"),
    (400, "deepseek-reasoner does not support Function Calling"),
    (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    (404, "No endpoints found that support tool use. To learn more about provider routing, visit: https://…"),
    (500, "tools param requires --jinja flag"),
    (500, "Unsupported param: tools"),
    (400, "`tool calling` is not supported with this model"),
    (405, "deepinfra error: Tool calling is not supported for model: mistralai/Mistral-Small"),
    (400, "tools is not supported in this model. For a list of supported models, refer to https://…"),
    (400, "Unsupported parameter: 'tools' is not supported with this model."),
    (400, "Unrecognized request argument supplied: tools"),
    (400, "Functions are not supported for this API version or this model version."),
    (400, "The model does not support tool use or function calling but tools have been specified"),
    (400, "This model doesn't support tool use in streaming mode."),
    (400, "Function calling is not enabled for models/gemma-3-27b-it"),
    (400, "litellm.UnsupportedParamsError: ollama does not support parameters: ['tools'], for model=x"),
    (422, "[{'type': 'extra_forbidden', 'loc': ['body', 'tools'], 'msg': 'Extra inputs are not permitted'}]"),
]

OTHER_REFUSALS = [
    (401, "This key does not support tools"),
    (403, "Your plan does not support tools"),
    (429, "Rate limit reached: model does not support tools at this rate"),
    (400, "This model's maximum context length is 8192 tokens. Please reduce the length of the messages or functions."),
    (400, "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details."),
    (400, "tool call validation failed: parameters for tool x did not match schema"),
    (400, "Invalid 'tools[0].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."),
    (400, "Unknown parameter: 'tools[0].strict'."),
    (400, "Unsupported parameter: 'parallel_tool_calls' is not supported with this model."),
    (400, "This model does not support parallel tool calls"),
    (404, "No endpoints found that support the provided 'tool_choice' value."),
    (404, "The model `gpt-9` does not exist"),
    (503, "Service unavailable"),
]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(Failure(*refusal), True) for refusal in REJECTIONS] + [(Failure(*refusal), False) for refusal in OTHER_REFUSALS],
    ids=lambda value: value.message[:50] if isinstance(value, Failure) else str(value),
)
async def test_tool_refusals_are_distinguished_from_other_errors(
    openai_stub: StubFactory, failure: Failure, expected: bool
) -> None:
    async with openai_stub(failure).chat_model() as model:
        error = await error_of(model.bind_tools([TOOL]).ainvoke("hi"))

    assert rejects_tools(error) == expected


async def test_a_server_without_tools_still_answers_without_them(openai_stub: StubFactory) -> None:
    def serve(body: dict[str, Any]) -> StubReply:
        return Failure(400, "stub-model does not support tools") if body.get("tools") else "Hello!"

    stub = openai_stub(serve, serve)
    async with stub.chat_model() as model:
        error = await error_of(model.bind_tools([TOOL]).ainvoke("hi"))
        answer = await model.ainvoke("hi")

    assert (rejects_tools(error), answer.text, ["tools" in body for body in stub.bodies]) == (
        True,
        "Hello!",
        [True, False],
    )


def test_refusals_without_a_server() -> None:
    errors: list[BaseException] = [
        NotImplementedError(),
        TypeError("create() got an unexpected keyword argument 'tools'"),
        ValueError("Tools are not supported by this model."),
        ScriptError('Last request: human message "it does not support tools"'),
        ValueError("bad temperature"),
        KeyboardInterrupt("does not support tools"),
    ]

    assert [rejects_tools(error) for error in errors] == [True, True, True, False, False, False]
