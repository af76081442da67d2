"""Converts texts, images and files of requests to LangChain content blocks."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Sequence
from mimetypes import MimeTypes
from typing import Any

from graph_agent.interfaces.server.problems import InvalidRequestError

_MIME_TYPES = MimeTypes()  # reads the system's files at import, not during a request


DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)
"""Pattern of a `data:` URL with base64, with the groups media type and data."""


def simplify_blocks(blocks: Sequence[dict[str, Any]]) -> str | list[Any]:
    """Return the text if the blocks are a single text block; otherwise the blocks as a list."""
    return str(blocks[0]["text"]) if len(blocks) == 1 and blocks[0]["type"] == "text" else list(blocks)


def image_at(url: str) -> dict[str, Any]:
    """Return an image as a LangChain content block, from an http(s) URL or a `data:` URL.

    An http(s) URL is not fetched.

    Raises `InvalidRequestError` for any other URL, or invalid base64.
    """
    found = DATA_URL.fullmatch(url)
    return image(mime_type=found[1], base64=found[2]) if found else image(url=url)


def image(*, url: str | None = None, mime_type: str = "", base64: str = "") -> dict[str, Any]:
    """Return an image as a LangChain content block, from an http(s) URL, which is not fetched, or else from base64.

    Raises `InvalidRequestError` for any other URL, or invalid base64. With `url`, the other arguments are not used.
    """
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequestError("An image is given by an http(s) address, or by its bytes in base64.")
        return {"type": "image", "url": url}
    _check_base64(base64, "An image's")
    return {"type": "image", "base64": base64, "mime_type": mime_type}


def document_block(*, mime_type: str, base64: str, name: str | None = None) -> dict[str, Any]:
    """Return a document, e.g. a PDF, as a LangChain content block with a file name, which some providers require.

    Without a `name`, it is `document` with the extension of the media type. Raises `InvalidRequestError` for invalid
    base64.
    """
    _check_base64(base64, "A document's")
    filename = name or f"document{_MIME_TYPES.guess_extension(mime_type) or ''}"
    return {"type": "file", "base64": base64, "mime_type": mime_type, "filename": filename}


def media_type_of(name: str | None) -> str | None:
    """Return the media type that the extension of a file's name indicates; None if there is no name, or it indicates
    none.
    """
    return _MIME_TYPES.guess_type(name)[0] if name else None


def _check_base64(data: str, kind: str) -> None:
    """Raise `InvalidRequestError` if `data` is not valid base64; `kind` is the beginning of the message."""
    try:
        b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"{kind} data are no valid base64.", "messages") from None
