"""Holds the models of one agent: its own, the models selected by runs, the fallbacks; sends them their requests."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables.config import ensure_config, merge_configs

from graph_agent._internal.lru import BoundedCache
from graph_agent.errors import ConfigError
from graph_agent.models.capabilities import choose_tool_calling
from graph_agent.models.continuation import ask_until_whole
from graph_agent.models.offered_tools import OfferedTools
from graph_agent.models.prefixed import PrefixedChatModel
from graph_agent.models.retry import QUIET
from graph_agent.models.sanitize import (
    SafeMessages,
    ToolAliases,
    sanitized,
    sanitized_all,
    with_traits,
    without_calls,
)
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.structured import (
    Binding,
    ModelCall,
    ResponseFormat,
    SchemaMode,
    StructuredPlanner,
    reply_form,
    stop_sequences,
    unwrap_binding,
    with_options,
)
from graph_agent.models.text_replies import TextReplies, ignores_schema, read_by_schema, with_result_marker
from graph_agent.models.wire.answer_decoder import AnswerDecoder
from graph_agent.models.wire.client_retries import without_client_retries
from graph_agent.models.wire.clients import bind_tools, choice_of, client_options
from graph_agent.models.wire.examples import ExampleAnswers
from graph_agent.models.wire.learn import Attempt, Endpoint, endpoint_of
from graph_agent.models.wire.render import render, with_source
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.shape import adapted_copy, shaped
from graph_agent.models.wire.text_form import as_plans, as_text_history
from graph_agent.models.wire.traits import Traits
from graph_agent.settings.config import LoopConfig
from graph_agent.usage import name_of_model, with_usage

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
        """What the model's endpoint accepts, with what was learned of it."""
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
            rendered = self._rendered(safe, attempt.rules, mode, self._example_answers(settings, form, schema))
            silent = quiet or (schema is not None and form is None)
            by_schema = mode == "text" and bool(self.schemas) and form is not None
            decoder = AnswerDecoder(self._stop(settings)) if by_schema and schema is None else None
            try:
                reply = await self._ask(
                    bound, rendered, settings, attempt.rules, quiet=silent, watch=watch, decoder=decoder
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
                    examples = self._example_answers(settings, changed, schema)
                    messages = list(self._rendered(safe, rules, mode, examples))
                    # Models are compared by all their attributes, because two are equal if their fields are.
                    return bool((other.options, vars(other.runnable), messages) != sent)

                if not attempt.learn_from(error, bound.options, changes_request):
                    raise
            else:
                attempt.confirm()
                if by_schema:
                    if not (decoder and decoder.is_answer) and ignores_schema(reply):
                        self.endpoint.learn_ignored_schema()
                    reply, is_answer = read_by_schema(reply, decoder or AnswerDecoder(), schema, self._stop(settings))
                    if watch is not None:
                        watch.is_answer = is_answer
                # A model may call a tool in its answer regardless; the call is never run, so it is removed.
                return reply if phase == "plan" else without_calls(reply)

    def unsupported_options(self, settings: LoopConfig) -> tuple[str, ...]:
        """Return the options of the configuration that the model's class cannot send, under LangChain's names."""
        return client_options(self.model, with_options(settings, self.options)).unsupported

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
        if mode == "text" and self.schemas:
            if not self._schema_mode.is_sent_for_calls(settings.structured_output, rules):
                return None
            answers = settings.finalize != "compose"
            whole = self._text_replies.schema(phase, schema, answers=answers, most_calls=settings.max_calls_per_wave)
            return None if whole is None else reply_form(whole)
        if schema is None or not self._schema_mode.is_sent(settings.structured_output, rules, with_tools=with_tools):
            return None
        return self._schema_mode.form(schema)

    @property
    def _text_replies(self) -> TextReplies:
        if self._text is None:
            self._text = TextReplies(self.schemas, self._tool_choice)
        return self._text

    def _example_answers(
        self, settings: LoopConfig, form: ResponseFormat | None, schema: dict[str, Any] | None
    ) -> ExampleAnswers:
        """Return how examples of text mode answer."""
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
        examples = self._example_answers(settings, None, None)
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
    ) -> AIMessage:
        reply = await ask_until_whole(
            bound.runnable,
            rendered,
            bound.options,
            settings,
            config=QUIET if quiet else None,
            watch=watch,
            decoder=decoder,
        )
        if watch is not None:
            watch.sent = rendered, bound.options.get("tools") or ()
        reply = with_source(sanitized(reply), rules)
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
            written = with_traits(as_plans(safe))
        messages = safe if written is None else written
        if not messages.traits & self.endpoint.concerned(rules):
            return messages
        return render(messages, rules, self._aliases.to_alias)

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
        model = shaped(self.model, rules)
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


Resolve = Callable[[Any], BaseChatModel]
"""Returns the chat model for a name or an object; raises `ConfigError` if there is none."""

ModelWrapper = Callable[[ModelClient, StructuredPlanner], tuple[ModelClient, StructuredPlanner]]

"""Wraps the two clients of a model, e.g. in middleware."""

_KEPT = 32
"""Maximum number of cached models selected by runs; the oldest is evicted first."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundModel:
    """A model with its clients and capabilities."""

    name: str
    """Its name in messages to users."""
    given: Any
    """The object it was built from; the reference keeps its `id` from being reused as a cache key."""
    client: ModelClient
    planner: StructuredPlanner
    tool_calling: Mode
    """How the model returns calls if the configuration is `auto`."""
    takes_tools: bool
    """Whether its profile declares support of tools; False without an entry."""
    window: int | None
    """Maximum input tokens by its profile; None if unknown."""
    is_known: bool
    """Whether the rules of its endpoint are those of a known provider or server."""
    _learned: list[int] = field(default_factory=list, init=False)

    @property
    def learned_window(self) -> int | None:
        """Maximum input tokens that the model's server has named, for the life of the process; None if unknown."""
        return self._learned[-1] if self._learned else None

    def learn_window(self, tokens: int) -> None:
        """Record the maximum input tokens that the model's server names."""
        self._learned[:] = [tokens]


def leave_unwrapped(client: ModelClient, planner: StructuredPlanner) -> tuple[ModelClient, StructuredPlanner]:
    """Return both clients unchanged."""
    return client, planner


class ModelPool:
    """Builds and caches the models of one agent.

    Args:
        config: The agent's configuration; the models it names are resolved here.
        resolve: Returns the chat model for the value in a configuration or a run.
        plan_schema: JSON schema of a structured plan.
        plan_tool: Name of the tool that receives a structured plan.
        around: Wraps the clients of each model; the default does not.

    Raises:
        ConfigError: If `config` names a model that cannot be built.
    """

    def __init__(
        self,
        own: BaseChatModel,
        *,
        config: LoopConfig,
        resolve: Resolve,
        schemas: Sequence[dict[str, Any]],
        plan_schema: dict[str, Any],
        plan_tool: str,
        around: ModelWrapper = leave_unwrapped,
    ) -> None:
        self._own = own
        self._resolve = resolve
        self._schemas = schemas
        self._plan_schema = plan_schema
        self._plan_tool = plan_tool
        self._wrap = around
        self._lock = threading.Lock()
        self._run_models: dict[object, BoundModel] = {}
        self._built: dict[object, BoundModel] = {}
        for name, wanted in (("model", [config.model or own]), ("fallback_models", config.fallback_models)):
            for given in wanted:
                self._built[_key(given, config)] = self._build(given, name, config)
        self.drops_tools: dict[str, bool] = {}
        """Name of a model → whether its server leaves the tools out of the prompt; absent if unknown."""
        self.first = self._built[_key(config.model or own, config)]
        """The model of runs that do not select another."""

    async def chain(self, settings: LoopConfig) -> list[BoundModel]:
        """Return the distinct models of a run: its model, then the fallbacks in order."""
        found = [await self.ready(settings.model or self._own, "model", settings)]
        found += [await self.ready(given, "fallback_models", settings) for given in settings.fallback_models]
        return list(dict.fromkeys(found))

    async def ready(self, given: Any, field: str, settings: LoopConfig) -> BoundModel:
        """Build the model of a setting, or return it from the cache; raise `ConfigError` if it cannot be built."""
        key = _key(given, settings)
        ready = self._built.get(key) or self._run_models.get(key)
        if ready is None:
            # In a thread: importing a provider's package and building its client may block.
            ready = await asyncio.to_thread(self._build, given, field, settings)
            with self._lock:
                ready = self._run_models.setdefault(key, ready)
                if len(self._run_models) > _KEPT:
                    del self._run_models[next(iter(self._run_models))]
        return ready

    def _build(self, given: Any, field: str, settings: LoopConfig) -> BoundModel:
        try:
            found = given if given is self._own else self._resolve(given)
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}") from error
        model = adapted_copy(without_client_retries(found), found)
        name = given if isinstance(given, str) else name_of_model(model) or type(model).__name__
        endpoint = endpoint_of(model, settings.rules_of(name, name_of_model(model)))
        window = (model.profile or {}).get("max_input_tokens") or endpoint.rules.window
        client, planner = self._wrap(
            ModelClient(model, self._schemas, endpoint=endpoint),
            StructuredPlanner(model, self._plan_schema, self._plan_tool, endpoint),
        )
        return BoundModel(
            name=name,
            given=given,
            client=client,
            planner=planner,
            tool_calling=choose_tool_calling(model, "auto") if endpoint.rules.tools else "text",
            takes_tools=bool((model.profile or {}).get("tool_calling")),
            window=window if isinstance(window, int) and window > 0 else None,
            is_known=endpoint.rules.is_known,
        )


def require_chat_model(given: Any) -> BaseChatModel:
    """Return a chat model unchanged; raise `ConfigError` for anything else, e.g. a name."""
    if isinstance(given, BaseChatModel):
        return given
    raise ConfigError(
        f"{given!r} is not a chat model, and this graph was built without a resolver of names; "
        "pass resolve= to build_graph, or use create_graph_agent."
    )


def _key(given: Any, settings: LoopConfig) -> object:
    # Chat models are not hashable.
    key = given if isinstance(given, str) else id(given)
    return (key, repr(settings.model_rules)) if settings.model_rules else key
