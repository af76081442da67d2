"""Sends the requests of one model: in the form of its endpoint, with its tools, options and reply schemas."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables.config import ensure_config, merge_configs

from graph_agent.base._internal.lru import BoundedCache
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.usage import with_usage
from graph_agent.models.continuation import ask_until_whole
from graph_agent.models.offered_tools import OfferedTools
from graph_agent.models.prefixed import PrefixedChatModel
from graph_agent.models.retry import QUIET
from graph_agent.models.sanitize import SafeMessages, ToolAliases, sanitized, sanitized_all, with_traits, without_calls
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.structured import (
    Binding,
    ModelCall,
    ResponseFormat,
    SchemaMode,
    reply_form,
    stop_sequences,
    unwrap_binding,
    with_options,
)
from graph_agent.models.text_replies import TextReplies, ignores_schema, read_by_schema, with_result_marker
from graph_agent.models.wire.answer_decoder import AnswerDecoder
from graph_agent.models.wire.clients import bind_tools, choice_of, client_options
from graph_agent.models.wire.examples import ExampleAnswers, example_of_planned_answer, with_examples
from graph_agent.models.wire.learn import Attempt, Endpoint, endpoint_of
from graph_agent.models.wire.render import render, with_source
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.shape import shaped
from graph_agent.models.wire.text_form import as_plans, as_text_history
from graph_agent.models.wire.traits import Traits

Phase = Literal["plan", "answer"]
Mode = Literal["native", "text", "wave"]
"""How the model returns calls: through the provider's tools, in text, or in structured plans."""

ANY_TOOL = "any"
"""The tool choice that requires a call and leaves the tool to the model."""


class ToolSchemas(Sequence[dict[str, Any]]):
    """Tools in OpenAI's function format, which `make` converts when the first of them is read.

    The conversion of 1,000 functions takes ten times as long as the rest of building an agent. The names, in the same
    order, are known without the schemas.
    """

    def __init__(self, names: Sequence[str], make: Callable[[], list[dict[str, Any]]]) -> None:
        self.names = list(names)
        self._make = make
        self._made: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, schemas: Sequence[dict[str, Any]]) -> ToolSchemas:
        """Return schemas that exist already; the same object if it is one of this class."""
        if isinstance(schemas, ToolSchemas):
            return schemas
        given = list(schemas)
        return cls([schema["function"]["name"] for schema in given], lambda: given)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]  # two equal lists of schemas may be two objects

    def _all(self) -> list[dict[str, Any]]:
        if self._made is None:
            self._made = self._make()
        return self._made


class ModelClient:
    """A chat model with its offered tools, under aliases that its provider accepts.

    `tool_choice` is that of every plan: a tool's name, or `any`; None leaves it to the model. A tool that is not
    offered has no effect. Raises `ConfigError` if two tool names have the same alias.
    """

    def __init__(
        self,
        model: BaseChatModel,
        schemas: Sequence[dict[str, Any]],
        *,
        tool_choice: str | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        self.model = model
        self.endpoint = endpoint or endpoint_of(model, {})
        """The rules of the model's endpoint, with the learned ones."""
        self._tool_choice = tool_choice
        self.options: Mapping[str, Any] = {}
        """Options of every call, which override the configuration's; a value of None removes an option."""
        self._narrower: dict[frozenset[str], ModelClient] = {}
        self._names: list[str] = []
        self.offer(schemas)
        self._schema_mode = SchemaMode(model)

    def offer(self, schemas: Sequence[dict[str, Any]]) -> None:
        """Offer these tools from now on; raise `ConfigError` if two tool names have the same alias."""
        self.schemas = ToolSchemas.of(schemas)
        """The offered tools, under their own names."""
        # Earlier names are kept: the history may hold calls of tools that are no longer offered.
        self._names = list(dict.fromkeys([*self._names, *self.schemas.names]))
        self._aliases = ToolAliases(self._names)
        self._offered = OfferedTools(self.schemas, self._aliases.to_alias)
        self._renames = any(self._aliases.to_alias(name) != name for name in self._names)
        self._bound: BoundedCache[tuple[Any, ...], Binding] = BoundedCache()
        self._text: TextReplies | None = None
        self._narrower = {}

    def with_overrides(
        self, schemas: Sequence[dict[str, Any]], options: Mapping[str, Any], *, tool_choice: str | None = None
    ) -> ModelClient:
        """Return a client of the same model with other tools, overriding options and, if given, a tool choice.

        Raises `ConfigError` if two tool names have the same alias.
        """
        other = copy.copy(self)
        other.offer(schemas)
        other.options = {**self.options, **options}
        other._tool_choice = tool_choice or self._tool_choice
        return other

    def without(self, names: Collection[str]) -> ModelClient:
        """Return a client of the same model without some of its tools, given by their own names."""
        key = frozenset(names)
        if key not in self._narrower:
            remaining = [schema for schema in self.schemas if schema["function"]["name"] not in key]
            self._narrower[key] = self.with_overrides(remaining, {})
        return self._narrower[key]

    async def ask(
        self,
        phase: Phase,
        request: Sequence[AnyMessage],
        settings: LoopConfig,
        *,
        mode: Mode,
        quiet: bool,
        schema: dict[str, Any] | None = None,
        watch: StreamWatch | None = None,
    ) -> AIMessage:
        """Request the next calls, or the answer: with the same tools, and tool choice `none` if the provider has it.

        Args:
            request: System prompt and history, calls under their own names; for the answer, also the final message
                that asks for it.
            mode: How the model returns calls; except in `native`, calls and results are written as text.
            quiet: Keep the reply's tokens out of the message stream. They are also kept out with a schema that the
                provider does not enforce.
            schema: JSON schema of a reply without calls; None for free text.
            watch: Records whether a token has reached the reader, unless the request is quiet.

        Raises:
            Exception: The provider's error, if it is not transient or the retries are used up.
        """
        safe = sanitized_all(request)
        attempt = Attempt(self.endpoint)
        while True:
            form = self._form(phase, settings, attempt.rules, mode, schema)
            bound = self._bound_for(phase, settings, attempt, mode=mode, form=form)
            rendered = self._rendered(safe, attempt.rules, mode, self._example_answers(phase, settings, form, schema))
            silent = quiet or (schema is not None and form is None)
            by_schema = form is not None and self._has_calls_in_text(phase, mode, schema)
            decoder = AnswerDecoder(self._stop(settings)) if by_schema and schema is None else None
            try:
                reply = await self._ask(
                    bound,
                    rendered,
                    settings,
                    attempt.rules,
                    quiet=silent,
                    watch=watch,
                    decoder=decoder,
                    joins_pauses=phase == "answer",
                )
            except Exception as error:
                if watch is not None and watch.seen:
                    raise
                answers = None if by_schema else schema
                if answers is not None and form is not None and self._schema_mode.refused(answers, form, error):
                    continue

                sent, of_form = (bound.options, vars(bound.runnable), list(rendered)), form

                def changes_request(rules: WireRules, sent: Any = sent, of_form: Any = of_form) -> bool:
                    changed = of_form and self._form(phase, settings, rules, mode, schema)
                    other = self._bind(phase, settings, changed, rules, mode=mode)
                    examples = self._example_answers(phase, settings, changed, schema)
                    messages = list(self._rendered(safe, rules, mode, examples))
                    # Models are compared by all their attributes, because two are equal if their fields are.
                    return bool((other.options, vars(other.runnable), messages) != sent)

                if not attempt.learn_from(error, bound.options, changes_request):
                    raise
            else:
                attempt.confirm()
                if by_schema:
                    is_stated = "structured_output" in (self.model.profile or {})
                    if not (is_stated or (decoder and decoder.is_answer)) and ignores_schema(reply):
                        self.endpoint.learn_ignored_schema()
                    reply, is_answer = read_by_schema(reply, decoder or AnswerDecoder(), schema, self._stop(settings))
                    if watch is not None:
                        watch.is_answer = is_answer
                # A model may call a tool in its answer regardless; the call is never run, so it is removed.
                return reply if phase == "plan" else without_calls(reply)

    def unsupported_options(self, settings: LoopConfig) -> tuple[str, ...]:
        """Return the options of the configuration that the model's class or its endpoint does not take.

        The names are LangChain's.
        """
        options = with_options(settings, self.options)
        refused = self.endpoint.rules.left_out & options.keys() - self.endpoint.learned.get("left_out", frozenset())
        return *client_options(self.model, options).unsupported, *refused

    def enforces_schema(self, schema: dict[str, Any], settings: LoopConfig, mode: Mode) -> bool:
        """Whether the provider is asked to enforce a schema on a planning reply without calls.

        Args:
            schema: JSON schema of the answer.
            mode: How the model returns calls; a structured plan has a schema of its own.
        """
        return mode != "wave" and self._form("plan", settings, self.endpoint.rules, mode, schema) is not None

    def _form(
        self, phase: Phase, settings: LoopConfig, rules: WireRules, mode: Mode, schema: dict[str, Any] | None
    ) -> ResponseFormat | None:
        """Return the form of the reply that the provider is asked to enforce; None if there is none."""
        with_tools = bool(self.schemas) and mode == "native"
        if self._has_calls_in_text(phase, mode, schema):
            if not self._schema_mode.is_sent_for_calls(settings.structured_output, rules):
                return None
            answers = settings.finalize != "compose"
            whole = self._text_replies.schema(phase, schema, answers=answers, most_calls=settings.max_calls_per_wave)
            return None if whole is None else reply_form(whole)
        if schema is None or not self._schema_mode.is_sent(settings.structured_output, rules, with_tools=with_tools):
            return None
        return self._schema_mode.form(schema, rules)

    def _has_calls_in_text(self, phase: Phase, mode: Mode, schema: dict[str, Any] | None) -> bool:
        """Whether the schema of a reply is built from the tools; that of a typed answer is the user's own."""
        return mode == "text" and bool(self.schemas) and not (phase == "answer" and schema is not None)

    @property
    def _text_replies(self) -> TextReplies:
        if self._text is None:
            self._text = TextReplies(self.schemas, self._tool_choice)
        return self._text

    def _example_answers(
        self, phase: Phase, settings: LoopConfig, form: ResponseFormat | None, schema: dict[str, Any] | None
    ) -> ExampleAnswers:
        """Return how examples of text mode answer."""
        if phase == "answer" and schema is None:
            return "result" if form is None else "result object"
        if settings.finalize == "compose" or schema is not None:
            return "none"
        return "prose" if form is None else "object"

    def _stop(self, settings: LoopConfig) -> list[str]:
        """Return the stop sequences of answers."""
        return stop_sequences(with_options(settings, self.options))

    async def guarded(self, request: Sequence[AnyMessage], answer: AIMessage) -> AIMessage:
        """Return an answer that no model gave to the request; middleware overrides this to rewrite it."""
        return answer

    def answering(self, request: Sequence[AnyMessage], settings: LoopConfig, *, mode: Mode) -> ModelCall:
        """Build the model call of the answer; arguments as for `ask`."""
        attempt = Attempt(self.endpoint)
        examples = self._example_answers("answer", settings, None, None)
        rendered = self._rendered(sanitized_all(request), attempt.rules, mode, examples)
        return ModelCall(*self._bound_for("answer", settings, attempt, mode=mode), list(rendered))

    async def answer_after(
        self,
        sentence: str,
        request: Sequence[AnyMessage],
        settings: LoopConfig,
        *,
        mode: Mode,
        recover: Callable[[Exception], ModelCall | None],
        watch: StreamWatch,
    ) -> tuple[AIMessage, Exception | None]:
        """Request an answer below a fixed sentence, streamed before it, as one message.

        `recover` returns another model call after one has failed before its first token; None to give up. Returns the
        message, and the model's error if the message is the sentence alone.
        """
        model_call = self.answering(request, settings, mode=mode)
        model = PrefixedChatModel(
            model_call=model_call,
            recover=recover,
            prefix=sentence,
            settings=settings,
        )
        config = watch.gated(merge_configs(ensure_config(), {"callbacks": [watch]}))
        reply = sanitized(await model.ainvoke(model_call.request, config))
        return without_calls(
            with_usage(reply, model_call.request, settings, model_call.options.get("tools"))
        ), model.failure

    async def _ask(
        self,
        bound: Binding,
        rendered: Sequence[BaseMessage],
        settings: LoopConfig,
        rules: WireRules,
        *,
        quiet: bool,
        watch: StreamWatch | None,
        decoder: AnswerDecoder | None,
        joins_pauses: bool,
    ) -> AIMessage:
        reply = await ask_until_whole(
            bound.runnable,
            rendered,
            bound.options,
            settings,
            config=QUIET if quiet else None,
            watch=watch,
            decoder=decoder,
            joins_pauses=joins_pauses,
        )
        if watch is not None:
            watch.sent = rendered, bound.options.get("tools") or ()
        reply = with_source(sanitized(reply), self.endpoint.source)
        reply = with_usage(reply, rendered, settings, bound.options.get("tools"))
        reply = _rename_calls(reply, self._aliases.to_name) if self._renames else reply
        return self._offered.restored(reply)

    def _rendered(
        self, safe: SafeMessages, rules: WireRules, mode: Mode, examples: ExampleAnswers
    ) -> Sequence[BaseMessage]:
        """Return a sanitized request in the form that the endpoint accepts."""
        written: SafeMessages | None = None
        if mode == "text" and self.schemas:
            written = with_traits(self._text_replies.with_examples(as_text_history(safe), examples))
        elif mode == "text" or (rules.tools_with_calls and not self.schemas and safe.traits & Traits.CALLS):
            written = with_traits(as_text_history(safe))
        elif mode == "wave":
            plans = as_plans(safe)
            if self.schemas and self._schema_mode.makes_grammar(rules):
                plans = with_examples(plans, example_of_planned_answer(self.schemas), note=True)
            written = with_traits(plans)
        messages = safe if written is None else written
        if not messages.traits & self.endpoint.concerned(rules):
            return messages
        return render(messages, rules, self._aliases.to_alias, self.endpoint.source)

    def _bound_for(
        self, phase: Phase, settings: LoopConfig, attempt: Attempt, *, mode: Mode, form: ResponseFormat | None = None
    ) -> Binding:
        if attempt.is_changed:
            return self._bind(phase, settings, form, attempt.rules, mode=mode)
        key = (phase, mode, settings.model_options(), repr(form), self.endpoint.version)
        return self._bound.get(key, lambda: self._bind(phase, settings, form, attempt.rules, mode=mode))

    def _bind(
        self, phase: Phase, settings: LoopConfig, form: ResponseFormat | None, rules: WireRules, *, mode: Mode
    ) -> Binding:
        options = with_options(settings, self.options)
        for name in rules.left_out:
            options.pop(name, None)
        has_tools = bool(self.schemas) and mode == "native"
        if not has_tools:
            if mode == "text" and self.schemas:
                if form is not None:
                    options.pop("stop", None)  # it would cut the JSON; the answer is cut afterwards
                elif "stop" not in rules.left_out:
                    options["stop"] = with_result_marker(options.get("stop"))
            # Providers refuse a tool choice without tools.
            options.pop("tool_choice", None)
        options = client_options(self.model, options).options
        model = shaped(self.model, rules, has_schema=form is not None)
        bound = Binding(model, options)
        if has_tools:
            schemas, choice = self._offer(phase, rules)
            if choice is not None:
                options["tool_choice"] = choice
            bound = unwrap_binding(bind_tools(model, schemas, options))
        if form is not None:
            return bound._replace(options={**bound.options, **self._schema_mode.options(form, bound.options)})
        return bound

    def _offer(self, phase: Phase, rules: WireRules) -> tuple[list[dict[str, Any]], Any]:
        """Return the tools of a request, and its tool choice; None to leave it to the model."""
        schemas = self._offered.under(rules)
        if phase == "answer":
            return schemas, choice_of(self.model, "none") if rules.choice_none else None
        wanted = self._possible_choice() if rules.choice_forced else None
        if wanted is None or wanted == ANY_TOOL:
            return schemas, wanted and choice_of(self.model, ANY_TOOL)
        if rules.choice_named and (choice := choice_of(self.model, wanted)) is not None:
            return schemas, choice
        # A tool that cannot be required by its name is offered alone.
        alone = [schema for schema in schemas if schema["function"]["name"] == wanted]
        return alone, choice_of(self.model, ANY_TOOL)

    def _possible_choice(self) -> str | None:
        """Return the tool choice under the provider's alias; None if its tool is not offered."""
        choice = self._tool_choice
        if choice is None or choice == ANY_TOOL:
            return choice
        return self._aliases.to_alias(choice) if choice in self.schemas.names else None


def _rename_calls(message: AIMessage, rename: Any) -> AIMessage:
    names = [rename(call["name"]) for call in message.tool_calls]
    if names == [call["name"] for call in message.tool_calls]:
        return message
    calls = [{**call, "name": name} for call, name in zip(message.tool_calls, names, strict=True)]
    return message.model_copy(update={"tool_calls": calls})
