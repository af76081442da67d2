"""Loads prompts: Jinja templates in YAML files, which can be replaced one by one and are validated at construction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from graph_agent.base._internal.own_files import record_file
from graph_agent.base._internal.yaml_files import parse_yaml
from graph_agent.base.errors import ConfigError, did_you_mean

VARIABLES: dict[str, frozenset[str]] = {
    "planner": frozenset({"style", "max_calls", "answers", "schema", "text", "calls_first"}),
    "text_tools": frozenset({"tools", "plan"}),
    "finalize": frozenset({"schema", "plan"}),
    "limit": frozenset({"reason", "limit"}),
    "failure": frozenset({"kind", "message"}),
    "limit_hint": frozenset({"reason", "limit"}),
    "account": frozenset({"finished", "failed", "unknown", "skipped"}),
    "delegate": frozenset({"name", "description"}),
    "summary": frozenset({"conversation", "words"}),
    "facts": frozenset({"conversation", "known", "most"}),
    "steering": frozenset({"content"}),
    "written_call": frozenset(),
    "edited_calls": frozenset({"edits"}),
    "loop_warning": frozenset({"pattern", "count", "same", "withheld"}),
}
"""Name of a prompt → variables that its template may use."""


class PromptTemplate:
    """A compiled Jinja template whose variables are checked at construction; it runs in Jinja's sandbox.

    Args:
        text: The template.
        variables: Names of the variables that it may use.
        where: Name of the template in errors, e.g. its file.

    Raises:
        ConfigError: The template has a syntax error, or uses a variable that is not in `variables`.
    """

    def __init__(self, text: str, variables: frozenset[str], where: str) -> None:
        self.where = where
        self.text = text
        """The template, before its variables have values."""
        try:
            used = meta.find_undeclared_variables(_environment().parse(text))
        except TemplateSyntaxError as error:
            raise ConfigError(f"{where}: line {error.lineno}: {(error.message or '').rstrip('.')}.") from None
        for name in sorted(used - variables):
            raise ConfigError(f"{where}: unknown variable {name!r}; {did_you_mean(name, variables)}")
        self._template: Template = _environment().from_string(text)

    def render(self, **values: Any) -> str:
        """Fill in the variables, and return the text without surrounding white space.

        Raises:
            UndefinedError: The value of a used variable is missing (Jinja's error).
            Exception: An expression of the template raised it.
        """
        return self._template.render(**values).strip()


class Prompts:
    """The prompts of one agent: those of this package, or templates that the agent gives in their place.

    Args:
        overrides: Name of a prompt → template that replaces it; None to replace none.

    Raises:
        ConfigError: A name is unknown, or a template is not a text or invalid.
    """

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        overrides = overrides or {}
        if not isinstance(overrides, Mapping):
            raise ConfigError(f"prompts={overrides!r}: give a mapping of prompt name → template text.")
        for name, text in overrides.items():
            if name not in VARIABLES:
                raise ConfigError(f"Unknown prompt {name!r}; {did_you_mean(name, VARIABLES)}")
            if not isinstance(text, str):
                raise ConfigError(f"Prompt {name!r}: give a template as text, not {text!r}.")
        self.replaced = frozenset(overrides)
        """Names of the prompts that the agent replaces."""
        self._templates = {
            name: PromptTemplate(overrides[name], variables, f"Prompt {name!r}")
            if name in overrides
            else _shipped(name)
            for name, variables in VARIABLES.items()
        }

    def render(self, prompt: str, **values: Any) -> str:
        """Return the text of a prompt.

        Args:
            prompt: Name of the prompt, a key of `VARIABLES`.
            values: A value for each variable of the prompt.

        Raises:
            Exception: The errors of `PromptTemplate.render`.
        """
        return self._templates[prompt].render(**values)

    def texts(self) -> dict[str, str]:
        """Return name → template of all prompts, before variables are filled in."""
        return {name: template.text for name, template in self._templates.items()}


def read_prompt_file(path: Path) -> str:
    """Read the template in a prompt's YAML file, whose only key is `template`.

    Also registers the file as one that the agent's own tools must not change.

    Raises:
        ConfigError: The file cannot be read or has another form.
    """
    record_file(path, "a prompt of this agent")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Prompt file {path}: {error.strerror}; name a YAML file with the key 'template'.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"Prompt file {path}: {error}.") from None
    return _parse(text, str(path))


def _parse(text: str, where: str) -> str:
    """Return the template in the text of a prompt's YAML file, whose only key is `template`.

    Raise `ConfigError`, which begins with `where`, if invalid.
    """
    content = parse_yaml(text, where)
    if not isinstance(content, dict) or not isinstance(content.get("template"), str):
        raise ConfigError(f"{where}: a prompt file has one key, 'template', with the text below it.")
    if extra := sorted(str(key) for key in content if key != "template"):
        raise ConfigError(f"{where}: unknown key {extra[0]!r}; a prompt file has one key, 'template'.")
    template: str = content["template"]
    return template


@cache
def _shipped(name: str) -> PromptTemplate:
    """Return the prompt of this package with a name."""
    file = resources.files("graph_agent.models") / "prompt_texts" / f"{name}.yaml"
    return PromptTemplate(_parse(file.read_text(encoding="utf-8"), file.name), VARIABLES[name], file.name)


@cache
def _environment() -> Environment:
    """Return the Jinja environment in which prompts are rendered: sandboxed, and strict about missing variables."""
    # Sandboxed: a prompt may come from an untrusted file.
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # The default filter escapes for HTML, which a model would read literally.
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment
