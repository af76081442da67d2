"""Traces the arguments of a call to where they come from, and decides whether the call is tainted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from graph_agent.base.calls import is_delegation
from graph_agent.base.origins import ArgumentOrigin, OriginKind, origins_text
from graph_agent.base.types import Call
from graph_agent.base.waves.references import references_in
from graph_agent.core.planning.origins.index import Author, Place
from graph_agent.core.planning.origins.sources import Sources, is_named
from graph_agent.core.planning.origins.tokens import (
    is_address,
    keys_in,
    leaf_values,
    match_tokens,
    other_forms,
    pieces,
)

MOST_ARGUMENTS = 200
"""Maximum values in the sinks of one call whose origins are searched, and the same number in its other arguments."""
MOST_VALUE_TOKENS = 600
"""Maximum tokens of one value that are searched; the rest of the value is ignored, and a longer sink is untrusted."""
MOST_UNTRUSTED_PARTS = 50
"""Maximum untrusted parts of a task that are passed to a delegate."""
_MOST_CHARS = 200
"""Maximum characters of a path or a part in an event."""
_DENIED = (
    "Not run: an argument that decides where this call goes comes from text that outsiders can write ({}). Ask the "
    "user to give this value."
)
_KINDS: dict[Author, OriginKind] = {Author.HANDED: "task", Author.USER: "user", Author.SYSTEM: "system"}
_TOP = re.compile(r"[.\[]")


def traced(sources: Sources, call: Call, template: Mapping[str, Any], sinks: frozenset[str]) -> Call:
    """Return a copy of a call with the origin of each argument in `origins`, and the paths of tainted sinks in
    `tainted`, if there are any.

    A sink is an argument that decides where the call goes, such as a recipient. It is tainted if its value, one of
    several values in it, or a field name in it comes from text that outsiders can write. At most `MOST_ARGUMENTS`
    values of sinks and as many of other arguments are searched: of the rest, the first value of each sink counts as
    untrusted, and the others get no origin. The task of a delegation, and a fact for the memory, also get their
    untrusted `parts`.

    Args:
        sources: The texts that the model has read.
        call: The call; one with a `fault` is returned unchanged.
        template: The arguments with their references (`${id.path}`) not replaced; empty if they cannot have any.
        sinks: Names of the arguments that are sinks.
    """
    if "fault" in call:
        return call
    references = [(path, text) for path, text in leaf_values(dict(template)) if isinstance(text, str) and "${" in text]
    origins: dict[str, ArgumentOrigin] = {}
    left = {True: MOST_ARGUMENTS, False: MOST_ARGUMENTS}
    for name, argument in call["arguments"].items():
        is_sink = name in sinks
        for path, value in leaf_values(argument, path=name):
            left[is_sink] -= 1
            if left[is_sink] < 0:
                if is_sink:
                    # Not searched, so it may come from anywhere.
                    origins[path] = {"kind": "unknown", "untrusted": True}
                break
            origins[path] = _origin(sources, value, [text for at, text in references if _is_within(path, at)])
            if is_sink and isinstance(value, str) and "untrusted" not in origins[path]:
                origins[path] = _of_pieces(sources, value, origins[path])
        for path, key in keys_in(argument, name) if is_sink else ():
            if "untrusted" in (found := _origin(sources, key, ())):
                origins[path] = found
    kept = "task" if is_delegation(call["name"]) else "content" if call["name"] in sources.memory_tools else ""
    text = call["arguments"].get(kept)
    if isinstance(text, str) and kept in origins and (parts := untrusted_parts(sources, text)):
        origins[kept] = {**origins[kept], "parts": parts}
    tainted = [
        path for path, each in origins.items() if "untrusted" in each and _TOP.split(path, maxsplit=1)[0] in sinks
    ]
    made: Call = {**call, "origins": origins}
    return {**made, "tainted": tainted} if tainted else made


def _of_pieces(sources: Sources, text: str, whole: ArgumentOrigin) -> ArgumentOrigin:
    """Return the origin of the first untrusted value in a sink (an argument that decides where a call goes) that has
    several, such as two recipients; `part` is that value.

    A text of more than `MOST_VALUE_TOKENS` tokens is untrusted, of kind `unknown`. The origin of the whole value is
    returned if the whole was found as it is, or if no piece is untrusted.

    Args:
        sources: The texts that the model has read.
        text: The value of the sink.
        whole: The origin of the value as a whole.
    """
    if len(match_tokens(text)) > MOST_VALUE_TOKENS:
        return {"kind": "unknown", "untrusted": True}
    if whole["kind"] != "model" and "part" not in whole:
        return whole
    for piece in pieces(text):
        found = _origin(sources, piece, ())
        if "untrusted" in found and "part" not in found:
            return {**found, "part": " ".join(match_tokens(piece))[:_MOST_CHARS]}
    return whole


def _is_within(path: str, outer: str) -> bool:
    """Whether a path is another path, or leads into the value there.

    Args:
        path: The path that may lie within the other.
        outer: The other path.
    """
    return path == outer or (path.startswith(outer) and path[len(outer)] in ".[")


def _origin(sources: Sources, value: Any, references: Sequence[str]) -> ArgumentOrigin:
    """Return the origin of one value: that of a reference if the plan has one for the whole value, else where the value
    occurs in the texts.

    - A value that the user wrote is never untrusted, even if it was referenced.
    - A value that combines a reference with other text has the origin of the reference if the referenced result is
      untrusted.
    - A value that an earlier call had from untrusted text keeps that origin, unless its own is untrusted.
    - A reference to a result of the memory does not count for a value whose own origin is untrusted.

    Args:
        sources: The texts that the model has read.
        value: The text or number; of a longer one, the first `MOST_VALUE_TOKENS` tokens count.
        references: The texts with references from which the value was made; empty if it has none.
    """
    tokens = match_tokens(value)[:MOST_VALUE_TOKENS]
    others = [form for form, first, end in other_forms(value) if (first, end) == (0, len(tokens))]
    found = sources.index.find(tokens, others, is_address=is_address(value))
    # A value that the user wrote, too, is the user's.
    is_own = found is not None and found.part is None and found.source.group is Author.USER
    by_value = _of_place(found, tokens)
    if "untrusted" not in by_value and not is_own and (earlier := sources.untrusted.get(tuple(tokens))) is not None:
        by_value = earlier
    for text in references:
        for origin, is_whole in _referenced(sources, text):
            if origin["kind"] == "memory" and "untrusted" in by_value:
                return by_value
            if "untrusted" in origin and is_own:
                del origin["untrusted"]
            if is_whole or "untrusted" in origin:
                return origin
    return by_value


def _referenced(sources: Sources, text: str) -> Iterator[tuple[ArgumentOrigin, bool]]:
    """Yield the origin of each reference in a text, and whether the text is only that reference.

    References to calls that this run does not know are skipped. The origin has `untrusted` if the result's tool is
    untrusted and the reference is to the whole result, or to a field that outsiders can write according to the tool's
    mark.
    """
    for id_, path, is_whole in references_in(text):
        # A call of another plan, whose events this run has not read.
        known = sources.calls.get(id_)
        if known is None:
            continue
        source, fields = sources.source_of(*known)
        kind = cast("OriginKind", source.kind)
        origin: ArgumentOrigin = {"kind": kind, "how": "reference", "call": known[0], "name": known[1]}
        if path:
            origin["field"] = path[:_MOST_CHARS]
        if source.group is Author.UNTRUSTED and (is_named(path, fields) if fields else not path):
            origin["untrusted"] = True
        yield origin, is_whole


def _of_place(place: Place | None, tokens: Sequence[str]) -> ArgumentOrigin:
    """Return the origin of a value by the place where it was found.

    - `kind` is `model` if it was found nowhere, and otherwise that of the text that has it.
    - `how` is `field` if the value is a whole field, and otherwise `prose`; it is absent if not all texts could be
      searched.
    - `untrusted` is set for a value in prose of an untrusted text, for a whole field that its tool declares as
      untrusted, and for text that a delegating agent, or an agent that kept a fact, took from untrusted text.

    Args:
        place: The place; None if the value was not found.
        tokens: The value's tokens, for the text of a part.
    """
    if place is None:
        return {"kind": "model"}
    source = place.source
    origin: ArgumentOrigin = {"kind": _KINDS.get(source.group) or cast("OriginKind", source.kind)}
    if source.kind != "unknown":
        origin["how"] = "field" if place.whole else "prose"
    if source.call:
        origin["call"], origin["name"] = source.call, source.name
    if place.path:
        origin["field"] = place.path[:_MOST_CHARS]
    if place.part is not None:
        origin["part"] = " ".join(tokens[slice(*place.part)])[:_MOST_CHARS]
    theirs = source.group is Author.UNTRUSTED and (source.named or not place.whole)
    if theirs or source.group in (Author.HANDED, Author.TAINTED_MEMORY):
        origin["untrusted"] = True
    return origin


def untrusted_parts(sources: Sources, text: str) -> list[str]:
    """Return the parts of a task or a fact that come from untrusted text, as tokens joined by spaces, longest first.

    At most `MOST_UNTRUSTED_PARTS`, of the first `MOST_VALUE_TOKENS` tokens of the text; empty if there is none.
    """
    tokens = match_tokens(text)[:MOST_VALUE_TOKENS]
    parts = [" ".join(tokens[first:last]) for first, last in sources.index.parts(tokens)]
    return sorted(dict.fromkeys(parts), key=len, reverse=True)[:MOST_UNTRUSTED_PARTS]


def refused(call: Call) -> Call:
    """Return a copy of a tainted call (its destination comes from untrusted text) with a `fault`, so that it is denied;
    any other call unchanged.
    """
    if "tainted" not in call:
        return call
    return {**call, "fault": _DENIED.format("; ".join(origins_text(call, tainted=True))), "denied_by": "origins"}
