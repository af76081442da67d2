"""A few rules in place of a language model, so that the example runs without a key.

"Charge ann 20 and bob 30" makes two calls at once; "refund ann 20" makes one. Any other text is answered at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

_KIND = re.compile(r"\b(charge|refund)\b", re.IGNORECASE)
_PAYMENT = re.compile(r"\b([a-z]+) (\d+)\b", re.IGNORECASE)


class Clerk(BaseChatModel):
    """Makes the payments of the newest text of the user, once, and reports their results."""

    @property
    def _llm_type(self) -> str:
        return "payments-clerk"

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(tool_calling=True)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model itself: its replies name the tools."""
        return self.bind()

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        at = max((at for at, message in enumerate(messages) if isinstance(message, HumanMessage)), default=-1)
        results = [message.text for message in messages[at + 1 :] if isinstance(message, ToolMessage)]
        if results:
            reply = AIMessage("\n".join(results))
        else:
            reply = _calls(messages[at].text, at) if at >= 0 else AIMessage("Whom shall I charge?")
        return ChatResult(generations=[ChatGeneration(message=reply)])


def _calls(text: str, at: int) -> AIMessage:
    kind = _KIND.search(text)
    if kind is None:
        return AIMessage('Write for example "charge ann 20 and bob 30", or "refund ann 20".')
    calls = [
        {
            "id": f"{kind[1].lower()}-{at}-{number}",
            "name": kind[1].lower(),
            "args": {"customer": customer.lower(), "amount": int(amount)},
        }
        for number, (customer, amount) in enumerate(_PAYMENT.findall(text))
    ]
    return AIMessage("", tool_calls=calls)


def make_clerk() -> Clerk:
    """Return the model."""
    return Clerk()
