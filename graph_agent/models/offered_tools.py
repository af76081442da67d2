"""Holds the tools of a model's requests, with the names and parameters that its endpoint accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from langchain_core.messages import AIMessage

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.usage import record_warning
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.schemas import OfferedSchema, fold_schema

logger = get_logger(__name__)


class OfferedTools:
    """Converts the offered tools to a form that the endpoint accepts, and converts calls back.

    Args:
        schemas: The tools in OpenAI's function format, under their own names.
        to_alias: Returns the name under which a tool is offered.
    """

    def __init__(self, schemas: Iterable[dict[str, Any]], to_alias: Callable[[str], str]) -> None:
        self._schemas = schemas
        self._to_alias = to_alias
        self._by_form: dict[tuple[bool, bool, bool], list[dict[str, Any]]] = {}
        self._folded: dict[str, OfferedSchema] = {}
        """Tool name → its converted parameters, if arguments were renamed or grouped."""

    def under(self, rules: WireRules) -> list[dict[str, Any]]:
        """Return the tools in the form that an endpoint accepts; cached per form.

        Names are the aliases, i.e. names that each provider accepts. A tool whose parameters no object can satisfy is
        left out, with a logged and recorded warning.

        Args:
            rules: The rules of the endpoint.
        """
        form = (rules.root_combinators, rules.free_keys, rules.text_enums)
        if form not in self._by_form:
            functions = [self._function(schema["function"], rules) for schema in self._schemas]
            self._by_form[form] = [
                {**schema, "function": function}
                for schema, function in zip(self._schemas, functions, strict=True)
                if function is not None
            ]
        return self._by_form[form]

    def restored(self, reply: AIMessage) -> AIMessage:
        """Return a reply whose calls have the tools' own argument names, undoing the conversion of `under`.

        The calls must already have the tools' own names. Returns the same object if nothing changes.
        """
        if not self._folded:
            return reply
        calls = [
            {**call, "args": self._folded[call["name"]].restored(call["args"])}
            if call["name"] in self._folded
            else call
            for call in reply.tool_calls
        ]
        return reply if calls == reply.tool_calls else reply.model_copy(update={"tool_calls": calls})

    def _function(self, given: dict[str, Any], rules: WireRules) -> dict[str, Any] | None:
        """Return a tool's function as it is offered: under its alias (a name that providers accept), with parameters
        that the endpoint accepts. Renamed arguments are recorded for `restored`.

        Returns None, with a logged and recorded warning, if no object satisfies the tool's parameters.
        """
        named = {**given, "name": self._to_alias(given["name"])}
        if rules.root_combinators and rules.free_keys and not rules.text_enums:
            return named
        folded = fold_schema(
            given.get("parameters"),
            root_combinators=rules.root_combinators,
            free_keys=rules.free_keys,
            text_enums=rules.text_enums,
        )
        if folded is None:
            warning = f"The tool {given['name']!r} is not offered to the model: no object fits its schema."
            logger.warning("%s", warning)
            record_warning(warning)
            return None
        if folded.names:
            self._folded[given["name"]] = folded
        return {**named, "parameters": folded.parameters}
