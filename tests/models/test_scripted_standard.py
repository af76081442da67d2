"""LangChain's standard unit tests for chat models; `ChatModelUnitTests` holds all test methods and assertions."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_tests.unit_tests import ChatModelUnitTests

from graph_agent import ScriptedChatModel


class TestScriptedChatModelStandard(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ScriptedChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"responses": ["hello", "world"]}
