"""Extras that are not installed."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from graph_agent import A2ADelegate
from graph_agent.agent_file.delegates import DelegateSpec
from graph_agent.agent_file.imports import load_attribute
from graph_agent.base._internal.extras import _EXTRAS, install_command, requirements_of
from graph_agent.errors import MissingExtraError
from graph_agent.models.resolve import resolve_model


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the record of how this package was installed."""
    real = metadata.distribution("graph-agent")
    record = tmp_path / "site" / "graph_agent-0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(real.read_text("METADATA") or "")

    def record_installation(installer: str = "pip", pip: str | None = None) -> None:
        (record / "INSTALLER").write_text(f"{installer}\n")
        monkeypatch.syspath_prepend(str(record.parent))
        monkeypatch.setattr(shutil, "which", lambda _: pip)

    return record_installation


HERE = str(Path(sys.executable).with_name("pip"))


def test_the_command_names_the_packages_of_the_extra(install: Callable[..., None]) -> None:
    install(pip=HERE)

    assert install_command("langchain") == "pip install 'langchain<2,>=1.4'"


@pytest.mark.parametrize(
    ("installer", "pip", "active", "command"),
    [
        ("pip", None, "", f"{sys.executable} -m pip install"),
        ("pip", "/usr/bin/pip", "", f"{sys.executable} -m pip install"),
        ("uv", None, "", f"uv pip install --python {sys.executable}"),
        ("uv", None, sys.prefix, "uv pip install"),
    ],
    ids=["no pip", "pip of another environment", "uv", "uv in the active environment"],
)
def test_the_command_installs_into_the_environment_of_the_process(
    installer: str,
    pip: str | None,
    active: str,
    command: str,
    install: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", active)
    install(installer, pip)

    assert install_command("workspace") == f"{command} 'psutil>=7'"


_DOTTED = ("langgraph.checkpoint.postgres", "langgraph.store.postgres")


def test_each_module_of_the_table_is_in_its_extra() -> None:
    files = {**metadata.packages_distributions(), **{key: ["langgraph-checkpoint-postgres"] for key in _DOTTED}}
    wrong = []
    for module, extra in _EXTRAS.items():
        names = tuple(canonicalize_name(each.name) for each in requirements_of(extra))
        wrong += [module for found in files[module] if not canonicalize_name(found).startswith(names)]

    assert wrong == []


@pytest.fixture
def own_modules() -> Iterator[list[str]]:
    """The package's loaded modules; they are restored, because reloaded copies would have classes of their own."""
    loaded = {name: module for name, module in sys.modules.items() if _is_own(name)}
    namespaces = {name: dict(vars(module)) for name, module in loaded.items() if hasattr(module, "__path__")}
    yield [*loaded]
    for name in [name for name in sys.modules if _is_own(name)]:
        del sys.modules[name]
    sys.modules.update(loaded)
    # An import also binds a submodule's name in its package.
    for name, namespace in namespaces.items():
        current = vars(loaded[name])
        for added in current.keys() - namespace.keys():
            del current[added]
        current.update(namespace)


def _is_own(name: str) -> bool:
    return name.partition(".")[0] == "graph_agent"


@pytest.mark.parametrize(
    ("what", "missing", "extra", "use"),
    [
        (
            "'langchain.agents.middleware.TodoListMiddleware'",
            "langchain",
            "langchain",
            lambda folder: load_attribute("langchain.agents.middleware.TodoListMiddleware", folder),
        ),
        ("'own:hook'", "langchain", "langchain", lambda folder: load_attribute("own:hook", folder)),
        ("The model 'anthropic:x'", "langchain", "langchain", lambda _: resolve_model("anthropic:x")),
        ("A2ADelegate", "a2a", "server", lambda _: A2ADelegate("r", "http://127.0.0.1:1")),
        (
            "delegate 'r'",
            "a2a",
            "server",
            lambda folder: DelegateSpec(name="r", url="http://127.0.0.1:1").build(folder),
        ),
        (
            "A database in PostgreSQL",
            "psycopg",
            "postgres",
            lambda _: __import__("graph_agent.storage.checkpoints.postgres"),
        ),
        (
            "graph_agent.engines",
            "restate",
            "restate",
            lambda _: __import__("graph_agent.engines.restate_worker"),
        ),
        ("graph_agent.server", "fastapi", "server", lambda _: importlib.import_module("graph_agent.server").create_app),
        ("graph_agent.a2a.server", "a2a", "server", lambda _: __import__("graph_agent.a2a.server")),
    ],
    ids=["middleware", "own hook", "model", "delegate", "delegate of a file", "database", "engine", "server", "A2A"],
)
def test_whatever_needs_an_extra_names_the_command(
    what: str,
    missing: str,
    extra: str,
    use: Callable[[Path], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own_modules: list[str],
) -> None:
    (tmp_path / "own.py").write_text("from langchain.agents.middleware import AgentMiddleware\n")
    names = ("storage.checkpoints.postgres", "integrations.delegates", "interfaces", "engines", "server", "a2a")
    users = tuple(f"graph_agent.{name}" for name in names)
    for name in own_modules:
        if name.startswith(users):
            del sys.modules[name]
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(MissingExtraError) as raised:
        use(tmp_path)

    message = str(raised.value)
    assert (message.partition(" (")[0], missing in message) == (f"{what} needs the extra {extra!r}", True)
    assert message.endswith(f": {install_command(extra)}")
