"""The page of the agent file's keys, from its JSON schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graph_agent.agent_file.editor_schema import agent_schema
from graph_agent.models.prompts import VARIABLES
from scripts.reference.markdown import code, default_of, document, table, type_of

_HEADER = ("Key", "Type", "Default", "Description")
_SECTIONS = {
    "ModelEndpoint": "[endpoint](#model)",
    "DelegateSpec": "[delegate](#delegates)",
    "SkillSpec": "[skill](#skills)",
    "HookSpec": "[hook](#hooks)",
    "CredentialSource": "[credential](#credentials)",
    "OAuthSettings": "[settings](#oauth)",
}


def page() -> str:
    """Return the page."""
    schema = agent_schema()
    keys, definitions = schema["properties"], schema["$defs"]
    connections = keys["mcp_servers"]["additionalProperties"]["anyOf"]
    auth = definitions["DelegateSpec"]["properties"]["auth"]["anyOf"][0]
    own = {**keys, "config": {**keys["config"]}, "mcp_servers": {**keys["mcp_servers"]}}
    own["mcp_servers"]["additionalProperties"] = {"$ref": "connection"}
    return document(
        "Agent file",
        "An agent file is YAML. Unknown keys are errors. `module:attribute` names resolve relative to the file's "
        "folder first, then from the installed packages.",
        _keys({**schema, "properties": own}),
        "## For editors",
        "`graph-agent schema` prints the JSON schema of this page, which editors use for completion and checks. This "
        "line at the top of an agent file selects it in editors with the YAML language server:",
        "```yaml\n# yaml-language-server: $schema=agent.schema.json\n```",
        "```console\ngraph-agent schema > agent.schema.json\n```",
        "## model",
        _text(definitions["ModelEndpoint"])
        + " An entry of `config.fallback_models` may be one, too; `provider:name@http://…` is the short form.",
        _keys(definitions["ModelEndpoint"]),
        "## config",
        "Every field of [`LoopConfig`](config.md), with `null` for `None`. `max_rounds` is an alias of `max_steps`.",
        "## prompts",
        "The prompts that a file can replace, and the variables of their templates. A prompt file has one key, "
        "`template`.",
        table(
            ("Prompt", "Variables"),
            [(code(name), ", ".join(code(each) for each in sorted(VARIABLES[name])) or "none") for name in VARIABLES],
        ),
        "## mcp_servers",
        "Each value is a connection. Its keys depend on the transport.",
        *(part for each in connections for part in (f"### {each['title']}", _keys(each))),
        "### oauth",
        _text(definitions["OAuthSettings"]),
        _keys(definitions["OAuthSettings"]),
        "## delegates",
        _text(definitions["DelegateSpec"]) + " Give exactly one of `graph` and `url`.",
        _keys(definitions["DelegateSpec"]),
        "### auth",
        _text(auth) + " Give exactly one of `bearer_env` and `api_key_env`.",
        _keys(auth),
        "## skills",
        _text(definitions["SkillSpec"]),
        _keys(definitions["SkillSpec"]),
        "## hooks",
        _text(definitions["HookSpec"]),
        _keys(definitions["HookSpec"]),
        "## credentials",
        _text(definitions["CredentialSource"]),
        _keys(definitions["CredentialSource"]),
    )


def _keys(schema: Mapping[str, Any]) -> str:
    return table(_HEADER, _rows(schema))


def _rows(schema: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    names = {**_SECTIONS, "connection": "[connection](#mcp_servers)"}
    for name, value in schema["properties"].items():
        required = name in schema.get("required", ())
        default = "required" if required else default_of(value.get("default"))
        yield code(name), type_of(value, names), default, value.get("description", "")


def _text(schema: Mapping[str, Any]) -> str:
    text: str = schema["description"]
    return text
