"""How model providers word their refusals: one pattern for each kind that a status alone does not tell.

Every alternative is a wording that some provider sends; each repetition is bounded, so that a long text stays cheap.
"""

from __future__ import annotations

import re


def _any_of(*wordings: str) -> re.Pattern[str]:
    return re.compile("|".join(wordings), re.IGNORECASE)


_TOOLS = r"(?<!parallel )\b(?:tools|tool[ _-]?(?:use|usage|call(?:s|ing)?)|functions?[ _-]?call(?:s|ing)?|functions)\b"
_QUOTE = r"[`'\"]?"

TOOLS_REJECTED = _any_of(
    # Ollama, DeepSeek, Bedrock, xAI
    rf"(?:does not|doesn['’]t|do not|don['’]t) support (?:the )?(?:use of )?{_QUOTE}{_TOOLS}",
    # Groq, OpenAI, Azure, DeepInfra, Gemini
    rf"{_TOOLS}{_QUOTE} (?:is |are )?(?:not supported|unsupported|not enabled|not available)",
    # OpenRouter
    r"endpoints? found that supports? tool use",
    # vLLM
    r"requires --enable-auto-tool-choice|requires --tool-call-parser",
    # llama.cpp
    r"tools param requires --jinja|tools param is not fully supported|unsupported param: tools\b",
    # OpenAI and what imitates it
    r"(?:unsupported|unknown|unrecognized) (?:request )?(?:parameter|argument)(?: supplied)?: "
    rf"{_QUOTE}tools(?![\w\[.])",
    # LiteLLM
    r"does not support parameters: \[[^\]]{0,200}'tools'",
    # Servers that check the request against a schema
    r"extra_forbidden.{1,20}\['body', 'tools'\]|property 'tools' is unsupported",
    # A client that was never taught to send them
    r"unexpected keyword argument '(?:tools|tool_choice)'",
)

CONTEXT_OVERFLOW = _any_of(
    r"context_length_exceeded|exceed_context_size|maximum (?:context|prompt) length|than the maximum model length",
    r"exceeds? (?:the |this )?(?:available |maximum |model'?s )*context|context (?:window|length|limit|size) exceeded",
    r"(?:prompt|input|request) (?:is )?too (?:long|large)|too many tokens:|must be less than max_seq_len",
    r"input token count .{0,40}exceeds|reduce the length of the (?:messages|prompt|input)|tokens \+ .{0,40} must be <=",
)

CONTENT_FILTER = _any_of(
    r"content[_ ]filter|content[_ ](?:management )?policy|responsibleaipolicyviolation|data_inspection_failed",
    r"(?:input|prompt) was flagged|rejected by (?:the|our) safety system",
)

QUOTA = _any_of(
    r"insufficient_quota|insufficient[_ ](?:balance|credits?|funds)|billing_hard_limit",
    r"billing_not_active|credit balance is too low|payment required",
)

AUTH = _any_of(
    r"invalid_api_key|(?:invalid|incorrect|missing|expired|no) api[ _-]?key|missing credentials|authentication_error",
    r"api[ _-]?key.{0,40}(?:not valid|invalid|expired|must be set|missing|required)|unauthenticated",
)

UNKNOWN_MODEL = _any_of(
    r"model_not_found|model_decommissioned|deploymentnotfound|no endpoints found for|not a valid model|no such model",
    r"(?:invalid|unknown) model\b|\bmodel\b.{0,120}(?:does not exist|not found|decommissioned)",
)

TRANSIENT = _any_of(
    r"\b(?:overloaded|overloaded_error|server_error|internal_server_error|rate_limit_exceeded|rate_limit_error)\b",
    r"\b(?:resource_exhausted|service[_ ]?unavailable|deadline_exceeded|throttling\w{0,20})\b",
    # A client that kept a connection of another event loop; it drops that one, and the next attempt opens its own.
    r"(?:bound|attached) to a different (?:event )?loop|event loop is closed",
)
