"""Learns the rules of an endpoint from its error messages: a changed rule is kept if the changed request succeeds.

A lesson is a regular expression over an error message, and the fields of `WireRules` to change. It applies only if the
refused request contained what the message names, and never changes a field that the user has set.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.media import Media
from graph_agent.base._internal.secrets import mask_secrets
from graph_agent.base._internal.text import excerpt
from graph_agent.base.usage import record_warning
from graph_agent.models.wire.choose import base_url, model_name, rules_for
from graph_agent.models.wire.error_parts import failure_text, status_of
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.traits import concerned_by

logger = get_logger(__name__)
Changes = Mapping[str, Any]
"""Names of fields of `WireRules` → their new values."""
_REFUSED = re.compile(
    r"not (?:be )?(?:supported|permitted|allowed|accept|recogni[sz]ed|available|compatible)|unsupported|unknown"
    r"|unrecogni[sz]ed|unexpected|invalid|extra_forbidden|extra inputs|not a valid|does ?n[o']t support"
    r"|do not support|cannot be|can't be|is deprecated|refus|only support|must not|no longer|incompatible",
    re.IGNORECASE,
)
_REACH = 140
"""Maximum characters between a name and the words that refuse it."""
_MOST_NAMES = 20
"""Maximum occurrences of a name in an error message that are examined."""


class _About:
    """Matches an error message that refuses something by its name, which may precede or follow the refusal."""

    def __init__(self, name: str) -> None:
        self._name = re.compile(rf"\b{name}\b", re.IGNORECASE)

    def search(self, words: str) -> bool:
        """Whether the message refuses the thing with this name, i.e. has words of refusal near it."""
        return any(
            _REFUSED.search(words, max(0, found.start() - _REACH), found.end() + _REACH) is not None
            for found in itertools.islice(self._name.finditer(words), _MOST_NAMES)
        )


def _without_media(kinds: frozenset[Media]) -> Callable[[WireRules], Changes]:
    """Return a function that returns the rules' change by which these kinds of media are no longer sent: in results if
    the rules permit any of them there, otherwise in the user's messages.
    """

    def change(rules: WireRules) -> Changes:
        if rules.result_media & kinds:
            return {"result_media": rules.result_media - kinds}
        return {"user_media": rules.user_media - kinds}

    return change


def _without_option(name: str) -> Callable[[WireRules], Changes]:
    """Return a change that no longer sends an option."""
    return lambda rules: {"left_out": rules.left_out | {name}}


def _without_reasoning(name: str) -> Callable[[WireRules], Changes]:
    """Return a change that no longer sends back reasoning in a field."""
    return lambda rules: {
        "reasoning_fields": rules.reasoning_fields - {name},
        "reasoning_needed": "" if rules.reasoning_needed == name else rules.reasoning_needed,
    }


def _tool_choice(rules: WireRules, options: Mapping[str, Any], words: str) -> Changes:
    """Return the change of the rules after an endpoint has refused a tool choice; empty if none was sent.

    The refused kind of choice (no call, any call, or a named tool) is not sent any more. While the model reasons, a
    refused name means that no call can be required.

    Args:
        options: The keyword arguments of the refused request.
        words: The error message.
    """
    choice = options.get("tool_choice")
    if choice is None:
        return {}
    if choice == "none" or choice == {"type": "none"}:
        return {"choice_none": False}
    if isinstance(choice, str) and choice in ("any", "required"):
        return {"choice_forced": False}
    # A single tool: it can be offered alone, and required without its name, but not while the model reasons.
    named = rules.choice_named and not re.search("thinking|reasoning", words, re.IGNORECASE)
    return {"choice_named": False} if named else {"choice_forced": False}


_OPTIONS = (
    *("temperature", "top_p", "stop", "reasoning_effort", "parallel_tool_calls", "seed", "frequency_penalty"),
    "max_tokens",  # last: another name for it is tried before
)
"""Options that are no longer sent once an endpoint refuses them, in the order in which they are tried."""

_LESSONS: tuple[tuple[re.Pattern[str] | _About, Callable[[WireRules], Changes]], ...] = (
    (re.compile(r"role '?user'? after role '?tool|'?tool'? (?:must|should) be followed by '?assistant", re.IGNORECASE),
     lambda _: {"user_after_tool": False}),
    (re.compile(r"roles? must alternate|must alternate|consecutive (?:user|messages)|multiple user messages"
                r"|after the optional system message", re.IGNORECASE),
     lambda _: {"repeated_users": False, "user_after_tool": False}),
    (re.compile(r"system role (?:is )?not supported|not support system|role 'system' is not", re.IGNORECASE),
     lambda _: {"system_role": False}),
    (re.compile(r"length of 9|exactly 9|9 (?:alphanumeric|letters)", re.IGNORECASE), lambda _: {"call_ids": "nine"}),
    (re.compile(r"(?:tool_use\.id|tool_?use_?id|tool_call_id|tool_calls\S*\.id)\b[^\n]{0,120}?"
                r"(?:pattern|constraint|maximum length|too long|at most|invalid)", re.IGNORECASE),
     lambda rules: {"call_ids": "plain"} if rules.call_ids == "any" else {}),
    (re.compile(r"reasoning_content\b[^\n]{0,80}?(?:must be passed|is missing|is required)", re.IGNORECASE),
     lambda rules: {"reasoning_needed": "reasoning_content",
                    "reasoning_fields": rules.reasoning_fields | {"reasoning_content"}}),
    (re.compile(r"must (?:be|contain|have)[^\n]{0,40}non-?empty|content (?:is|cannot be|must not be) empty"
                r"|at least one content element|at least 1 token long|empty text", re.IGNORECASE),
     lambda _: {"empty_text": False}),
    (re.compile(r"content (?:is not|must be) a string|has no attribute 'startswith'|cannot unmarshal array"
                r"|invalid type: sequence, expected a string", re.IGNORECASE),
     lambda _: {"text_parts": False}),
    (re.compile(r"toolconfig field must be defined|requires? (?:the )?tools? (?:param|=)", re.IGNORECASE),
     lambda _: {"tools_with_calls": True}),
    (re.compile(r"image[ _]url[^\n]{0,60}?only allowed for messages with role 'user'", re.IGNORECASE),
     lambda rules: {"result_media": rules.result_media - {"image"}}),
    # A list with an image, for a model that takes text alone.
    (
        re.compile("content is not a string|input should be 'text'", re.IGNORECASE),
        _without_media(frozenset({"image"})),
    ),
    # Ollama names neither the kind of a part nor its place.
    (re.compile("invalid message (?:format|content type)", re.IGNORECASE), _without_media(frozenset({"pdf", "file"}))),
    (_About("(?:image|images|image_url|image input|vision|multimodal)"), _without_media(frozenset({"image"}))),
    (_About("(?:file|files|input_file|document|pdf)"), _without_media(frozenset({"pdf", "file"}))),
    (_About("(?:audio|input_audio)"), _without_media(frozenset({"audio"}))),
    (_About("(?:video|video_url)"), _without_media(frozenset({"video"}))),
    *((_About(name), _without_reasoning(name)) for name in ("reasoning_content", "reasoning_details", "reasoning")),
    (_About("cache_control"), lambda _: {"cache_control": False}),
    (re.compile(r"response_?format|json[_ ]?schema|structured[ _]outputs?|guided_?(?:json|decoding)|grammar",
                re.IGNORECASE),
     lambda _: {"json_schema": False}),
    (_About("(?:stream_options|include_usage)"), lambda _: {"stream_usage": False}),
    (_About("(?:stream|streaming)"), lambda _: {"stream": False}),
)  # fmt: skip
"""Pattern of an error message → the change that avoids the error. The first that changes the request is tried."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A change of the rules of an endpoint that may avoid an error; it is kept only if the changed request succeeds."""

    rules: WireRules
    """The changed rules."""
    changes: Changes
    """The changed fields and their new values."""
    words: str
    """The endpoint's error message, with secrets masked."""

    @property
    def warning(self) -> str:
        """Text of the warning event, with the setting that makes the change permanent."""
        fields = ", ".join(f"{name}: {_shown(value)}" for name, value in self.changes.items())
        return (
            f"The model's endpoint refused a request and accepted it in another form; later requests have it at once. "
            f"To set it, write into `model_rules`: {fields}."
        )


def _shown(value: Any) -> str:
    """Return the value of a field as it is written in a configuration file."""
    return (
        str(sorted(value)) if isinstance(value, frozenset) else str(value).lower() if isinstance(value, bool) else value
    )


def lessons(words: str, rules: WireRules, options: Mapping[str, Any]) -> list[Changes]:
    """Return the changes of the rules that an error message suggests, the most specific first; changes that the rules
    have already are left out.

    Empty if it suggests none.

    Args:
        words: The error message.
        rules: The rules by which the refused request was made.
        options: The keyword arguments of the refused request, under LangChain's names.
    """
    found: list[Changes] = []
    if "max_tokens" in words and options.keys() & {"max_tokens", "max_completion_tokens"}:
        other = "max_completion_tokens" if rules.max_tokens != "max_completion_tokens" else "max_tokens"
        if _About("max_tokens").search(words) or _About("max_completion_tokens").search(words):
            named = "max_tokens" if "max_completion_tokens" not in words else other
            found.append({"max_tokens": other if named == "max_tokens" else named})
    elif "max_completion_tokens" in words and options.keys() & {"max_tokens", "max_completion_tokens"}:
        found.append({"max_tokens": "max_tokens"})
    if re.search(r"tool[_ ]?choice|toolchoice|function_calling_config", words, re.IGNORECASE):
        found.append(_tool_choice(rules, options, words))
    found += [
        _without_option(name)(rules)
        for name in _OPTIONS
        if options.get(name) is not None and name not in rules.left_out and _About(name).search(words)
    ]
    found += [change(rules) for pattern, change in _LESSONS if pattern.search(words)]
    return [changes for changes in found if any(getattr(rules, name) != value for name, value in changes.items())]


class Endpoint:
    """The rules of one model at one address, including those learned from its errors.

    All agents of the process that use the model with the same class, address, key and settings share one object.

    Args:
        rules: The initial rules.
        settings: Fields of the rules that the user has set, which are never changed.
        address: Base URL of the endpoint; empty if unknown.
    """

    def __init__(self, rules: WireRules, settings: Mapping[str, Any], address: str = "") -> None:
        self.rules = rules
        self.source = rules.provider if rules.is_known else f"{rules.provider}@{urlsplit(address).netloc}"
        """Name stored with this endpoint's replies.

        Provider-specific parts, e.g. reasoning, are sent back only to it.
        """
        self._set = frozenset(settings)
        """Names of the fields that the user has set."""
        self.learned: dict[str, Any] = {}
        """Learned fields → their values."""
        self.version = 0
        """Number of changes of the rules so far; part of the keys of caches."""
        self._concerned = (rules, concerned_by(rules))

    def lesson(
        self, words: str, rules: WireRules, options: Mapping[str, Any], changes_request: Callable[[WireRules], bool]
    ) -> Lesson | None:
        """Return the first change that an error message suggests and that would give another request.

        None if there is none. Fields that the user has set are not changed. Nothing is changed yet; see `keep`.

        Args:
            words: The error message.
            rules: The rules by which the refused request was made.
            options: The keyword arguments of the refused request.
            changes_request: Returns whether a request by the given rules differs from the refused one.
        """
        for changes in lessons(words, rules, options):
            allowed = {name: value for name, value in changes.items() if name not in self._set}
            changed = rules.with_fields(allowed)
            if changed != rules and changes_request(changed):
                return Lesson(changed, allowed, mask_secrets(excerpt(" ".join(words.split()), 300)))
        return None

    def keep(self, lesson: Lesson) -> None:
        """Apply a lesson to the rules of all later requests, after a request by it has succeeded; log the change.

        `version`, part of the keys of caches, increases.
        """
        self.rules = self.rules.with_fields(lesson.changes)
        self.version += 1
        self.learned |= lesson.changes
        logger.info("Learned %s from a refusal: %s", dict(lesson.changes), lesson.words)

    def learn_ignored_schema(self) -> None:
        """Send no JSON schema in later requests, because a reply proves that the endpoint ignores it.

        Does nothing if the user has set `json_schema`, or none is sent already.
        """
        if "json_schema" in self._set or self.rules.json_schema is False:
            return
        self.keep(Lesson(self.rules, {"json_schema": False}, "the reply does not fit the schema of the request"))

    def concerned(self, rules: WireRules) -> int:
        """Return the features of messages (bits of `Traits`) for which requests by `rules` need a conversion."""
        if self._concerned[0] is not rules:
            self._concerned = (rules, concerned_by(rules))
        return self._concerned[1]


_REFUSALS = frozenset({400, 404, 405, 409, 415, 422, 500, 501})
"""HTTP statuses that may mean a refused form of the request; servers that apply a chat template send 500."""
_MOST_LESSONS = 4
"""Maximum changes that one request tries."""


class LearningRequest:
    """One request that may be sent several times, each time by rules changed because of the last error.

    Args:
        endpoint: The endpoint, whose rules apply first.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.rules = endpoint.rules
        self._endpoint = endpoint
        self._lessons: list[Lesson] = []

    def learn_from(
        self, error: Exception, options: Mapping[str, Any], changes_request: Callable[[WireRules], bool]
    ) -> bool:
        """Change `rules` as an error suggests, and return whether they were changed, so that the request should be sent
        again.

        False after four changes, if the HTTP status is not one of a refused request, if the model runs in this process
        and the error is no `TypeError`, and if no suggested change would give another request. The endpoint's own rules
        change only by `confirm`.

        Args:
            error: The error of the request.
            options: The keyword arguments of the request.
            changes_request: Returns whether a request by the given rules differs from the refused one.
        """
        if len(self._lessons) >= _MOST_LESSONS:
            return False
        # A class of a package that is not in the table may take other keywords, which Python refuses by name.
        if self.rules.provider == "in-process" and not isinstance(error, TypeError):
            return False
        if (status := status_of(error)) is not None and status not in _REFUSALS:
            return False
        lesson = self._endpoint.lesson(failure_text(error), self.rules, options, changes_request)
        if lesson is None:
            return False
        self._lessons.append(lesson)
        self.rules = lesson.rules
        return True

    def confirm(self) -> None:
        """Keep the changes for later requests, after the request has succeeded, and record a warning for each set of
        fields."""
        for lesson in self._lessons:
            self._endpoint.keep(lesson)
        # The newest change of a field includes the earlier ones.
        for lesson in {frozenset(lesson.changes): lesson for lesson in self._lessons}.values():
            record_warning(lesson.warning)
        self._lessons = []


_endpoints: dict[tuple[Any, ...], Endpoint] = {}
_guard = threading.Lock()
_MOST = 1_000
"""Maximum endpoints that a process remembers."""


def endpoint_of(model: BaseChatModel, settings: Mapping[str, Any]) -> Endpoint:
    """Return the endpoint of a model, with what this process has learned about it.

    The object is shared by models of equal class, address, name, key and settings. A model in this process, such as a
    scripted one, gets a new object each time. Above 1,000 endpoints, all that was learned is forgotten.

    Args:
        model: The chat model.
        settings: Fields of the rules that the user has set in `model_rules`.

    Raises:
        ConfigError: A setting does not exist or has a value of another type.
    """
    rules = rules_for(model, settings)
    if rules.provider == "in-process":
        return Endpoint(rules, settings)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    key = (kind, base_url(model), model_name(model), _key_of(model), repr(sorted(settings.items())))
    with _guard:
        if len(_endpoints) >= _MOST:
            # Simpler than evicting in an order: what is lost here is learned again.
            _endpoints.clear()
        return _endpoints.setdefault(key, Endpoint(rules, settings, base_url(model)))


def _key_of(model: BaseChatModel) -> int:
    """Return a hash of the model's API key, 0 without one; accounts differ in what they may use."""
    for name, value in vars(model).items():
        if name.endswith("api_key") and callable(reveal := getattr(value, "get_secret_value", None)):
            return hash(reveal())
    return 0
