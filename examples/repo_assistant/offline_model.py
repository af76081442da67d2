"""Fixed replies in place of language models, so that the example runs on its sample without a key.

The replies fit one request: "Correct the spelling mistake in the sample."
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

OLD = "# Orders\n\nWe recieve orders by mail and send the goods within two days.\n"
NEW = OLD.replace("recieve", "receive")
TASK = f"Correct the spelling.\nOld text:\n{OLD}\nNew text:\n{NEW}"
REPORT = {"summary": "Corrected 'recieve' to 'receive'.", "changed_files": ["orders.md"]}

Reply = str | list[tuple[str, dict[str, Any]]]
"""A text, or calls as name and arguments."""


class FixedReplies(BaseChatModel):
    """A chat model whose n-th reply to an input is fixed, also in another process."""

    replies: list[Reply]

    @property
    def _llm_type(self) -> str:
        return "fixed-replies"

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(tool_calling=True)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model itself: its replies name the tools."""
        return self.bind()

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        # Notices of the framework have the user's role and ids of their own.
        inputs = [
            at
            for at, message in enumerate(messages)
            if isinstance(message, HumanMessage) and not (message.id or "").startswith("do-not-render-")
        ]
        turn = sum(isinstance(message, AIMessage) for message in messages[inputs[-1] :])
        reply = self.replies[min(turn, len(self.replies) - 1)]
        if isinstance(reply, str):
            message = AIMessage(reply)
        else:
            calls = [
                {"name": name, "args": args, "id": f"call_{len(messages)}_{at}"}
                for at, (name, args) in enumerate(reply)
            ]
            message = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def make_assistant() -> FixedReplies:
    """Return the assistant's model."""
    return FixedReplies(
        replies=[
            [("list_files", {}), ("search", {"text": "recieve"})],
            [("read_file", {"path": "orders.md"})],
            [("delegate_to_reviewer", {"task": TASK})],
            [("write_file", {"path": "orders.md", "text": NEW}), ("count_lines", {})],
            json.dumps(REPORT),
        ]
    )


def make_reviewer() -> FixedReplies:
    """Return the reviewer's model."""
    return FixedReplies(replies=["No objections."])
