"""Converts A2A parts: text and images for the model, files and data for programs; reads metadata of delegations."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from a2a.types import Part
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from graph_agent.base._internal.json_bounds import JsonBounds, JsonBoundsError, count_values
from graph_agent.base._internal.text import as_text, clean, decode
from graph_agent.base.types import NO_USAGE, Usage
from graph_agent.base.usage import BUDGET_LEFT, RemainingBudget
from graph_agent.core.extensions.delegation import DEPTH_LEFT, Delegation

MAX_IMAGES = 16
"""Maximum images of one answer for the model; further ones are files."""
_EXACT = "urn:graph-agent:exact-json"
"""Key in a data part's metadata: the data as JSON text, if the part cannot represent one of its integers."""
_MAX_EXACT = 2**53
"""Largest integer up to which a float represents every integer exactly."""


class ConvertedParts(NamedTuple):
    """The content of a list of parts, converted."""

    for_model: str | list[Any]
    """Text, or LangChain content blocks if there are images; empty without content."""
    artifacts: list[dict[str, Any]]
    """Files and data, as plain JSON.

    `{"type": "data", "data"}`, or `{"type": "file", "name", "mime_type"}` with its `base64` or its `url`.
    """
    value: Any = None
    """The data, if the parts are a single data part, with or without its JSON as text; None otherwise."""


def data_part(data: Any) -> Part:
    """Return plain JSON as a data part.

    The protocol sends every number as a float. If that changes the data, the part's metadata also has its JSON text,
    from which `part_data` of this package restores integers. An integer beyond the largest float becomes decimal text
    in the data.
    """
    part = Part(data=ParseDict(_representable(data), Value()))
    # Compared as text: in Python, the integer 1 equals the float 1.0.
    exact = json.dumps(data, sort_keys=True)
    if json.dumps(_received(part), sort_keys=True) != exact:
        part.metadata.update({_EXACT: exact})
    return part


def part_data(part: Part) -> Any:
    """Return the data of a data part, with integral floats as integers.

    Integers beyond 2⁵³ are exact if the sender is an agent of this package; from other senders they are floats.
    """
    data = _received(part)
    text = MessageToDict(part.metadata).get(_EXACT)
    if not isinstance(text, str) or (exact := decode(text)) is None:
        return data
    # The text of a peer counts only if it states the same data.
    same = _received(Part(data=ParseDict(_representable(exact[0]), Value()))) == data
    return exact[0] if same else data


def _representable(value: Any) -> Any:
    """Return a JSON value with integers beyond the largest float as decimal text."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return str(value)
    if isinstance(value, list):
        return [_representable(item) for item in value]
    return {key: _representable(item) for key, item in value.items()} if isinstance(value, dict) else value


def _received(part: Part) -> Any:
    """Return the data of a part as a receiver reads it, with integral floats as integers."""
    return _restore_integers(MessageToDict(part.data))


def _restore_integers(value: Any) -> Any:
    """Convert integral floats up to 2⁵³ in a JSON value to integers."""
    # A2A carries data as protobuf's `Value`, which has floats only.
    if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_EXACT:
        return int(value)
    if isinstance(value, list):
        return [_restore_integers(item) for item in value]
    if isinstance(value, dict):
        return {key: _restore_integers(item) for key, item in value.items()}
    return value


def convert_parts(parts: Iterable[Part]) -> ConvertedParts:
    """Convert parts to content for the model and artifacts for programs.

    Text and text files become text; data becomes JSON text; the first `MAX_IMAGES` images become image blocks; other
    files and addresses become a line that names them. The content is a text or, with images, a text block and the
    images. Data and files, except these images, are also artifacts. If the parts are one data part, alone or with its
    JSON as text, the data is also the `value`.
    """
    parts = list(parts)
    if (value := _only_data(parts)) is not None:
        return ConvertedParts(as_text(value), [{"type": "data", "data": value}], value)
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for part in parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(clean(part.text))
            case "data":
                data = part_data(part)
                kept.append({"type": "data", "data": data})
                texts.append(as_text(data))
            case "raw" if part.media_type.startswith("image/") and len(images) < MAX_IMAGES:
                images.append({"type": "image", "base64": _encoded(part.raw), "mime_type": clean(part.media_type)})
            case "raw" if part.media_type.startswith("text/") or part.media_type == "application/json":
                texts.append(clean(part.raw.decode("utf-8", "replace")))
                kept.append(_file(part, base64=_encoded(part.raw)))
            case "raw":
                texts.append(f"[file {_label(part)}, {len(part.raw):,} bytes]")
                kept.append(_file(part, base64=_encoded(part.raw)))
            case "url":
                texts.append(f"[file {_label(part)} at {clean(part.url)}]")
                kept.append(_file(part, url=clean(part.url)))
            case _:
                pass
    text = "\n".join(texts)
    if not images:
        return ConvertedParts(text, kept)
    return ConvertedParts([*([{"type": "text", "text": text}] if text else []), *images], kept)


def text_of_parts(parts: Iterable[Part]) -> str:
    """Return the text of parts, one part a line; empty if there is none.

    Data are JSON. Other files, addresses, and images beyond `MAX_IMAGES` are lines that name them; the other images are
    left out.
    """
    content = convert_parts(parts).for_model
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def _only_data(parts: Sequence[Part]) -> Any:
    """Return the data if the parts are one data part, with or without texts that repeat its JSON; None otherwise.

    Blank texts are ignored.
    """
    kinds = [part.WhichOneof("content") for part in parts]
    if kinds.count("data") != 1 or not set(kinds) <= {"data", "text"}:
        return None
    data = part_data(parts[kinds.index("data")])
    texts = [part.text for part in parts if part.text.strip()]
    return data if all(_is_json_of(text, data) for text in texts) else None


def _is_json_of(text: str, data: Any) -> bool:
    """Whether a text is the JSON of `data`; False, without parsing, for a text with more values than `data` has."""
    encoded = json.dumps(data)
    try:
        # The text is a peer's: it may be large or deep, and cannot equal the data if it has more values.
        count_values(text, JsonBounds(count_values(encoded, JsonBounds(len(encoded), len(encoded))), len(encoded)))
    except JsonBoundsError:
        return False
    return decode(text) == (data,)


def _file(part: Part, **content: str) -> dict[str, Any]:
    """Return a file as an artifact, with its `base64` or its `url`."""
    return {"type": "file", "name": clean(part.filename), "mime_type": clean(part.media_type), **content}


def _label(part: Part) -> str:
    """Return the name and the media type of a file, for a line of text."""
    return clean(", ".join(text for text in (part.filename or "without a name", part.media_type) if text))


def _encoded(raw: bytes) -> str:
    """Return bytes as Base64 text."""
    return base64.b64encode(raw).decode("ascii")


EXTENSION = "urn:graph-agent:delegation:1"
"""Key of this package's metadata in messages and tasks; also the URI of its extension in agent cards."""

_USAGE = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "total_tokens": "totalTokens",
    "model_calls": "modelCalls",
}
"""Key of `Usage` → the protocol's name in camel case."""


def delegation_metadata(delegation: Delegation) -> dict[str, Any]:
    """Return the metadata of a delegated message: what the delegating run has left of its depth and its budget.

    It also has the parts of the task that come from untrusted text. The form is `{EXTENSION: {"depth": 1, "deadlineS":
    12.5, "tokens": 4000, "cost": 0.1, "untrusted": ["…"]}}`; a key is absent for a budget without a limit, and
    `untrusted` without such parts.
    """
    budget = delegation.budget
    values = {
        "depth": delegation.depth_left,
        "deadlineS": budget.deadline_s,
        "tokens": budget.tokens,
        "cost": budget.cost,
        "untrusted": [*delegation.untrusted] or None,
    }
    return {EXTENSION: {name: value for name, value in values.items() if value is not None}}


def read_budget(metadata: Any) -> dict[str, Any]:
    """Return the delegating run's remaining depth and budget in a message's metadata, as `configurable` of the new run.

    Values that are not numbers, negative, or above 2⁵³ are ignored; empty if none remain. Depth and tokens lose their
    fraction.
    """
    values = _extension_values(metadata)
    depth, tokens = _number(values.get("depth")), _number(values.get("tokens"))
    configurable: dict[str, Any] = {} if depth is None else {DEPTH_LEFT: int(depth)}
    budget = RemainingBudget(
        _number(values.get("deadlineS")), None if tokens is None else int(tokens), _number(values.get("cost"))
    )
    if budget != RemainingBudget():
        configurable[BUDGET_LEFT] = budget.as_json()
    return configurable


def read_untrusted_parts(metadata: Any) -> list[str]:
    """Return the parts of a task that come from untrusted text, by a message's metadata; values of other types are
    ignored."""
    parts = _extension_values(metadata).get("untrusted")
    return [part for part in parts if isinstance(part, str)] if isinstance(parts, list) else []


def outcome_metadata(stop_reason: str | None, usage: Usage) -> dict[str, Any]:
    """Return the metadata of a task: `{EXTENSION: {"stopReason": …, "usage": {…}}}`, with the usage of its run.

    `stopReason` is null for None, and the usage has a `cost` only if it is known.
    """
    counts: dict[str, Any] = {there: usage[here] for here, there in _USAGE.items()}  # type: ignore[literal-required]  # the keys are its own
    cost = {"cost": usage["cost"]} if "cost" in usage else {}
    return {EXTENSION: {"stopReason": stop_reason, "usage": {**counts, **cost}}}


def read_usage(metadata: Any) -> Usage:
    """Return the usage in a task's metadata; missing or invalid values are 0, and a `cost` of 0 is left out."""
    reported = _extension_values(metadata).get("usage")
    counts = {name: _number(value) for name, value in reported.items()} if isinstance(reported, dict) else {}
    usage: Usage = {**NO_USAGE}
    for here, there in _USAGE.items():
        usage[here] = int(counts.get(there) or 0)  # type: ignore[literal-required]  # the keys are its own
    if cost := counts.get("cost"):
        usage["cost"] = cost
    return usage


def _extension_values(metadata: Any) -> dict[str, Any]:
    """Return the values under `EXTENSION` in metadata; empty if there are none, or they are no object."""
    values = metadata.get(EXTENSION) if isinstance(metadata, dict) else None
    return values if isinstance(values, dict) else {}


def _number(value: Any) -> float | None:
    """Return a number from 0 to 2⁵³ as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0 <= value <= _MAX_EXACT else None
