"""Whether a model can be offered tools: told offline beforehand, and from its provider's refusal afterwards."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.language_models import BaseChatModel

from graph_agent.models.errors import classify_model_error
from graph_agent.models.families import lacks_tools

ToolCalling = Literal["native", "text", "wave"]

_WRAPPERS = 10


def choose_tool_calling(
    model: Any,
    configured: Literal["auto", "native", "text", "wave"],
    unknown_default: ToolCalling = "native",
) -> ToolCalling:
    """Choose how a model is offered tools, without asking anyone.

    Args:
        model: a chat model, bare or wrapped (`bind`, `with_config`, `with_retry`, `with_fallbacks`).
        configured: what the configuration says; anything but `auto` is the answer.
        unknown_default: the answer for a model that can bind tools and says nothing of itself.

    Returns:
        Under `auto`: what the model's profile says of `tool_calling`; where it says nothing, `text` for a model that
        cannot bind tools or whose name is that of a family without tool calling, else `unknown_default`.
    """
    if configured != "auto":
        return configured
    bare = _unwrap(model)
    known = (getattr(bare, "profile", None) or {}).get("tool_calling")
    if known is not None:
        return "native" if known else "text"
    return unknown_default if _can_bind_tools(bare) and not lacks_tools(bare) else "text"


def rejects_tools(error: BaseException) -> bool:
    """Say whether a provider's error means that this model, or the server it runs on, takes no tools.

    Never true for a refused key, a rate limit, a request that is too long, or an error of this package.
    """
    return classify_model_error(error) == "tools_rejected"


def _unwrap(model: Any) -> Any:
    """Take off what LangChain wraps around a model; of a model with fallbacks, the first counts."""
    for _ in range(_WRAPPERS):
        if isinstance(model, BaseChatModel):
            break
        inner = getattr(model, "bound", None) or getattr(model, "runnable", None)
        if inner is None:
            break
        model = inner
    return model


def _can_bind_tools(model: Any) -> bool:
    bind_tools = getattr(type(model), "bind_tools", None)
    # The base class has the method, and it raises NotImplementedError.
    return bind_tools is not None and bind_tools is not BaseChatModel.bind_tools
