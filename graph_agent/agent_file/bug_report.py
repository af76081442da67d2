"""Writes what a bug report needs: versions, settings, rules of the models, and the last errors, without secrets.

Three layers keep secrets out. Settings whose names hold secrets are left out. Each value of the environment and of the
agent file's headers, keys and URLs is replaced wherever it occurs. What has the form of a key is masked.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from graph_agent.agent_file.model_check import CheckResult
from graph_agent.base._internal.extras import PACKAGE
from graph_agent.base._internal.secrets import mask_secrets
from graph_agent.base.database_urls import MEMORY, file_of, is_postgres, without_password
from graph_agent.base.errors import ConfigError, GraphAgentError

if TYPE_CHECKING:
    from graph_agent.agent_file.spec import AgentSpec

_FAMILIES = ("langgraph", "langchain", "openai", "anthropic", "google-genai", "mcp", "a2a", "fastapi", "psycopg")
"""Beginnings of the names of packages whose versions are reported."""
_WITHOUT = re.compile(
    r"header|auth|key|token(?!s)|secret|password|credential|cookie|env\b|environment|args|prompt", re.I
)
"""Names of settings that may hold secrets, or the texts of the agent's author."""
_VARIABLES = re.compile(
    r"GRAPH_AGENT|OPENAI|ANTHROPIC|AZURE|GOOGLE|GEMINI|OTEL|LANGSMITH|LANGCHAIN|DEBUG_MOCK|PROXY", re.I
)
"""Environment variables whose names are reported if they are set."""
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,31}://[^\s'\"<>]+", re.I)
_SHORTEST = 4
"""Minimum characters of a value that is replaced: shorter ones, such as `1`, occur in every text."""
_MOST_SESSIONS, _MOST_ERRORS, _MOST_CHARS = 20, 20, 500
_ERRORS = ("error", "warning", "limit")


async def bug_report(
    config: str, db: str | None, results: Iterable[CheckResult], environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return the content of a bug report as plain JSON, without secrets; never raises for an invalid agent file.

    The keys are `report` (1), `written`, `versions`, `checks`, `agent_file`, `model_rules`, `last_errors` and
    `environment`, the names of variables that are set. For a file that cannot be read, `agent_file` is `{"error": …}`,
    `model_rules` is absent, and `last_errors` is empty; for a database that cannot be read, it is `{"error": …}`.

    Args:
        config: Path of the agent file, which may be missing or invalid.
        db: Address of the database; None for the one in the file.
        results: The results of the checks of `doctor`.
        environment: The environment variables, whose values are kept out.
    """
    from graph_agent.agent_file.spec import load_spec

    spec, fault = None, ""
    try:
        spec = load_spec(config)
    except ConfigError as error:
        fault = str(error)
    found: dict[str, Any] = {"checks": [asdict(each) for each in results]}
    if spec is None:
        found["agent_file"] = {"error": fault}
    else:
        found["agent_file"] = _settings(spec)
        found["model_rules"] = await asyncio.to_thread(_rules, spec)
        found["last_errors"] = await _last_errors(db or spec.db)
    # The names alone, since a value may be a secret under any name.
    found["environment"] = sorted(name for name in environment if _VARIABLES.search(name))
    given = spec.model_dump(mode="json") if spec is not None else await asyncio.to_thread(_raw, config)
    secrets = dict(_values(environment, given, db))
    report = {"report": 1, "written": datetime.now(UTC).isoformat(timespec="seconds"), "versions": _versions()}
    cleaned = _without(found, secrets)
    # Cut only now: a part of a secret would not be recognized.
    if isinstance(errors := cleaned.setdefault("last_errors", []), list):
        cleaned["last_errors"] = [{name: _cut(each[name]) for name in each} for each in errors]
    return {**report, **cleaned}


def _versions() -> dict[str, str]:
    """Return name → version of this package, Python, SQLite, the operating system and the packages in `_FAMILIES`."""
    names = {each.metadata["Name"].lower(): each.version for each in metadata.distributions() if each.metadata["Name"]}
    others = {name: version for name, version in sorted(names.items()) if name.startswith(_FAMILIES)}
    return {
        PACKAGE: metadata.version(PACKAGE),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "os": platform.platform(),
        **others,
    }


def _settings(spec: AgentSpec) -> dict[str, Any]:
    """Return the keys of an agent file that are set, without the description, the prompt, and entries that may hold
    secrets.

    The database's URL has no password, and `system_prompt_chars` is the length of the prompt.
    """
    given = spec.model_dump(mode="json", exclude_defaults=True, exclude={"path", "description", "db"})
    kept: dict[str, Any] = _allowed(given)
    return {**kept, "db": without_password(spec.db), "system_prompt_chars": len(str(spec.system_prompt or ""))}


def _allowed(value: Any) -> Any:
    """Return a JSON value without the entries whose names may hold secrets."""
    if isinstance(value, dict):
        return {name: _allowed(each) for name, each in value.items() if not _WITHOUT.search(name)}
    return [_allowed(each) for each in value] if isinstance(value, list) else value


def _rules(spec: AgentSpec) -> dict[str, Any]:
    """Return, by the name of each model, the rules of its endpoint that differ from the usual ones, and its provider.

    The rules describe what the endpoint accepts in a request. The models are those of `model` and
    `config.fallback_models`; one that cannot be built has `{"error": …}`.
    """
    from graph_agent.agent_file.factory import model_candidates
    from graph_agent.base.settings.config import LoopConfig
    from graph_agent.base.usage import name_of_model
    from graph_agent.models.wire.learn import endpoint_of
    from graph_agent.models.wire.rules import WireRules

    own = LoopConfig(model_rules=spec.config.get("model_rules") or {})
    found: dict[str, Any] = {}
    for name, model in [*model_candidates(spec), *model_candidates(spec, fallbacks=True)]:
        if isinstance(model, ConfigError):
            found[str(name)] = {"error": str(model)}
            continue
        rules = endpoint_of(model, own.rules_of(str(name), name_of_model(model))).rules
        changed = {each.name: getattr(rules, each.name) for each in fields(WireRules)}
        usual = WireRules()
        found[str(name)] = {
            key: sorted(value) if isinstance(value, frozenset) else value
            for key, value in changed.items()
            if key == "provider" or value != getattr(usual, key)
        }
    return found


async def _last_errors(address: str) -> Any:
    """Return the newest errors, warnings and limits of the newest sessions, without the conversations.

    They are ordered by session, the newest first: at most `_MOST_ERRORS` of at most `_MOST_SESSIONS` sessions. Empty
    for a database in memory or a missing file; `{"error": …}` for a database that cannot be read.
    """
    if address == MEMORY or (not is_postgres(address) and not file_of(address).exists()):
        return []
    from graph_agent.session.history import EventReader, list_threads
    from graph_agent.storage.checkpoints.open import open_reader

    found: list[dict[str, Any]] = []
    try:
        async with open_reader(address) as saver:
            for number, session_id in enumerate(await list_threads(saver, limit=_MOST_SESSIONS), 1):
                found += await _errors_of(EventReader(None, saver, session_id), number)
    except GraphAgentError as error:
        return {"error": str(error)}
    return found[:_MOST_ERRORS]


async def _errors_of(reader: Any, number: int) -> list[dict[str, Any]]:
    """Return the errors, warnings and limits of a session, newest first.

    Each has the session's `number` in place of its id, which may name a person. For a session that cannot be read, the
    list has one entry of the type `unreadable`.
    """
    try:
        tail = await reader.read_tail(pending=True)
    except GraphAgentError as error:
        return [{"session": number, "type": "unreadable", "message": str(error)}]
    events = [entry for entry in (tail[1] if tail is not None else ()) if entry["type"] in _ERRORS]
    names = ("ts", "step", "type", "kind", "message", "reason", "limit")
    return [{"session": number, **{name: each[name] for name in names if name in each}} for each in reversed(events)]


def _cut(value: Any) -> Any:
    """Return a text with at most `_MOST_CHARS` characters; any other value unchanged."""
    return value[:_MOST_CHARS] if isinstance(value, str) else value


def _raw(config: str) -> Any:
    """Return the content of an agent file that is invalid, so that its secrets can be removed from the errors about it.

    It is the parsed YAML, or the text of a file that is no YAML; an empty dict for a file that cannot be read.
    """
    try:
        text = Path(config).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _values(environment: Mapping[str, str], given: Any, db: str | None) -> Iterator[tuple[str, str]]:
    """Yield each value that must not be in the report, with the text that replaces it.

    That is `$NAME` for a value of the environment variable `NAME`, and `***` for a secret in the agent file, `given`,
    or in `db`, another address of the database. Secrets in URLs are yielded on their own, too.
    """
    for name, value in environment.items():
        yield value, f"${name}"
        yield from ((part, f"${name}") for part in _in_urls(value))
    for text in (*_texts(given, is_secret=False), *_in_urls(db or "")):
        yield text, "***"


def _texts(value: Any, *, is_secret: bool) -> Iterator[str]:
    """Yield the texts of a JSON value that stand under a name of a secret, and the secrets in all of its URLs.

    A name that ends with `_env` or contains `prompt` is none of a secret. `is_secret` is whether the value itself
    stands under the name of a secret; all of its texts are then yielded.
    """
    if isinstance(value, str):
        if is_secret:
            yield value
        yield from _in_urls(value)
    elif isinstance(value, dict):
        for name, each in value.items():
            # Names of variables under such a key are no secrets, and a prompt is left out as a whole.
            hides = bool(_WITHOUT.search(str(name))) and not re.search(r"_env$|prompt", str(name))
            yield from _texts(each, is_secret=is_secret or hides)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, is_secret=is_secret)


def _in_urls(text: str) -> Iterator[str]:
    """Yield the parts of the URLs in a text that may be secret.

    These are users, passwords, fragments, values of queries, and parts of paths with a digit and 16 characters or more.
    A URL that cannot be parsed is yielded as a whole.
    """
    for url in _URL.findall(text):
        try:
            parts = urlsplit(url)
        except ValueError:
            yield url
            continue
        yield from filter(None, (parts.username, parts.password, parts.fragment))
        yield from (value for _, value in parse_qsl(parts.query))
        # A key may be a part of the path, as in the addresses of web hooks.
        yield from (part for part in parts.path.split("/") if len(part) >= 16 and re.search(r"\d", part))


def _without(value: Any, secrets: Mapping[str, str]) -> Any:
    """Return a JSON value in which secrets are replaced, and texts that look like keys are masked, names included.

    `secrets` is secret → replacement; very short ones are not replaced.
    """
    # The longest first, as one secret may be a part of another.
    known = sorted((each for each in secrets if len(each.strip()) >= _SHORTEST), key=len, reverse=True)

    def cleaned(given: Any) -> Any:
        """Return a value without secrets."""
        if isinstance(given, str):
            for secret in known:
                given = given.replace(secret, secrets[secret])
            return mask_secrets(given)
        if isinstance(given, dict):
            return {cleaned(name): cleaned(each) for name, each in given.items()}
        return [cleaned(each) for each in given] if isinstance(given, list | tuple) else given

    return cleaned(value)
