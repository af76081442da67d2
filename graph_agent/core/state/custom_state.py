"""Handles the own state fields of an agent, declared by its `state_schema` or middleware: schemas, checks and access.

Values in checkpoints must be plain: JSON types, dates, messages, and others that LangGraph's strict serializer
restores. A reducer is the function in a field's annotation that combines the present value and a write.
"""

from __future__ import annotations

import copy
import functools
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isclass, signature
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin, get_type_hints, is_typeddict

from langgraph.channels import BinaryOperatorAggregate, EphemeralValue, LastValue, UntrackedValue
from langgraph.channels.base import BaseChannel
from langgraph.errors import InvalidUpdateError
from langgraph.managed.base import is_managed_value
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from graph_agent.base._compat import read_running_state
from graph_agent.base._internal.failure_log import exception_text, get_logger, log_user_error
from graph_agent.base.errors import ConfigError, InputError, did_you_mean
from graph_agent.core.state.messages import first_unplain
from graph_agent.core.state.schema import AgentInput, AgentOutput, AgentState, PlanState

logger = get_logger("graph_agent.state.custom_state")

_SHARED = frozenset({"messages", "structured_response", "jump_to", "remaining_steps"})
"""Fields of LangChain's and LangGraph's agent states that this package has itself; a schema's annotation is ignored."""
RESERVED = frozenset(PlanState.__annotations__) - _SHARED
"""Fields of the agent's own state that a schema must not use."""


class HookedPlanState(PlanState, total=False):
    """Input of the node `plan` in an agent with hooks: the state, and the target of a hook's jump."""

    jump_to: Annotated[str | None, EphemeralValue(str, guard=False)]
    """`end`, `model` or `tools`, set by a hook of middleware for one superstep; None without a jump."""


class LastWrite(LastValue[Any]):
    """A channel that holds the last value; of several calls of one wave, the last in the plan's order wins."""

    def update(self, values: Sequence[Any]) -> bool:
        """Set the value to the last of a superstep's writes, and return whether there was any."""
        return super().update(values[-1:])


class ReducedWrites(BinaryOperatorAggregate[Any]):
    """A channel that combines writes by a reducer; of several `Overwrite`s of a superstep, the last in plan order wins.

    LangGraph stores the writes of parallel calls before it combines them. If the reducer raises for one of several
    writes, that write is logged and left out, as no run could load the session otherwise.
    """

    def update(self, values: Sequence[Any]) -> bool:
        """Apply one superstep's writes, and return whether any was applied.

        If there are several, a write for which the reducer raises is left out and logged; a single one raises
        `InputError`. Of several overwrites, the last counts, and other writes are ignored.
        """
        # LangGraph's channel raises for a second overwrite in one superstep.
        if overwrites := [value for value in values if isinstance(value, Overwrite)]:
            return super().update(overwrites[-1:])
        if len(values) < 2:
            return self._update_once(values)
        changed = False
        for value in values:
            before = copy.copy(self.value)  # a reducer may change its arguments before it raises
            try:
                changed |= super().update([value])
            except Exception as error:  # noqa: BLE001 - a reducer may raise anything
                self.value = before
                what = f"A write of parallel calls to {self.key!r} was left out: the reducer {_name_of(self.operator)}"
                log_user_error(logger, what, error)
        return changed

    def _update_once(self, values: Sequence[Any]) -> bool:
        """Apply one write or none, and return whether there was one; raise `InputError` if the reducer raises."""
        try:
            return super().update(values)
        except Exception as error:
            raise InputError(_refusal(self.key, values[0], self.operator, error)) from error


@dataclass(frozen=True)
class CustomState:
    """The own state fields of one agent, and the state schemas that contain them; empty for an agent without any."""

    names: tuple[str, ...] = ()
    """Names of the fields that can be written."""
    inputs: frozenset[str] = frozenset()
    """Names of the fields that the input of a run may set."""
    outputs: tuple[str, ...] = ()
    """Names of the fields that are part of a run's output."""
    stored: frozenset[str] = frozenset()
    """Names of the fields that checkpoints store, so that their values must be plain."""
    reduced: Mapping[str, tuple[Any, Callable[[Any, Any], Any]]] = field(default_factory=dict)
    """Name of each field with a reducer → its type and the reducer."""
    state_schema: Any = AgentState
    input_schema: Any = AgentInput
    output_schema: Any = AgentOutput
    hook_schema: Any = None
    """Schema of the state that hooks of middleware receive; None without own fields."""
    readable: tuple[str, ...] = field(default=tuple(AgentState.__annotations__))
    """Names of all fields that tools and middleware may read."""

    def fault(self, name: str, value: Any, earlier: Sequence[Any] = ()) -> str | None:
        """Return what is wrong with a write to a field, as a clause for an error message; None if the write is allowed.

        Wrong are an unknown field, a value that checkpoints cannot hold, if they store the field, and a value that the
        field's reducer raises for.

        Args:
            name: Name of the field, known or not.
            value: The written value.
            earlier: Earlier writes of the same superstep to the field, which the reducer combines first.
        """
        if name not in self.names:
            return f"{name!r} is no own state field of the agent"
        if name in self.stored and (fault := _fault(name, value)) is not None:
            return fault
        if (error := self._reducer_error(name, (*earlier, value))) is None:
            return None
        return f"the state field {name!r} was given a value that its reducer cannot use ({exception_text(error)})"

    def _reducer_error(
        self, name: str, values: Sequence[Any], current: Mapping[str, Any] | None = None
    ) -> Exception | None:
        """Return the exception that a field's reducer raises for values, applied in order; None if it accepts them.

        LangGraph stores a write before it calls the reducer, so the session could not be read after a failure. The
        exception of a user's reducer is logged.

        Args:
            name: Name of the field; None is returned for one without a reducer.
            values: The values to apply.
            current: Current values by field; None to read those of the running node. Outside a node no values are
                known, and then only `TypeError`, `AttributeError` and `InvalidUpdateError` count, which do not depend
                on them.
        """
        if name not in self.reduced:
            return None
        channel = BinaryOperatorAggregate(*self.reduced[name])
        known = read_running_state([name]) if current is None else current
        errors: tuple[type[Exception], ...] = (TypeError, AttributeError, InvalidUpdateError)
        if name in known:
            channel = channel.from_checkpoint(copy.copy(known[name]))
        # A reducer may fail on an empty field for a reason that has nothing to do with the new value.
        if name in known or current is not None:
            errors = (Exception,)
        try:
            for each in values:
                channel.update([copy.copy(each)])  # copies, because reducers may change their arguments
        except errors as error:
            if not isinstance(error, InvalidUpdateError):
                log_user_error(logger, f"The reducer {_name_of(self.reduced[name][1])} of the field {name!r}", error)
            return error
        except Exception as error:  # noqa: BLE001 - a reducer may raise anything
            logger.debug("The reducer of the field %s fails on an empty field: %s", name, exception_text(error))
        return None

    def check(self, update: Mapping[str, Any], current: Mapping[str, Any] | None = None) -> None:
        """Raise `InputError` for the first value of an input that is not plain, or that its field's reducer cannot use.

        Fields that are not the agent's own are skipped; fields that are not stored are checked, too.

        Args:
            update: Field → value.
            current: Values before the input by field; None to read those of the running node, if there is one.
        """
        for name, value in ((name, value) for name, value in update.items() if name in self.names):
            if (fault := _fault(name, value)) is not None:
                raise InputError(f"The input cannot be used: {fault}.")
            if (error := self._reducer_error(name, [value], current)) is not None:
                raise InputError(_refusal(name, value, self.reduced[name][1], error)) from error

    def check_input(self, update: Mapping[str, Any]) -> None:
        """Raise `InputError` if an input may not set one of these fields of the state, or for a value that `check`
        refuses. `update` is field → value; `check` refuses values that checkpoints cannot hold or that the field's
        reducer cannot use."""
        for name in update:
            if name not in self.inputs:
                known = did_you_mean(name, sorted(self.inputs)) if self.inputs else "this agent has no own fields."
                raise InputError(f"state: unknown field {name!r}; {known}")
        self.check(update)

    def current(self, *, messages: bool = True) -> dict[str, Any]:
        """Return the values of the running node's state: messages, structured response and own fields, as far as set.

        Args:
            messages: Whether to include the messages.
        """
        return read_running_state([*(["messages"] if messages else []), "structured_response", *self.names])


NO_OWN_FIELDS = CustomState()
"""The own fields of an agent without any."""


def _refusal(name: str, value: Any, reducer: Callable[[Any, Any], Any], error: Exception) -> str:
    """Return the message of an error for a value that a reducer cannot use."""
    return (
        f"The state field {name!r} was given {reprlib.repr(value)}, which its reducer {_name_of(reducer)} cannot use "
        f"({exception_text(error)}). Give a value that the reducer accepts, or change the reducer in the state_schema."
    )


def _name_of(reducer: Callable[[Any, Any], Any]) -> str:
    """Return the name of a reducer; its `repr` for an object without a name."""
    return getattr(reducer, "__name__", repr(reducer))


def _fault(name: str, value: Any) -> str | None:
    """Return why checkpoints cannot hold a value, as a clause with the field, path and type; None if they can."""
    if (found := first_unplain(value)) is None:
        return None
    where, kind = found
    return (
        f"the state field {name!r} was given a value that checkpoints cannot hold ({name}{where} is of type {kind}; "
        "store plain values: text, numbers, lists, dicts, dates, messages)"
    )


def custom_state(state_schema: Any, middleware: Sequence[Any] = (), *, jumps: bool = False) -> CustomState:
    """Return the own fields declared by an agent's `state_schema` and by the schemas of its middleware.

    A field in several schemas has the annotation of the last of them, which is that of `state_schema`. Fields that
    LangChain's schemas share with this package, such as `messages`, are skipped. Without fields and jumps,
    `NO_OWN_FIELDS` is returned.

    Args:
        state_schema: A `TypedDict` class; None for no own fields.
        middleware: The state schemas of the middleware, in order.
        jumps: Whether hooks of middleware may set `jump_to`.

    Raises:
        ConfigError: A schema is no `TypedDict`, names a type that cannot be found, has a field that the agent itself
            uses, or a reducer that cannot be called with two values.
    """
    fields: dict[str, Any] = {}
    for schema in [*middleware, *([state_schema] if state_schema is not None else [])]:
        for name, annotation in _hints(schema).items():
            # LangChain's own state schemas repeat these fields.
            if name in _SHARED:
                continue
            if name in RESERVED or name.startswith("__"):
                raise ConfigError(
                    f"state_schema: {getattr(schema, '__name__', schema)!s}.{name} has the name of a field of the "
                    f"agent itself; rename it. Taken: {', '.join(sorted(RESERVED))}."
                )
            fields[name] = annotation
    if not fields and not jumps:
        return NO_OWN_FIELDS
    return _custom_state({name: _Field.of(annotation) for name, annotation in fields.items()}, jumps=jumps)


def _hints(schema: Any) -> dict[str, Any]:
    """Return field → annotation of a `TypedDict`; raise `ConfigError` for another value, or if a type cannot be
    found."""
    if not is_typeddict(schema) and not hasattr(schema, "__total__"):
        raise ConfigError(
            f"state_schema={schema!r}: give a TypedDict class, such as a subclass of LangChain's AgentState."
        )
    try:
        return get_type_hints(schema, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"state_schema: a type of {schema.__name__} cannot be found ({error}); define it at the top of its module."
        ) from error


@dataclass(frozen=True)
class _Field:
    """One own state field, as its annotation declares it."""

    annotation: Any
    """The annotation with the channel that this package uses for the field."""
    given: bool
    """Whether an input may set the field."""
    returned: bool
    """Whether the field is part of a run's output."""
    stored: bool
    """Whether checkpoints store the field: not for an `UntrackedValue`."""
    managed: bool
    """Whether LangGraph computes the value, as for `RemainingSteps`, so that nothing writes it."""
    type: Any
    """The type without metadata."""
    reducer: Callable[[Any, Any], Any] | None
    """Combines the present value and a write; None if the last write wins, or if the annotation has a channel."""

    @classmethod
    def of(cls, annotation: Any) -> _Field:
        """Read a field from its annotation; raise `ConfigError` for a reducer that cannot be called with two values.

        A channel or a managed value in the metadata is kept. Otherwise the last metadata is the reducer, if it is
        callable and no class; without one, the last write counts. LangChain's `OmitFromSchema` excludes the field from
        input or output.
        """
        type_, metadata = _unwrapped(annotation)
        omitted = [meta for meta in metadata if _is_omission(meta)]
        kept = [meta for meta in metadata if not _is_omission(meta)]
        channels = [
            meta for meta in kept if isinstance(meta, BaseChannel) or (isclass(meta) and issubclass(meta, BaseChannel))
        ]
        managed = any(is_managed_value(meta) for meta in kept)
        reducer: Callable[[Any, Any], Any] | None = None
        if not channels and not managed:
            if kept and _is_reducer(kept[-1]):
                reducer = _checked_reducer(kept[-1])
                kept = [*kept[:-1], ReducedWrites(type_, reducer)]
            else:
                kept = [*kept, LastWrite(type_)]
        return cls(
            Annotated[type_, *kept] if kept else type_,
            given=not managed and not any(meta.input for meta in omitted),
            returned=not managed and not any(meta.output for meta in omitted),
            stored=not any(isinstance(meta, UntrackedValue) or meta is UntrackedValue for meta in channels),
            managed=managed,
            type=type_,
            reducer=reducer,
        )


def _custom_state(fields: Mapping[str, _Field], *, jumps: bool) -> CustomState:
    """Build the state schemas of an agent with own fields: those of the state, input, output and hooks.

    The input has only fields that callers may give, the output only those that are returned. Managed values are no
    names of fields.

    Args:
        fields: Name → field.
        jumps: Whether hooks of middleware may set `jump_to`, which the schemas of state and hooks then have.
    """
    make: Any = TypedDict  # built at run time, which type checkers do not follow

    def schema(name: str, base: Any, chosen: Mapping[str, Any]) -> Any:
        return make(name, {**get_type_hints(base, include_extras=True), **chosen}, total=False)

    annotations = {name: each.annotation for name, each in fields.items()}
    # Set by hooks of middleware for one superstep.
    jump = get_type_hints(HookedPlanState, include_extras=True)["jump_to"]
    extra: dict[str, Any] = {"jump_to": jump} if jumps else {}
    written = tuple(name for name, each in fields.items() if not each.managed)
    given = {name: each.annotation for name, each in fields.items() if each.given}
    optional = {name: NotRequired[annotation] for name, annotation in given.items()}
    returned = {name: each.annotation for name, each in fields.items() if each.returned}
    hints = get_type_hints(AgentState, include_extras=True)
    seen = {name: hints[name] for name in ("messages", "structured_response")}
    return CustomState(
        names=written,
        inputs=frozenset(given),
        outputs=tuple(returned),
        stored=frozenset(name for name, each in fields.items() if each.stored),
        reduced={name: (each.type, each.reducer) for name, each in fields.items() if each.reducer is not None},
        state_schema=schema("AgentState", AgentState, {**annotations, **extra}),
        input_schema=make("AgentInput", {**get_type_hints(AgentInput, include_extras=True), **optional}),
        output_schema=schema("AgentOutput", AgentOutput, returned),
        hook_schema=make("HookState", {**seen, **annotations, **extra}, total=False),
        readable=(*AgentState.__annotations__, *annotations),
    )


def _unwrapped(annotation: Any) -> tuple[Any, list[Any]]:
    """Split an annotation into its type and the list of its metadata; `Required` and `NotRequired` are removed."""
    metadata: list[Any] = []
    while (origin := get_origin(annotation)) in (Annotated, Required, NotRequired):
        arguments = get_args(annotation)
        if origin is Annotated:
            metadata = [*arguments[1:], *metadata]
        annotation = arguments[0]
    return annotation, metadata


def _is_omission(meta: Any) -> bool:
    """Whether metadata is LangChain's `OmitFromSchema`. If LangChain's module was not imported, nothing can be one."""
    types = sys.modules.get("langchain.agents.middleware.types")
    return types is not None and isinstance(meta, types.OmitFromSchema)


def _is_reducer(meta: Any) -> bool:
    """Whether metadata is a reducer: a callable that is no class. Raises `ConfigError` if two values cannot be passed
    to it."""
    if not callable(meta) or isclass(meta):
        return False
    try:
        signature(meta).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"state_schema: the reducer {_name_of(meta)} cannot be called with two values ({error}); take the present "
            "one and the new one."
        ) from None
    except ValueError:
        pass  # built-in functions may have no signature
    return True


def _checked_reducer(reducer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the reducer wrapped in a check, which raises `InvalidUpdateError` if it returns a type that checkpoints
    cannot hold.

    Only the value itself and its direct entries are checked.
    """

    @functools.wraps(reducer)
    def checked(left: Any, right: Any) -> Any:
        value = reducer(left, right)
        # The values on both sides have been checked, so only a new type at the top is possible in practice.
        if (found := first_unplain(value, depth=1)) is not None:
            raise InvalidUpdateError(
                f"The reducer {_name_of(reducer)} built a {found[1]}, which checkpoints cannot hold."
            )
        return value

    return checked
