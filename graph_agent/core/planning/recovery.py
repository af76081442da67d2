"""Changes the next request after the model has refused one: another model, a shorter conversation, calls in text."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from graph_agent.base.history_notes import is_kept_note
from graph_agent.base.model_error_text import FALLBACK_SENTENCE
from graph_agent.core.planning.compaction import shorten
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.models import errors


class ChangedRequest(NamedTuple):
    """The request to send after a failed one, and the warnings about the change. It is not sent yet."""

    request: NextRequest
    """The request to send from now on. The change is in its loop state, so that it holds for the rest of the input."""
    warnings: tuple[tuple[str, str], ...] = ()
    """`(text for the user, text for the log)` of each warning, oldest first.

    The text for the log may quote the provider.
    """
    may_help: bool = True
    """Whether the model may accept the changed request.

    False if no change can help, so that the error must be raised.
    """


def recovered(request: NextRequest, error: Exception) -> ChangedRequest:
    """Choose the request to send after a failed one, by the kind of the error.

    - A model that is unavailable or whose quota is used up, and a fallback model that refuses access or is unknown: the
      next fallback model.
    - A request that is too long: it is shortened, each time further. A context window that the error states is
      remembered for the model if none is known.
    - A provider that rejects tools: calls are asked for in text.
    - Any other error, such as access that the first model refuses: `may_help` is False.

    Of a request that a hook patched, only an unavailable model is replaced, and only if the hook named none.

    Args:
        request: The request that failed.
        error: The error of its last attempt.
    """
    kind, of_hook = errors.classify_model_error(error), request.of_hook
    if of_hook is not None:
        # Its messages are the hook's, so that neither a shorter history nor another mode would change it.
        falls_back = of_hook.model is None and kind == "transient"
        return fallen_back(request, error) if falls_back else ChangedRequest(request, may_help=False)
    match kind:
        case "transient":
            return fallen_back(request, error)
        case "auth" | "permission" | "unknown_model":
            # The user must fix these for the first model, unless its quota is used up; after a fallback, the next model
            # may still work.
            if request.index == 0 and not errors.is_used_up(error):
                return ChangedRequest(request, may_help=False)
            return fallen_back(request, error)
        case "context_overflow":
            if request.window is None and (window := errors.window_in_error(error)) is not None:
                request.model.learn_window(window)
                request = request.override()  # with the window
            return shortened(request)
        case "tools_rejected":
            return _asked_in_text(request, error)
        case "content_filter" | "other":
            return ChangedRequest(request, may_help=False)
        case _:
            assert_never(kind)


def fallen_back(request: NextRequest, error: Exception) -> ChangedRequest:
    """Return the request addressed to the next fallback model of the chain, with a warning; `may_help` is False if
    there is none.

    The recorded length of a refused request is dropped, because the windows of models differ. A warning about options
    that the new model cannot send may precede it.

    Args:
        request: The request that failed.
        error: The error of its last attempt, which the warning quotes.
    """
    failed = request.model.name
    index = request.index + 1
    if index >= len(request.chain):
        return ChangedRequest(request, may_help=False)
    recovery = {**request.loop.get("recovery", {}), "fallback": index}
    recovery.pop("too_long", None)  # the windows of models differ
    switched = options_warned(request.override(loop={**request.loop, "recovery": recovery}))
    what, then = FALLBACK_SENTENCE
    public, logged = [
        f"The model {failed} {what}{f' ({brief})' if brief else ''}; {then} {request.chain[index].name}."
        for brief in (errors.brief_model_error(error, public=True), errors.brief_model_error(error))
    ]
    return ChangedRequest(switched.request, (*switched.warnings, (public, logged)))


def fitted(request: NextRequest) -> ChangedRequest:
    """Shorten a request until its estimated tokens are below those of the shortest one that the model refused in this
    input.

    Returns it unchanged if none was refused; as short as possible if nothing more can be left out. `may_help` is always
    True.
    """
    refused, warnings = request.loop.get("recovery", {}).get("too_long"), tuple[tuple[str, str], ...]()
    while refused is not None and request.estimated_tokens() >= refused:
        change = _shortened_to(request, refused)
        if not change.may_help:
            break
        request, warnings = change.request, (*warnings, *change.warnings)
    return ChangedRequest(request, warnings)


def shortened(request: NextRequest) -> ChangedRequest:
    """Shorten a request that the model refused as too long, by leaving out old messages or cutting results.

    The refused length is recorded in the loop state in any case; `may_help` is False if nothing more can be left out.
    """
    tokens = request.estimated_tokens()
    known = request.loop.get("recovery", {}).get("too_long", tokens)
    return _shortened_to(request.with_recovery(too_long=min(tokens, known)), request.window)


def _shortened_to(request: NextRequest, window: int | None) -> ChangedRequest:
    """Leave out one more part of a request (see `compaction.shorten`), with a warning for the first of each kind in an
    input.

    If there is none, the note with kept results is dropped as the last part; without such a note, `may_help` is False.

    Args:
        request: The request.
        window: Tokens into which it should fit; None if unknown.
    """
    messages = request.messages()
    found = shorten(messages, window)
    if found is None:
        # The note with kept results is the last part that can be left out.
        may_help = any(map(is_kept_note, messages))
        return ChangedRequest(request.with_recovery(unkept=True) if may_help else request, may_help=may_help)
    name, known, warnings = request.model.name, request.loop.get("recovery", {}), []
    if found.kept_from is not None:
        request = request.override(loop={**request.loop, "kept_from": found.kept_from})
    if found.cuts:
        sent = {message.id for message in messages}
        before = {id_: chars for id_, chars in request.loop.get("truncations", {}).items() if id_ in sent}
        request = request.override(loop={**request.loop, "truncations": {**before, **found.cuts}})
    # One warning of each kind per input.
    if found.kept_from is not None and not known.get("compacted"):
        request = request.with_recovery(compacted=True)
        text = (
            f"The conversation is longer than {name} can read; requests hold a note in place of its older part. The "
            "history keeps everything."
        )
        warnings.append((text, text))
    if found.cuts and not known.get("cut"):
        request = request.with_recovery(cut=True)
        text = (
            f"Results of tools are longer than {name} can read; they are cut further in requests. The history keeps "
            "everything."
        )
        warnings.append((text, text))
    return ChangedRequest(request, tuple(warnings))


def _asked_in_text(request: NextRequest, error: Exception) -> ChangedRequest:
    """Return the request in text mode, with a warning, after a provider has rejected tools; all later requests to the
    model are in text.

    `may_help` is False if the request offered no tools natively.

    Args:
        request: The request that failed.
        error: The error, which the warning quotes.
    """
    if request.mode != "native":
        return ChangedRequest(request, may_help=False)
    public, logged = [
        f"The model takes no tools ({text}); calls are asked for in text from now on."
        for text in (errors.describe_model_error(error, public=True), errors.describe_model_error(error))
    ]
    return ChangedRequest(request.with_text_tools(), ((public, logged),))


def options_warned(request: NextRequest) -> ChangedRequest:
    """Return the request with a warning about model options that the current model's class cannot send.

    The warning is given once per input and model; without such options, there is none. Nothing but the warning changes:
    the options are left out when the request is sent.
    """
    names = request.deps.client.unsupported_options(request.settings) if request.settings.model_options() else ()
    warned, name = request.loop.get("recovery", {}).get("unsupported", []), request.model.name
    if not names or name in warned:
        return ChangedRequest(request)
    text = (
        f"{name} is asked without {', '.join(sorted(names))}: {type(request.deps.client.model).__name__} has no such "
        "option for this model."
    )
    return ChangedRequest(request.with_recovery(unsupported=[*warned, name]), ((text, text),))
