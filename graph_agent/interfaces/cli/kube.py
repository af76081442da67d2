"""Implements `kube`: prints the Kubernetes manifests of a resource of the kind `Agent`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graph_agent.base.errors import ConfigError
from graph_agent.interfaces.cli.terminal import Terminal


def kube(
    file: Annotated[
        Path | None, typer.Argument(help="A YAML file with a resource of the kind Agent, or only its spec.")
    ] = None,
    crd: Annotated[bool, typer.Option("--crd", help="Print the definition of the kind Agent instead.")] = False,
) -> None:
    """Print the Deployment, Service and ConfigMap of an `Agent` resource; no cluster is contacted."""
    # Imported here: other commands need neither.
    import yaml

    from graph_agent.agent_file.kube_agent import definition, read_agent_resource
    from graph_agent.agent_file.kube_manifests import manifests, notes

    if crd:
        typer.echo(yaml.safe_dump(definition(), sort_keys=False), nl=False)
        return
    if file is None:
        raise ConfigError("graph-agent kube: name a file with a resource of the kind Agent, or give --crd.")
    resource = read_agent_resource(file)

    class Readable(yaml.SafeDumper):
        """Writes the agent file in a ConfigMap line by line, and no anchors."""

        def ignore_aliases(self, data: object) -> bool:
            """Write a part that occurs twice in full."""
            return True

        def represent_str(self, data: str) -> yaml.ScalarNode:
            """Write a text of several lines as a block."""
            return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Readable.add_representer(str, Readable.represent_str)
    typer.echo(yaml.dump_all(manifests(resource), Dumper=Readable, sort_keys=False, allow_unicode=True), nl=False)
    err = Terminal(stderr=True)
    for note in notes(resource):
        err.print(note, style="dim")
