"""LangChain's OpenAI client, with requests whose size the event loop does not notice."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_openai import ChatOpenAI

from graph_agent._compat import cache_block_types

cache_block_types()
_AS_THEY_ARE = ("messages", "tools")


class LeanChatOpenAI(ChatOpenAI):
    """`ChatOpenAI`, whose messages and tools the `openai` package sends as they are.

    The package walks through each argument of a request to rename fields, which LangChain has named already: 0.15 ms of
    the event loop for each message, at every call. It does not walk through `extra_body`, whose fields go before the
    arguments.
    """

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        payload = super()._get_request_payload(input_, stop=stop, **kwargs)
        if "messages" not in payload:
            return payload  # a request of the Responses API
        moved = {name: payload.pop(name) for name in _AS_THEY_ARE if name in payload}
        return {**payload, "messages": [], "extra_body": {**(payload.get("extra_body") or {}), **moved}}
