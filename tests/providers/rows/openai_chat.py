"""Providers and servers of OpenAI's chat completions."""

from __future__ import annotations

from tests.providers.protocols.openai_chat import ChatShape, OpenAIChat
from tests.providers.row import Row
from tests.providers.rows.building import by_openai, openai_environment
from tests.providers.rules import openai

CHAT = OpenAIChat()

ROWS = (
    Row(
        name="openai",
        protocol=CHAT,
        build=by_openai("gpt-4o"),
        package="langchain-openai",
        model="gpt-4o",
        rules=openai.BASIC,
        faults=openai.FAULTS,
        shape=ChatShape(usage_unasked=False),
        answers=("openai-18", "openai-19", "openai-20"),
        limits={
            "reasoning": "Chat completions show no reasoning.",
        },
        host="api.openai.com",
        environment=openai_environment,
        in_make_test=True,
    ),
)
