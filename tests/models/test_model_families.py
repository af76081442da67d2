"""Model families without tool calling, recognised by name."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from graph_agent import LoopConfig
from graph_agent.models.capabilities import choose_tool_calling, name_lacks_tools
from graph_agent.models.structured import StructuredPlanner

WITHOUT_TOOLS = """
phi phi:latest phi-2 phi-2.Q4_K_M.gguf phi3 phi3:mini phi3.5 phi3:14b-medium-128k-instruct-q4_0 phi4 phi4:14b
phi-4-reasoning
microsoft/Phi-3-mini-4k-instruct Phi-3.5-mini-instruct microsoft/phi-4
gemma gemma:2b gemma:7b-instruct gemma-7b gemma2 gemma2:9b codegemma:7b google/gemma-2b-it google/gemma-2-9b-it
google/gemma-1.1-7b-it lmstudio-community/gemma-2-2b-it-GGUF
tinyllama tinyllama:1.1b-chat TinyLlama/TinyLlama-1.1B-Chat-v1.0 ollama_chat/tinyllama
smollm smollm:135m smollm:360m-instruct HuggingFaceTB/SmolLM-1.7B-Instruct
smollm2 smollm2:latest smollm2:135m smollm2:360m-instruct-q4_0 HuggingFaceTB/SmolLM2-360M-Instruct
llama2 llama2:7b llama2-uncensored llama-7b llama3 llama3:8b llama3:70b llama-3-8b-instruct llama3-chatqa
ollama/llama2
meta-llama/Llama-2-7b-chat-hf meta-llama/Meta-Llama-3-8B-Instruct TheBloke/Llama-2-7B-Chat-GGUF
codellama:7b-instruct
meta.llama2-13b-chat-v1
mistral:7b-instruct-v0.2-q4_0 mistralai/Mistral-7B-Instruct-v0.1 mistral-7b-instruct-v0.2.Q4_K_M.gguf
dolphin-mistral
qwen qwen:7b qwen:0.5b Qwen/Qwen1.5-7B-Chat Qwen/Qwen-7B-Chat
vicuna:13b zephyr orca-mini wizardlm2 openchat falcon falcon:7b tiiuae/falcon-7b-instruct stablelm2 starcoder2:3b
gpt2
google/flan-t5-base EleutherAI/gpt-neo-1.3B deepseek-coder:6.7b llava:13b moondream
gpt-3.5-turbo-instruct gpt-3.5-turbo-instruct-0914 text-davinci-003 davinci-002 babbage-002
registry.ollama.ai/library/phi3:latest hf.co/bartowski/Phi-3.5-mini-instruct-GGUF:Q4_K_M PHI3
/models/gemma-2b-it.gguf
"""

NOT_KNOWN_TO_LACK_THEM = """
phi4-mini phi4-mini:3.8b microsoft/Phi-4-mini-instruct Phi-4-multimodal-instruct phi-4-mini-instruct.Q4.gguf Phi-5
gemma3 gemma3:4b google/gemma-3-27b-it gemma-3-1b-it gemma3n:e4b gemma-3n-e4b-it gemma4:e2b functiongemma
functiongemma:270m
smollm2:1.7b smollm2:1.7b-instruct-q4_0 smollm3 HuggingFaceTB/SmolLM2-1.7B-Instruct HuggingFaceTB/SmolLM3-3B
llama3.1 llama3.1:8b llama3.2:1b llama3.3 llama-3.3-70b-versatile llama-3-1-8b-instruct llama-3_1-8b llama4:scout
meta-llama/Llama-3.1-8B-Instruct meta-llama/Meta-Llama-3.1-70B-Instruct meta-llama/Llama-3.2-3B-Instruct
meta.llama3-1-8b-instruct-v1:0 meta-llama/Llama-4-Scout-17B llama3-groq-tool-use phi4-tools
mistral mistral:7b mistral:latest mistral-nemo mistral-small mistral-large-latest mistral-small3.2 mixtral:8x7b
ministral-8b
mistralai/Mistral-7B-Instruct-v0.3 NousResearch/Hermes-2-Pro-Llama-3-8B hermes3
qwen2:7b qwen2.5 qwen2.5:7b qwen2.5-coder qwen3:8b qwen/qwen-2.5-72b-instruct qwen-max qwen-plus qwen-turbo
Qwen/QwQ-32B
gpt-3.5-turbo gpt-3.5-turbo-0125 gpt-4 gpt-4o gpt-4o-mini gpt-5 gpt-oss:20b o3-mini claude-sonnet-4-5
gemini-2.5-flash
command-r deepseek-chat deepseek-v3 deepseek-r1:8b granite3.3:8b granite4 nemotron-mini cogito devstral magistral
functionary-small-v2.4 firefunction-v2 falcon3:7b falcon-h1 kimi-k2 glm-4.5 grok-3 adamant-7b yi-large solar-pro
olmo-3
nova-pro codestral stub-model my-model scripted
"""


@pytest.mark.parametrize("name", WITHOUT_TOOLS.split())
def test_a_family_without_tools_is_recognised(name: str) -> None:
    assert name_lacks_tools(name)


@pytest.mark.parametrize("name", [*NOT_KNOWN_TO_LACK_THEM.split(), "", "/"])
def test_other_names_are_not_taken_for_one(name: str) -> None:
    assert not name_lacks_tools(name)


def chat(name: str, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(model=name, api_key=SecretStr("sk-x"), **fields)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (chat("phi3"), "text"),
        (chat("gemma:2b"), "text"),
        (chat("gemma:2b").bind(stop=["x"]), "text"),
        (chat("phi4-mini"), "native"),
        (chat("phi3", profile={"tool_calling": True}), "native"),
        (chat("llama3.1:8b", profile={"tool_calling": False}), "text"),
        (FakeListChatModel(responses=["x"]), "text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_auto_asks_a_family_without_tools_in_text(model: Any, expected: str) -> None:
    assert choose_tool_calling(model, "auto") == expected


def test_configuration_overrides_a_family_without_tools() -> None:
    assert choose_tool_calling(chat("phi3"), "native") == "native"


def test_a_family_without_tools_is_asked_for_structured_plans_in_text() -> None:
    planner = StructuredPlanner(chat("tinyllama"), {"type": "object"}, "make_plan")

    assert planner._method(LoopConfig(structured_output="prompt"), planner.endpoint.rules) == "text"
