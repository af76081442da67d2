"""Usage of many delegates, and of delegates that have delegates of their own."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphDelegate, LoopConfig, Session, create_graph_agent

_TOKENS = UsageMetadata(input_tokens=3, output_tokens=2, total_tokens=5)


class Delegating(BaseChatModel):
    """Delegates to all at once, then answers."""

    calls: int

    @property
    def _llm_type(self) -> str:
        return "delegating"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        calls = [{"id": f"d{at}", "name": "delegate_to_helper", "args": {"task": f"{at}"}} for at in range(self.calls)]
        is_answer = not calls or isinstance(messages[-1], ToolMessage)
        reply = AIMessage("Done." if is_answer else "", tool_calls=[] if is_answer else calls)
        reply.usage_metadata = _TOKENS
        return ChatResult(generations=[ChatGeneration(message=reply)])


def _agent(levels: int, width: int, **options: Any) -> Any:
    config = LoopConfig(max_delegation_depth=3, finalize="direct", tool_calling="native")
    delegates = [GraphDelegate("helper", "Helps.", _agent(levels - 1, width))] if levels else []
    return create_graph_agent(Delegating(calls=width if levels else 0), delegates=delegates, config=config, **options)


@pytest.mark.parametrize(("levels", "width"), [(1, 64), (3, 3)])
async def test_the_usage_of_nested_delegates_is_the_sum_of_all_their_model_calls(levels: int, width: int) -> None:
    result = await Session(_agent(levels, width, checkpointer=InMemorySaver()), "s1").run("go")

    # Those that delegate ask the model twice, the innermost ones once.
    calls = 2 * sum(width**level for level in range(levels)) + width**levels
    tokens = {"input_tokens": 3 * calls, "output_tokens": 2 * calls, "total_tokens": 5 * calls}
    assert (result.answer, result.usage) == ("Done.", {**tokens, "model_calls": calls})
