"""Interprets the error messages of model servers: the kind of error, and the context window that a message names.

The source of each wording is the server or package that sends it. A status alone does not separate these errors: a
quota and a rate limit are both 429, a wrong key is 400 at some providers, and most servers report an overlong request
by words only. Every repetition in the patterns is bounded, so that a search in a long text stays cheap.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from graph_agent.base.model_error_text import ModelErrorKind

_TOOLS = r"(?<!parallel )\b(?:tools|tool[ _-]?(?:use|usage|call(?:s|ing)?)|functions?[ _-]?call(?:s|ing)?|functions)\b"
_QUOTE = r"[`'\"]?"

TOOLS_REJECTED = {
    "Ollama, DeepSeek, Bedrock, xAI": (
        rf"(?:does not|doesn['’]t|do not|don['’]t) support (?:the )?(?:use of )?{_QUOTE}{_TOOLS}"
    ),
    "Groq, OpenAI, Azure, DeepInfra, Gemini": (
        rf"{_TOOLS}{_QUOTE} (?:is |are )?(?:not supported|unsupported|not enabled|not available)"
    ),
    "OpenRouter": r"endpoints? found that supports? tool use",
    "vLLM": r"requires --enable-auto-tool-choice|requires --tool-call-parser",
    "llama.cpp": r"tools param requires --jinja|tools param is not fully supported|unsupported param: tools\b",
    "OpenAI and compatible servers": (
        r"(?:unsupported|unknown|unrecognized) (?:request )?(?:parameter|argument)(?: supplied)?: "
        rf"{_QUOTE}tools(?![\w\[.])"
    ),
    "LiteLLM": r"does not support parameters: \[[^\]]{0,200}'tools'",
    "servers that validate against a schema": (
        r"extra_forbidden.{1,20}\['body', 'tools'\]|property 'tools' is unsupported"
    ),
    "clients without support for tools": r"unexpected keyword argument '(?:tools|tool_choice)'",
}
"""Who sends the wording → pattern of an error by which a server refuses a request because it offers tools."""

CONTENT_FILTER = {
    "OpenAI, Azure, many compatible servers": (
        r"content[_ ]filter|content[_ ](?:management )?policy|responsibleaipolicyviolation"
    ),
    "OpenAI": r"flagged as potentially violating|rejected by (?:the|our) safety system|\binvalid_prompt\b",
    "OpenRouter": r"(?:input|prompt) was flagged",
    "Anthropic": r"content filtering policy",
    "Qwen": r"data_?inspection_?failed|inappropriate content",
    "DeepSeek": r"content exists risk",
    "Moonshot": r"considered high risk",
    "xAI": r"violates (?:our |the )?usage (?:guidelines|policies)",
    "MiniMax": r"(?:input|output) new_sensitive",
    "Gemini": r"blocked.{0,40}PROHIBITED_CONTENT",
    "Z.ai, Qwen (Chinese)": r"敏感|不合规",
}
"""Sender → pattern of an error by which the provider refuses a request because of its content."""

QUOTA = {
    "OpenAI": (
        r"insufficient_quota|billing_hard_limit|billing_not_active|credit_balance_exhausted"
        r"|(?:organization|project)_(?:spend|usage)_limit_exceeded"
    ),
    "DeepSeek, MiniMax, Z.ai, SiliconFlow": (
        r"insufficient[_ ](?:account[_ ])?(?:balance|credits?|funds|quota)|balance (?:is )?not enough|余额|欠费"
    ),
    "Anthropic": (
        r"credit balance is too low|\bbilling_error\b|reached your (?:\w{1,20} ){0,3}(?:usage|spend(?:ing)?) limits?"
    ),
    "OpenRouter": r"requires more credits|payment required",
    "Moonshot": r"exceeded_current_quota|account (?:\w{1,30} )?is (?:suspended|not active|inactive)",
    "Gemini": r"per[ _-]?project[ _-]?per[ _-]?day|PerDay|enable billing|location is not supported",
    "Groq, OpenAI, Bedrock": r"\b(?:requests|tokens|neurons) per day\b|\b[RT]PD\b",
    "OpenRouter, Cohere": r"per-(?:day|month)\b|limited to \d{1,9} api calls ?(?:/|per) ?month|(?:trial|monthly) limit",
    "Cerebras, Mistral, Perplexity": (
        r"\b(?:daily|weekly|monthly) (?:[\w-]{1,20} ){0,3}(?:limit|quota|allocation|budget|cap)\b"
        r"|(?:limit|quota)s? (?:per|for) (?:this |the |a )?(?:day|week|month)\b"
    ),
    "Ollama": r"reached your (?:\w{1,20} ){0,2}usage limit|usage limit (?:has been )?(?:reached|exceeded)",
    "Bedrock": r"servicequotaexceeded|too many tokens per day",
    "Qwen": r"\barrearage\b|free (?:tier|allocated quota).{0,60}(?:exhausted|exceeded)|good standing|allocationquota",
    "LiteLLM": r"budget has been exceeded|budget_?exceeded|\bexceeded (?:your )?budget",
    "Fireworks, Together, Hugging Face": (
        r"(?:spending|spend|credit) limit (?:has been )?(?:reached|exceeded)"
        r"|(?:exceeded|exhausted|used up) your (?:\w{1,20} ){0,4}credits|out of credits|credits? (?:\w{1,10} ){0,2}"
        r"(?:exhausted|depleted)"
    ),
    "Volcengine": r"\baccountoverdue|quota (?:has been |is )?exhausted|quotaexhausted",
}
"""Sender → pattern of an error of an account that has nothing left to spend for hours or more.

A retry does not help.
"""

CONTEXT_OVERFLOW = {
    "OpenAI, DeepSeek, OpenRouter, vLLM, NIM, Mistral, xAI, Fireworks": (
        r"maximum (?:context|prompt|sequence|supported sequence|allowed input) length|context_length_exceeded"
    ),
    "OpenAI Responses, Anthropic, llama.cpp, Cloudflare, SGLang": (
        r"exceed(?:s|ed|ing)? "
        r"(?:(?:the|this|its|available|maximum|max|model(?:['’]?s)?|allowed|supported) ){0,4}context"
    ),
    "LM Studio, MiniMax, LiteLLM, Azure": (
        r"context[_ ]?(?:window|length|limit|size)(?: of (?:the|this) model)?[_ ]?(?:has been |is |was )?exceed"
    ),
    "Anthropic, Bedrock, Fireworks, Ollama, AI21, OpenAI (one request over the limit of a minute)": (
        r"\b(?:prompt|inputs?|request|request body|conversation|message) (?:is |are )?too (?:long|large)\b"
    ),
    "Anthropic": r"request_too_large|usage is required for long context",
    "Groq, Cerebras, OpenAI, Azure": (
        r"reduce "
        r"(?:the length of (?:the |your )?(?:messages|prompt|input|either)|your (?:message|prompt|input)|prompt\b)"
    ),
    "Cohere": r"too many tokens:",
    "Gemini, Vertex, Copilot": r"token count .{0,40}(?:exceeds|but (?:the )?model only)|model_max_prompt_tokens",
    "Bedrock": r"too many input tokens|input tokens? exceed|number of input tokens exceeds",
    "llama.cpp": r"exceed_context_size|larger than (?:the )?(?:available )?context|context shift is disabled",
    "vLLM": (
        r"than the maximum model length|exceeds the max_model_len|context length is only \d"
        r"|max_tokens must be at least 1, got -"
    ),
    "SGLang, Together": r"longer than the model['’]?s (?:maximum )?context length",
    "SiliconFlow": r"must be less than max_seq_len",
    "TGI, Together": r"tokens \+ .{0,40} must be <=|`?inputs`? must have less than",
    "LM Studio": (
        r"greater than the context length|context length of only|reached context length"
        r"|(?:context the overflows|context overflow)"
    ),
    "Moonshot": r"exceeded model token limit",
    "Qwen": r"range of input length should be",
    "Z.ai": r"prompt exceeds max|prompt 超长|超过最大长度|超出最大长度|上下文长度超",
    "Cerebras": r"current length is \d{1,12} while limit is",
    "Watsonx": r"input tokens \d{1,12} cannot exceed",
    "Yandex": r"number of input tokens must be no more than",
    "OpenRouter (what the credits allow)": r"prompt tokens limit exceeded",
    "GitHub Models": r"tokens_limit_reached|body too large for",
    "Volcengine": r"exceed(?:s|ed)? (?:the )?max(?:imum)? (?:message|input) (?:tokens|length)",
    "Snowflake": r"max tokens of \d{1,12} exceeded",
    "Baidu, Tencent": r"(?:prompt|input) tokens? too long|input_?too_?long|input length too long|max input characters",
    "others": (
        r"\btoken limit exceeded|exceed(?:s|ed)? the (?:model['’]?s )?token limit|input length \d{1,12} exceeds"
        r"|configured context size|context (?:length|window|size) of \d{3,12} exceeded"
        r"|at most \d{3,12} (?:tokens of context|input tokens|prompt tokens)"
    ),
}
"""Sender → pattern of an error of a request with more tokens than the model reads or the account may send at once."""

AUTH = {
    "OpenAI, xAI, Groq": (
        r"invalid_api_key|(?:invalid|incorrect|wrong|missing|expired|no) api[ _-]?key|missing credentials"
    ),
    "Anthropic": r"authentication_error|invalid x-api-key",
    "Gemini": r"api[ _-]?key.{0,40}(?:not valid|invalid|expired|must be set|missing|required)|unauthenticated",
    "Cohere": r"invalid api token",
    "Bedrock": (
        r"security token (?:\w{1,20} ){0,5}is (?:invalid|expired)|unrecognizedclient|expiredtoken|invalidsignature"
    ),
    "botocore, google-auth": r"unable to locate credentials|default credentials were not found",
}
"""Sender → pattern of an error because the API key is missing, wrong or expired."""

UNKNOWN_MODEL = {
    "OpenAI, Groq, Azure": r"model_not_found|model_decommissioned|deploymentnotfound|no such model",
    "OpenRouter": r"no endpoints found for|not a valid model",
    "Mistral, LM Studio": r"(?:invalid|unknown) model\b|no models? (?:is |are )?loaded",
    "OpenAI, Ollama, DeepSeek, vLLM": r"\bmodel\b.{0,120}(?:(?:does )?not exist|not found|decommissioned)",
    "NIM": r"reached its end of life",
    "Bedrock": r"model identifier is invalid|on-demand throughput isn['’]?t supported",
    "Gemini": r"models?/.{0,80}not found|not supported for generatecontent",
    "Z.ai, Qwen (Chinese)": r"模型不存在",
}
"""Sender → pattern of an error because there is no such model at this address."""

LOADING_WORDS = {
    "llama.cpp": r"loading model",
    "Hugging Face, TGI, Ollama": r"model (?:\S{1,200} )?is (?:currently |still )?(?:loading|being loaded|starting)",
    "vLLM, NIM": r"(?:engine|server|service) is (?:not ready|starting|still starting|loading)",
    "Bedrock": r"modelnotready",
}
"""Sender → pattern of an error of a server that will answer once its model is loaded."""

DAMAGED = {
    "LangChain, of a stream without a token or a reply without choices": (
        r"no generations found in stream|no generation chunks were returned|null value for 'choices'"
    ),
    "LangChain, of a reply with damaged fields": r"validation errors? for (?:AI|Chat)Message",
    "OpenRouter's client, of a reply without choices": r"validation errors? for Unmarshaller",
}
"""Sender → pattern of an error about a reply in a form that the server's API does not define."""

TEMPLATE = {
    "llama.cpp, LM Studio, with status 500": (
        r"raise_exception|\bjinja\b|while executing \w{1,40}expression|for this template"
    ),
    "vLLM, llama.cpp, Ollama": r"roles must alternate|no user query found in messages",
}
"""Sender → pattern of an error by which a model's chat template refuses the request; a retry would fail, too."""

TRANSIENT = {
    "OpenAI, Anthropic, Gemini, many compatible servers": (
        r"\b(?:overloaded|overloaded_error|server_is_overloaded|server_error|internal_server_error|api_error"
        r"|timeout_error|rate_limit_exceeded|rate_limit_error|rate_limit_reached_error)\b"
    ),
    "Gemini, Bedrock": (
        r"\b(?:resource_exhausted|service[_ ]?unavailable(?:exception|error)?|deadline_exceeded|throttling\w{0,20}"
        r"|model(?:stream)?error(?:exception)?|modeltimeout(?:exception)?|internalserver(?:exception|error))\b"
    ),
    "OpenRouter, Mistral, vLLM": r"\bprovider_unavailable\b|capacity exceeded|capacity_exceeded|queue is full",
    "Ollama, whose model's process has ended": r"unexpected eof",
    # Its client drops that connection, and the next attempt opens another.
    "clients with a connection of another event loop": (
        r"(?:bound|attached) to a different (?:event )?loop|event loop is closed"
    ),
}
"""Sender → pattern of an error without an HTTP status after which the same request may succeed later."""

QUOTA_CODES = frozenset({"billing_error", *map(str, (1113, *range(1308, 1312), *range(1313, 1322)))})
"""Codes in an error's body that mean an exhausted quota: Anthropic's type and Z.ai's numbers."""
CODES: dict[str, ModelErrorKind] = {
    # https://docs.z.ai/api-reference/api-code
    "1261": "context_overflow",
    "1301": "content_filter",
    "1302": "transient",
    "1303": "transient",
    "1305": "transient",
    "1312": "transient",
    # Mistral
    "3051": "context_overflow",
    "3505": "transient",
    # Types of Anthropic's and OpenAI's errors, which a stream has without a status.
    "not_found_error": "unknown_model",
    "permission_error": "permission",
    "accessdeniedexception": "permission",
    "resourcenotfoundexception": "unknown_model",
}
"""Code or type in an error's body, in lower case → the kind of error that it means."""

# The sentences of servers that are not listed: a size of the input, a verb of excess, and the limit.
_TOO_LONG = re.compile(
    r"\b(?:prompt|inputs?|context|conversation|sequence|number of (?:input |prompt )?tokens)\b[^.\n]{0,60}"
    r"\b(?:exceed(?:s|ed|ing)?|(?:longer|larger|greater|more) than)\b[^.\n]{0,40}"
    r"\b(?:limit|maximum|max|context|window|length)\b",
    re.IGNORECASE,
)
_OTHER_SIZES = re.compile(
    r"rate.limit|per.(?:minute|second)|quota|bytes|pixel|image|\b\d{1,9} ?[km]b\b|characters", re.IGNORECASE
)
_NUMBER = r"\(?\[?([\d,]{3,12})"
_WINDOWS = {
    "OpenAI, DeepSeek, OpenRouter, vLLM, NIM, xAI, SGLang, Fireworks": (
        rf"maximum (?:context|prompt|supported sequence|allowed input) length(?: (?:is|of)(?: just)?|:)? {_NUMBER}"
    ),
    "Mistral": rf"{_NUMBER} maximum context length",
    "Anthropic": rf"tokens > {_NUMBER} maximum|context limit: \d{{1,12}} \+ \d{{1,12}} > {_NUMBER}",
    "Gemini, Vertex": rf"maximum number of tokens allowed {_NUMBER}|only supports up to {_NUMBER}",
    "llama.cpp": rf"context size {_NUMBER} tokens|\bn_ctx['\"]?: ?{_NUMBER}",
    "vLLM": rf"maximum model length of {_NUMBER}|max_model_len(?: of)? {_NUMBER}|context length is only {_NUMBER}",
    "SGLang, Together": rf"context length {_NUMBER} tokens",
    "LM Studio": rf"context length of (?:only )?{_NUMBER}",
    "TGI, Together": rf"must be <= {_NUMBER}|must have less than {_NUMBER}",
    "Moonshot": rf"model token limit: {_NUMBER}",
    "Qwen": rf"input length should be \[\d{{1,6}}, ?{_NUMBER}",
    "Cerebras": rf"while limit is {_NUMBER}",
    "Copilot": rf"exceeds the limit of {_NUMBER}",
    "SiliconFlow": rf"max_seq_len {_NUMBER}",
    "Bedrock": rf"max input tokens: {_NUMBER}",
    "Cloudflare": rf"context window limit {_NUMBER}",
    "Cohere, Watsonx, Yandex": rf"tokens limit {_NUMBER}|prompt cannot exceed {_NUMBER}|no more than {_NUMBER}",
    "GitHub Models": rf"max size: {_NUMBER} tokens",
    "OpenAI": rf"configured limit of {_NUMBER} tokens",
    "OpenAI, Groq (tokens of one minute)": rf"tokens per min\w{{0,4}} \(TPM\): limit {_NUMBER}",
    "others": rf"context size is {_NUMBER}|at most {_NUMBER} (?:tokens of context|input tokens|prompt tokens)",
}
_LIMIT = re.compile(r"\b(?:exceed(?:s|ed)?|than)\b(?! by)[^\d.\n]{0,50}?\(?([\d,]{3,12})", re.IGNORECASE)
"""Finds the limit in an error message of a server that `_WINDOWS` does not list."""


def _compiled(wordings: Mapping[str, str]) -> re.Pattern[str]:
    """Return one pattern, without regard to case, that finds any of the wordings."""
    return re.compile("|".join(wordings.values()), re.IGNORECASE)


_PATTERNS = {
    "tools_rejected": _compiled(TOOLS_REJECTED),
    "content_filter": _compiled(CONTENT_FILTER),
    "quota": _compiled(QUOTA),
    "context_overflow": _compiled(CONTEXT_OVERFLOW),
    "auth": _compiled(AUTH),
    "unknown_model": _compiled(UNKNOWN_MODEL),
    "loading": _compiled(LOADING_WORDS),
    "damaged": _compiled(DAMAGED),
    "template": _compiled(TEMPLATE),
    "transient": _compiled(TRANSIENT),
    "window": _compiled(_WINDOWS),
}
Words = Literal[
    "tools_rejected",
    "content_filter",
    "quota",
    "context_overflow",
    "auth",
    "unknown_model",
    "loading",
    "damaged",
    "template",
    "transient",
]

_NOT_ABOUT_TOOLS = frozenset({401, 402, 403, 408, 413, 425, 429})
"""HTTP statuses of errors that never mean refused tools."""
_ABOUT_MODELS = frozenset({None, 400, 404, 410, 422})
"""HTTP statuses of errors that may mean an unknown model; None is an error without a status."""
_CURRENT_QUOTA = re.compile(r"exceeded your current quota", re.IGNORECASE)
_MINUTE = re.compile(
    r"per[ _-]?min|\b[RT]PM\b|(?:retry|try again) (?:in|after)|retrydelay|rate[ _]limit", re.IGNORECASE
)
_LEAST_WINDOW, _MOST_WINDOW = 256, 100_000_000


def has_words(words: Words, text: str) -> bool:
    """Whether an error's text contains a known wording of one kind of error, in upper or lower case."""
    return _PATTERNS[words].search(text) is not None


def is_quota(status: int | None, text: str) -> bool:
    """Whether an error means a quota that is exhausted for longer than a minute, unlike a rate limit that a retry
    outlasts. False for the statuses 404, 422 and from 500, whatever the text.

    Args:
        status: The HTTP status; None for an error without one.
        text: The error's text and body.
    """
    if status in {404, 422} or (status is not None and status >= 500):
        return False
    # OpenAI and Gemini share this sentence; Gemini sends it for the limit of a minute, too, and then names a delay.
    spent = _CURRENT_QUOTA.search(text) is not None and _MINUTE.search(text) is None
    return spent or has_words("quota", text)


def classify_words(status: int | None, text: str, codes: Collection[str] = ()) -> ModelErrorKind | None:
    """Return the kind of an error if its words are more specific than its HTTP status; None otherwise.

    Args:
        status: The HTTP status; None for an error without one, such as one inside a stream.
        text: The error's text and its body.
        codes: The codes and types in the error's body, in lower case.
    """
    # The key is wrong, whatever the words are.
    if status == 401:
        return None
    if status not in _NOT_ABOUT_TOOLS and has_words("tools_rejected", text):
        return "tools_rejected"
    # Groq, with status 400: the model's reply held no valid call, and another one may.
    if "tool_use_failed" in text:
        return "transient"
    if has_words("content_filter", text):
        return "content_filter"
    if is_quota(status, text):
        return "permission"
    if QUOTA_CODES.intersection(codes):
        return "permission"
    for code in codes:
        if code in CODES:
            return CODES[code]
    if has_words("context_overflow", text) or _is_too_long(status, text):
        return "context_overflow"
    if status in {None, 400, 403} and has_words("auth", text):
        return "auth"
    if status in _ABOUT_MODELS and has_words("unknown_model", text):
        return "unknown_model"
    if has_words("template", text):
        return "other"
    if has_words("loading", text) and (status is None or status in {429} or status >= 500):
        return "transient"
    return None


def _is_too_long(status: int | None, text: str) -> bool:
    """Whether an error of a server that is not listed means too many input tokens, by its words.

    One sentence must have a size of the input, a verb of excess and a limit. False if the text is about a rate, a quota
    or a size in bytes, pixels or characters, and for other statuses than None, 400, 413, 422 and 500.
    """
    in_question = status is None or status in {400, 413, 422, 500}
    return in_question and _TOO_LONG.search(text) is not None and _OTHER_SIZES.search(text) is None


def window_of(text: str) -> int | None:
    """Return the context window in tokens that an error message names; None if it names no number from 256 to 10⁸."""
    for pattern in (_PATTERNS["window"], _LIMIT):
        for found in pattern.finditer(text):
            digits = (found[found.lastindex or 0] or "").replace(",", "")
            tokens = int(digits) if digits.isdecimal() else 0
            if _LEAST_WINDOW <= tokens <= _MOST_WINDOW:
                return tokens
    return None
