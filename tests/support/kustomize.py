"""Renders the kustomizations of this repository: the part of kustomize that they use; anything else is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]
_KEYS = {"apiVersion", "kind", "resources", "configMapGenerator", "labels", "images", "patches"}
_BY_NAME = {"containers", "volumes", "env", "ports"}
"""Lists whose entries a patch merges by name."""


def read_kustomization(folder: Path) -> dict[str, Any]:
    """The kustomization of a folder."""
    content: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert content.keys() <= _KEYS, f"{folder}: {sorted(content.keys() - _KEYS)} cannot be rendered here"
    return content


def render(folder: Path) -> list[Resource]:
    """The resources of a kustomization; generated names have no hash."""
    content = read_kustomization(folder)
    found: list[Resource] = []
    for name in content.get("resources", ()):
        path = folder / name
        found += render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for generator in content.get("configMapGenerator", ()):
        _generate(generator, folder, found)
    for patch in content.get("patches", ()):
        _patch(yaml.safe_load((folder / patch["path"]).read_text(encoding="utf-8")), found)
    for label in content.get("labels", ()):
        for resource in found:
            resource["metadata"].setdefault("labels", {}).update(label["pairs"])
    for image in content.get("images", ()):
        for container in (each for resource in found for each in containers_of(resource)):
            if container["image"] == image["name"]:
                container["image"] = f"{image['name']}:{image['newTag']}"
    return found


def inputs_of(folder: Path) -> set[str]:
    """The files that a kustomization names."""
    content = read_kustomization(folder)
    generated = [file for each in content.get("configMapGenerator", ()) for file in each.get("files", ())]
    named = [
        *content.get("resources", ()),
        *(file.partition("=")[2] or file for file in generated),
        *(patch["path"] for patch in content.get("patches", ())),
    ]
    return {name for name in named if not (folder / name).is_dir()}


def containers_of(resource: Resource) -> list[dict[str, Any]]:
    """The containers of a workload's pods; none for another resource."""
    found: list[dict[str, Any]] = resource.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    return found


def one(resources: list[Resource], kind: str, name: str) -> Resource:
    """The resource of a kind and name."""
    [found] = [each for each in resources if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def _generate(generator: dict[str, Any], folder: Path, found: list[Resource]) -> None:
    data = {}
    for literal in generator.get("literals", ()):
        name, _, value = literal.partition("=")
        data[name] = value
    for file in generator.get("files", ()):
        key, _, path = file.rpartition("=")
        data[key or Path(path).name] = (folder / path).read_text(encoding="utf-8")
    if generator.get("behavior") == "merge":
        one(found, "ConfigMap", generator["name"])["data"].update(data)
        return
    metadata: dict[str, Any] = {"name": generator["name"], **generator.get("options", {})}
    found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def _patch(patch: Resource, found: list[Resource]) -> None:
    target = one(found, patch["kind"], patch["metadata"]["name"])
    target.update(_merged(target, patch))


def _merged(base: Any, patch: Any, key: str = "") -> Any:
    """A strategic merge: mappings by key, known lists by name; anything else is replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{name: _merged(base.get(name), value, name) for name, value in patch.items()}}
    if isinstance(base, list) and key in _BY_NAME:
        merged = copy.deepcopy(base)
        for entry in patch:
            [at] = [index for index, each in enumerate(merged) if each["name"] == entry["name"]]
            merged[at] = _merged(merged[at], entry)
        return merged
    return patch
