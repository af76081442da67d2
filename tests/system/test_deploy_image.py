"""The Dockerfile and the context of its build; `tests/checks/image_steps.py` runs its steps."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.image import Context, read_stages

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/Dockerfile"


def test_the_linter_finds_no_fault() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [str(hadolint), "--no-color", "--failure-threshold", "style", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_is_one_release_of_pythons_slim_image() -> None:
    stages = read_stages(FILE)

    assert len({stage.base for stage in stages}) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", stages[0].base)


def test_the_image_runs_as_a_numbered_user_and_has_a_health_check() -> None:
    image = read_stages(FILE)[-1]

    user = image.last("USER").words[0]
    assert (image.command, image.last("ENTRYPOINT").is_exec, image.last("CMD").is_exec) == (
        ["graph-agent", "serve"],
        True,
        True,
    )
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert (image.last("STOPSIGNAL").words, image.last("HEALTHCHECK").words[0]) == (("SIGTERM",), "CMD")
    assert image.last("EXPOSE").words == (image.environment["GRAPH_AGENT_PORT"],)


def test_image_tags_in_manifests_and_guides_are_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.yaml")]
    tags = {
        (str(page.relative_to(ROOT)), tag)
        for page in pages
        for tag in re.findall(r"graph-agent(?::|\n +newTag: *[\"']?)(\d[\w.-]*)", page.read_text())
    }

    assert tags == {
        (page, version)
        for page in (
            "deploy/compose.yaml",
            "deploy/kubernetes/base/kustomization.yaml",
            "deploy/kubernetes/peers/kustomization.yaml",
            "docs/guides/deploy.md",
        )
    }


def test_the_context_holds_what_is_copied_and_no_secret() -> None:
    context = Context(ROOT)
    copied = [
        source
        for stage in read_stages(FILE)
        for step in stage.steps
        if step.name == "COPY" and "from" not in step.flags
        for source in step.words[:-1]
    ]
    files = [file for source in copied for file in context.files(source)]

    assert [source for source in copied if not list(context.files(source))] == []
    assert {"graph_agent/__init__.py", "graph_agent/nodes", "nodes/plan.py"} <= set(files)
    assert [file for file in files if "__pycache__" in file] == []


@pytest.mark.parametrize(
    "name", [".env", ".git", ".venv", "graph_agent/.env", "graph_agent/x/__pycache__/y.pyc", "a.db"]
)
def test_the_context_leaves_out_keys_and_databases(name: str) -> None:
    assert not Context(ROOT).holds(name)


def test_an_argument_before_the_first_stage_counts_in_from_alone(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("ARG V=1\nFROM a:$V AS one\nARG W=2\nARG V\nENV X=$V-$W\nFROM b:$V-$W\nENV PATH=/x:$PATH\n")

    stages = read_stages(file, path="/bin")

    assert [(stage.name, stage.base, stage.environment) for stage in stages] == [
        ("one", "a:1", {"X": "1-2"}),
        ("", "b:1-$W", {"PATH": "/x:/bin"}),
    ]
