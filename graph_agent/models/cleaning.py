"""Messages whose text every provider and every store can take."""

from __future__ import annotations

from typing import TypeVar

from langchain_core.messages import BaseMessage

from graph_agent.text import clean, plain

M = TypeVar("M", bound=BaseMessage)


def cleaned(message: M) -> M:
    """The message with what no UTF-8 can hold replaced; the very same one when there is nothing to replace.

    It is called for each message of each request, so that text in ASCII costs no more than a look.
    """
    content = message.content
    if isinstance(content, str):
        if content.isascii() and "\x00" not in content:
            return message
        safe = clean(content)
        return message if safe == content else message.model_copy(update={"content": safe})
    try:
        plainly = plain(content)
    except ValueError:
        # Too deep to look at; whether the provider takes it is the provider's to say.
        return message
    return message if plainly == content else message.model_copy(update={"content": plainly})
