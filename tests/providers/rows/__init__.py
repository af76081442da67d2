"""The rows of the matrix."""

from __future__ import annotations

from tests.providers.row import Row
from tests.providers.rows import anthropic, bedrock, cohere, google, mistral, ollama, openai_chat, openai_responses

ROWS: tuple[Row, ...] = (
    *openai_chat.ROWS,
    *openai_responses.ROWS,
    *anthropic.ROWS,
    *google.ROWS,
    *bedrock.ROWS,
    *mistral.ROWS,
    *cohere.ROWS,
    *ollama.ROWS,
)
SAMPLE = ("openai", "openai-responses", "anthropic-thinking", "gemini-3")
"""Names of the rows that `make test` runs."""
PAIRED = (
    "openai",
    "openai-responses-unstored",
    "anthropic",
    "anthropic-thinking",
    "gemini-3",
    "gemini (openai-compatible)",
    "vertex",
    "bedrock-thinking",
    "bedrock-mistral",
    "mistral-reasoning",
    "cohere-reasoning",
    "ollama-reasoning",
    "deepseek",
    "groq",
    "xai",
    "cerebras",
    "moonshot-kimi",
    "openrouter",
    "minimax",
    "qwen-dashscope",
    "vllm (Mistral)",
    "llama.cpp (Gemma without tools)",
)
"""One row of each provider, and of each of its APIs and kinds of model whose rules differ."""
