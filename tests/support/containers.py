"""Starts the processes of manifests on loopback: a container's command, environment and files, without a container."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.support.image import read_stages
from tests.support.kustomize import Resource, one
from tests.support.warm_process import Process, start_python, warm_python

DEPLOY = Path(__file__).parents[2] / "deploy"
_WITHIN_S = 180
_REFERENCE = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")


@dataclass(frozen=True)
class Container:
    """Settings of one container in a manifest."""

    name: str
    command: list[str]
    environment: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    """Mounted files: path in the container → text."""


def of_deployment(resources: list[Resource], name: str) -> Container:
    """The container of a Deployment."""
    pod = one(resources, "Deployment", name)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    image = read_stages(DEPLOY / "Dockerfile")[-1]
    environment = dict(image.environment)
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            environment |= one(resources, "ConfigMap", source["configMapRef"]["name"])["data"]
        else:
            environment |= one(resources, "Secret", source["secretRef"]["name"])["stringData"]
    for variable in container.get("env", ()):
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        secret = one(resources, "Secret", reference["name"])["stringData"] if reference else {}
        environment[variable["name"]] = secret[reference["key"]] if reference else variable["value"]
    maps = {volume["name"]: volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    files = {
        f"{mount['mountPath']}/{key}": text
        for mount in container["volumeMounts"]
        if mount["name"] in maps
        for key, text in one(resources, "ConfigMap", maps[mount["name"]])["data"].items()
    }
    entrypoint = container.get("command") or list(image.last("ENTRYPOINT").words)
    arguments = container.get("args") or ([] if "command" in container else list(image.last("CMD").words))
    return Container(name, [*entrypoint, *arguments], environment, files)


def of_compose(name: str, variables: Mapping[str, str], file: Path = DEPLOY / "compose.yaml") -> Container:
    """The container of a service in a compose file; `variables` are those of its `.env`."""
    service = yaml.safe_load(file.read_text(encoding="utf-8"))["services"][name]
    image = read_stages(DEPLOY / "Dockerfile")[-1]

    def value(found: re.Match[str]) -> str:
        assert found[1] in variables or ":?" not in found[0], f"{found[1]} is required: {found[2]}"
        return variables.get(found[1], found[2])

    given = {key: _REFERENCE.sub(value, text) for key, text in service.get("environment", {}).items()}
    # A volume with a name, as that of a database, is the folder in which the process runs.
    mounts = [volume.split(":")[:2] for volume in service["volumes"] if volume.startswith(".")]
    files = {inside: (file.parent / outside).read_text(encoding="utf-8") for outside, inside in mounts}
    command = [*service["entrypoint"], *service["command"]] if "entrypoint" in service else image.command
    return Container(name, command, {**image.environment, **given}, files)


@dataclass
class Running:
    """A container's process."""

    process: Process
    port: int
    log: Path
    environment: dict[str, str]

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def http(self, key: str = "", **headers: str) -> httpx.Client:
        """A client of it, with an API key."""
        bearer = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, trust_env=False, verify=False, timeout=60, headers={**bearer, **headers})

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_WITHIN_S)

    def run(self, program: str, *arguments: str) -> int:
        """Run another program of the image in its environment; return its exit status."""
        assert program == "python"
        environment = {**self.environment, "GRAPH_AGENT_PORT": str(self.port)}
        done = subprocess.run(
            [warm_python(), *arguments], env=environment, check=False, timeout=_WITHIN_S, stderr=subprocess.DEVNULL
        )
        return done.returncode


@contextlib.contextmanager
def started(container: Container, folder: Path, **environment: str) -> Iterator[Running]:
    """Start a container's process on a free port of loopback; `environment` replaces addresses of the cluster.

    Started again in the same folder, it finds its files of before.
    """
    home = folder / container.name
    home.mkdir(exist_ok=True)
    places = {}
    for path, text in container.files.items():
        places[path] = home / Path(path).name
        places[path].write_text(text, encoding="utf-8")
    here = {
        "HOST": "127.0.0.1",
        "PORT": "0",
        "GRAPH_AGENT_HOST": "127.0.0.1",
        "GRAPH_AGENT_PORT": "0",
        "HOME": str(home),
    }
    given = {name: str(places.get(value, value)) for name, value in container.environment.items()}
    merged = {**given, **here, "PATH": os.environ["PATH"], "LANGSMITH_TRACING": "false", **environment}
    program, *arguments = [str(places.get(word, word)) for word in container.command]
    log = home / "log"
    with log.open("wb") as out:
        process: Process
        if program == "graph-agent":
            streams = {"stdin": subprocess.DEVNULL, "stdout": out.fileno(), "stderr": out.fileno()}
            process = start_python(["graph_agent.cli", *arguments], cwd=home, env=merged, **streams)
        else:
            process = subprocess.Popen([sys.executable, *arguments], cwd=home, env=merged, stdout=out, stderr=out)
    try:
        yield Running(process, _listening_port(process, log), log, merged)
    finally:
        process.kill()
        process.wait()


def wait_until_ready(running: Running) -> dict[str, Any]:
    """Wait until `/ready` accepts; return its content."""
    deadline = time.monotonic() + _WITHIN_S
    with running.http() as http:
        while time.monotonic() < deadline and running.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                answer = http.get("/ready")
                if answer.is_success:
                    content: dict[str, Any] = answer.json()
                    return content
            time.sleep(0.05)
    raise AssertionError(f"It does not become ready:\n{running.log.read_text()}")


def _listening_port(process: Process, log: Path) -> int:
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(psutil.Error):
            for connection in psutil.Process(process.pid).net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    return int(connection.laddr.port)
        time.sleep(0.05)
    raise AssertionError(f"It does not listen:\n{log.read_text()}")
