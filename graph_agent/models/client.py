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
from graph_agent.models.binding import Binding, ModelCall, stop_sequences, unwrap_binding, with_options
from graph_agent.models.continuation import ask_until_whole
from graph_agent.models.offered_tools import OfferedTools
from graph_agent.models.prefixed import PrefixedChatModel
from graph_agent.models.retry import QUIET
from graph_agent.models.sanitize import SafeMessages, ToolAliases, sanitized, sanitized_all, with_traits, without_calls
from graph_agent.models.schema_modes import SchemaMode, WireFormat, reply_form
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.text_replies import TextReplies, ignores_schema, read_by_schema, with_result_marker
from graph_agent.models.wire.answer_decoder import AnswerDecoder
from graph_agent.models.wire.clients import bind_tools, choice_of, client_options, keeps_provider_calls
from graph_agent.models.wire.examples import ExampleAnswers, example_of_planned_answer, with_examples
from graph_agent.models.wire.learn import Endpoint, LearningRequest, endpoint_of
from graph_agent.models.wire.render import render, with_source
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.shape import shaped
from graph_agent.models.wire.text_form import as_plans, as_text_history
from graph_agent.models.wire.traits import Traits

Phase = Literal["plan", "answer"]
"""`plan` asks for the next tool calls, `answer` for the text that the user receives."""
Mode = Literal["native", "text", "wave"]
"""How the model returns calls: by the provider's tool calling (`native`), as text, or in structured plans (`wave`)."""

ANY_TOOL = "any"
"""Tool choice that requires a call of some tool and leaves it to the model which one."""


class ToolSchemas(Sequence[dict[str, Any]]):
    """Tools in OpenAI's function format, built by `make` on the first access to any of them.

    Converting 1,000 functions takes ten times as long as the rest of building an agent. `names` and `len()` do not
    convert; `names` has the order of the schemas. Equal to any sequence with the same schemas.
    """

    def __init__(self, names: Sequence[str], make: Callable[[], list[dict[str, Any]]]) -> None:
        self.names = list(names)
        self._make = make
        self._made: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, schemas: Sequence[dict[str, Any]]) -> ToolSchemas:
        """Wrap schemas that are built already. Returns `schemas` itself if it is a `ToolSchemas`."""
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
        """Return the schemas, which the first call builds."""
        if self._made is None:
            self._made = self._make()
        return self._made


class ModelClient:
    """Sends the requests of one chat model, with the offered tools under names that its provider accepts (aliases).

    `ProviderToolClient` also offers tools that the provider runs.

    Args:
        model: The chat model; it is not modified.
        schemas: The offered tools, in OpenAI's function format.
        tool_choice: The tool that every planning request requires: a tool's name, or `any` for one of the model's
            choice. None, and the name of a tool that is not offered, require none.
        endpoint: The rules of the model's endpoint and those learned from its errors; found from the model by default.

    Raises:
        ConfigError: Two tool names have the same alias.
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
        self.has_provider_tools = False
        """Whether requests offer tools that the provider runs."""
        self.hides_calls = False
        """Whether LangChain's client reports a call of such a tool only at its end."""
        self._keeps_provider_calls = keeps_provider_calls(model, {})
        self.endpoint = endpoint or endpoint_of(model, {})
        """The rules of the model's endpoint, including those learned from its errors."""
        self._tool_choice = tool_choice
        self.options: Mapping[str, Any] = {}
        """Keyword arguments of every model call.

        They override the configuration's; a value of None removes an option.
        """
        self._narrower: dict[frozenset[str], ModelClient] = {}
        self._names: list[str] = []
        self.offer(schemas)
        self._schema_mode = SchemaMode(model)

    def offer(self, schemas: Sequence[dict[str, Any]]) -> None:
        """Replace the offered tools, in place, and discard the caches of the former ones.

        Names of former tools stay known, because the history may contain calls of them.

        Raises:
            ConfigError: Two tool names, of present or former tools, have the same alias (name that providers accept),
                or a name is empty.
        """
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
        """Return a client of the same model and endpoint with other tools; this client is not changed.

        Args:
            schemas: The tools to offer in place of the present ones.
            options: Keyword arguments of each model call, added to `self.options` and overriding them.
            tool_choice: The tool choice of plans; None keeps that of this client.

        Raises:
            ConfigError: Two tool names have the same alias (name that providers accept).
        """
        other = copy.copy(self)
        other.offer(schemas)
        other.options = {**self.options, **options}
        other._tool_choice = tool_choice or self._tool_choice
        return other

    def without(self, names: Collection[str]) -> ModelClient:
        """Return a client of the same model that does not offer the tools in `names`; unknown names are ignored.

        Clients are cached: the same names return the same client until `offer` is called.
        """
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
        """Send one request and return the reply, with retries, under the names and argument names of the offered tools.

        Transient errors are retried as `retry.ask` describes. If the endpoint refuses a part of the request's form
        (e.g. an option, a schema or a message format), the rule that avoids it is learned for the endpoint, and the
        request is sent again in the new form. Nothing is sent again after text has reached the reader of `watch`, or
        after the provider has run a tool. A schema that the endpoint ignores is remembered for it. A turn that the
        provider pauses is continued for an answer, not for a plan. The reply's usage is completed (`with_usage`).

        Args:
            phase: `plan` asks for calls, `answer` for the final text. An answer's request has the same tools, with tool
                choice `none` where the endpoint supports it; calls in its reply are removed.
            request: System prompt and history, with calls under the tools' own names. For an answer, the last message
                asks for it.
            settings: Model options, retries and time limits.
            mode: How the model returns calls. In `text` and `wave`, earlier calls and results are sent as text.
            quiet: Keep the reply's tokens out of the run's message stream. They are also kept out if `schema` is given
                but cannot be enforced by the provider.
            schema: JSON schema of a reply without calls; None for free text.
            watch: Records the text that has reached the reader, and whether a reply in text mode is an answer.

        Raises:
            Exception: The provider's error, if it is not transient, or the retries are used up, and no other form
                helps.
        """
        safe = sanitized_all(request)
        attempt = LearningRequest(self.endpoint)
        while True:
            form = self._form(phase, settings, attempt.rules, mode, schema)
            bound = self._bound_for(phase, settings, attempt, mode=mode, form=form)
            examples = self._example_answers(phase, settings, form, schema) if mode == "text" else "none"
            rendered = self._rendered(safe, attempt.rules, mode, examples)
            # A reply whose schema is not enforced may not fit it, and must not be shown before it is checked.
            silent = quiet or (schema is not None and form is None)
            by_schema = form is not None and self._has_calls_in_text(phase, mode, schema)
            decoder = AnswerDecoder(self._stop(settings)) if by_schema and schema is None else None
            try:
                reply = await ask_until_whole(
                    bound.runnable,
                    rendered,
                    bound.options,
                    settings,
                    config=QUIET if silent else None,
                    watch=watch,
                    decoder=decoder,
                    joins_pauses=phase == "answer",
                )
            except Exception as error:
                if watch is not None and watch.is_committed:
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
                tools = bound.options.get("tools")
                if watch is not None:
                    watch.sent = rendered, tools or ()
                reply = self._in_own_terms(with_usage(sanitized(reply), rendered, settings, tools))
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
        """Return the configured options, by LangChain's names, that the model's class or endpoint rules do not accept.

        Options that were refused only at run time are not included. Empty if all are accepted.
        """
        options = with_options(settings, self.options)
        refused = self.endpoint.rules.left_out & options.keys() - self.endpoint.learned.get("left_out", frozenset())
        return *client_options(self.model, options).unsupported, *refused

    def enforces_schema(self, schema: dict[str, Any], settings: LoopConfig, mode: Mode) -> bool:
        """Whether planning requests ask the provider to enforce a schema on a reply without calls.

        Args:
            schema: JSON schema of the answer.
            settings: `structured_output` may switch enforcement off.
            mode: How the model returns calls. False for `wave`, whose replies follow the schema of a plan; in `text`,
                the schema is a part of that of all replies.
        """
        return mode != "wave" and self._form("plan", settings, self.endpoint.rules, mode, schema) is not None

    def _form(
        self, phase: Phase, settings: LoopConfig, rules: WireRules, mode: Mode, schema: dict[str, Any] | None
    ) -> WireFormat | None:
        """Return the value of `response_format` that makes the provider enforce a schema on the reply; None to send
        none.

        In text mode with tools, that is the schema of calls and answers, unless the reply is an answer by a given
        schema. None for free text in other modes, and if the setting or the endpoint excludes a schema, also one
        together with tools.

        Args:
            phase: Whether the request asks for calls or for the answer.
            settings: The configuration, whose `structured_output` may switch this off.
            rules: The rules of the endpoint.
            mode: How the model returns calls.
            schema: JSON schema of a reply without calls; None for free text.
        """
        if self._has_calls_in_text(phase, mode, schema):
            if not self._schema_mode.is_sent_for_calls(settings.structured_output, rules):
                return None
            answers = settings.finalize != "compose"
            whole = self._text_replies.schema(phase, schema, answers=answers, most_calls=settings.max_calls_per_wave)
            return None if whole is None else reply_form(whole)
        if schema is None:
            return None
        with_tools = bool(self.schemas) and mode == "native"
        if not self._schema_mode.is_sent(settings.structured_output, rules, with_tools=with_tools):
            return None
        return self._schema_mode.form(schema, rules)

    def _has_calls_in_text(self, phase: Phase, mode: Mode, schema: dict[str, Any] | None) -> bool:
        """Whether the schema of a reply must be built from the tools, because the model writes calls as text.

        False for a typed answer, whose schema is the user's.
        """
        return mode == "text" and bool(self.schemas) and not (phase == "answer" and schema is not None)

    @property
    def _text_replies(self) -> TextReplies:
        """Builds the schemas and examples of text mode for the offered tools; created at first use."""
        if self._text is None:
            self._text = TextReplies(self.schemas, self._tool_choice)
        return self._text

    def _example_answers(
        self, phase: Phase, settings: LoopConfig, form: WireFormat | None, schema: dict[str, Any] | None
    ) -> ExampleAnswers:
        """Choose the form in which the example turns of text mode show an answer, to match the requested form of the
        reply: text or, if `form` is set, an object.

        For an answer without `schema`, it is the one after results; for a plan, that of a direct answer. No answer is
        shown if planning cannot answer (`compose`) or the user's `schema` defines its form.
        """
        if phase == "answer" and schema is None:
            return "result" if form is None else "result object"
        if settings.finalize == "compose" or schema is not None:
            return "none"
        return "prose" if form is None else "object"

    def _stop(self, settings: LoopConfig) -> list[str]:
        """Return the stop sequences of the configuration and of this client; empty if there are none."""
        return stop_sequences(with_options(settings, self.options))

    async def guarded(self, request: Sequence[AnyMessage], answer: AIMessage) -> AIMessage:
        """Return `answer` unchanged.

        A client wrapped in middleware overrides this to filter an answer that no model wrote.
        """
        return answer

    def answering(self, request: Sequence[AnyMessage], settings: LoopConfig, *, mode: Mode) -> ModelCall:
        """Build the model call for an answer, and do not send it; the parameters are those of `ask`."""
        attempt = LearningRequest(self.endpoint)
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
        """Request an answer that follows a fixed sentence, such as the notice of a limit, in one streamed message.
        Never raises a model's error.

        The sentence is streamed before the model is asked. Calls in the reply are removed.

        Args:
            sentence: Text before the answer; a blank line separates them.
            request: System prompt and history; the last message asks for the answer.
            settings: Model options, retries and time limits.
            mode: How the model returns calls.
            recover: Receives the error of a model that failed before its first token; returns the call of another
                model, or None to give up.
            watch: Records the text that has reached the reader.

        Returns:
            The message, and None if the answer is complete. Otherwise the last model's error; the message is then the
            sentence with the text received before the error.
        """
        model_call = self.answering(request, settings, mode=mode)
        model = PrefixedChatModel(
            model_call=model_call, recover=recover, prefix=sentence, settings=settings, hides_calls=self.hides_calls
        )
        config = watch.gated(merge_configs(ensure_config(), {"callbacks": [watch]}))
        reply = sanitized(await model.ainvoke(model_call.request, config))
        return without_calls(
            with_usage(reply, model_call.request, settings, model_call.options.get("tools"))
        ), model.failure

    def _in_own_terms(self, reply: AIMessage) -> AIMessage:
        """Return a reply with the name of its source, and calls with the tools' own names and argument names."""
        reply = with_source(reply, self.endpoint.source)
        return self._offered.restored(_rename_calls(reply, self._aliases.to_name) if self._renames else reply)

    def _rendered(
        self, safe: SafeMessages, rules: WireRules, mode: Mode, examples: ExampleAnswers
    ) -> Sequence[BaseMessage]:
        """Convert a sanitized request to the messages that the endpoint accepts.

        In `text` and `wave`, calls and results become text, with example turns where they help. The rest follows the
        endpoint's rules. Calls also become text if the endpoint accepts them only with tools and none are offered.

        Args:
            safe: The request.
            rules: The rules of the endpoint.
            mode: How the model returns calls.
            examples: The form in which example turns show an answer.
        """
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
        return render(
            messages,
            rules,
            self._aliases.to_alias,
            self.endpoint.source,
            keeps_provider_calls=self._keeps_provider_calls,
        )

    def _bound_for(
        self,
        phase: Phase,
        settings: LoopConfig,
        attempt: LearningRequest,
        *,
        mode: Mode,
        form: WireFormat | None = None,
    ) -> Binding:
        """Return the model with the options and tools of a request, from the cache unless the endpoint's rules are
        being tested."""
        # Rules that the endpoint may still refuse are not cached.
        if attempt.rules is not self.endpoint.rules:
            return self._bind(phase, settings, form, attempt.rules, mode=mode)
        key = (phase, mode, settings.model_options(), repr(form), self.endpoint.version)
        return self._bound.get(key, lambda: self._bind(phase, settings, form, attempt.rules, mode=mode))

    def _bind(
        self, phase: Phase, settings: LoopConfig, form: WireFormat | None, rules: WireRules, *, mode: Mode
    ) -> Binding:
        """Build the model with the options, the tools and the response format of a request, by the endpoint's rules.

        Options that the endpoint refuses are left out, a tool choice without tools, too. In text mode, a stop sequence
        ends invented results, unless a schema is sent. Raises the errors of `bind_tools`.
        """
        options = with_options(settings, self.options)
        for name in rules.left_out:
            options.pop(name, None)
        has_tools = (bool(self.schemas) or self.has_provider_tools) and mode == "native"
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
        """Return the tools to send, and the value of `tool_choice`; None leaves the choice to the model.

        For the answer, all tools are sent with a choice that forbids calls, if the endpoint can express it. For a plan,
        the configured choice applies, if its tool is offered and the endpoint supports required calls; a tool that the
        endpoint cannot require by name is offered alone, with a choice that requires any call.

        Args:
            phase: Whether the request asks for calls or for the answer.
            rules: The rules of the endpoint.
        """
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
        """Return the configured tool choice under the alias by which the provider knows the tool.

        None if there is none, or its tool is not offered.
        """
        choice = self._tool_choice
        if choice is None or choice == ANY_TOOL:
            return choice
        return self._aliases.to_alias(choice) if choice in self.schemas.names else None


def _rename_calls(message: AIMessage, rename: Any) -> AIMessage:
    """Return a message whose calls have names mapped by `rename`; the same object if none changes."""
    names = [rename(call["name"]) for call in message.tool_calls]
    if names == [call["name"] for call in message.tool_calls]:
        return message
    calls = [{**call, "name": name} for call, name in zip(message.tool_calls, names, strict=True)]
    return message.model_copy(update={"tool_calls": calls})
