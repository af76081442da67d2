"""Run the steps of deploy/Dockerfile without a container engine, and its command in the result.

Each stage is an overlay on this machine's root file system, with the Python of the same minor version in the place of
the base image's. The commands are those of the Dockerfile. The server then runs as the image's user, in the image's
environment, on a read-only root file system with only /tmp and /data writable. It needs root, and that Python; with
`--if-possible`, their absence is no failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.support.image import Context, Stage, Step, read_stages
from tests.support.ports import reserved_port

ROOT = Path(__file__).parents[2]
_INSIDE = "GRAPH_AGENT_IMAGE_STEPS"
_WITHIN_S = 120
_PASSED_ON = (
    "PIP_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_",
    "REQUESTS_",
)
_AGENT = "name: image\nmodel: openai:gpt-4o-mini\n"


def sh(*command: str) -> None:
    subprocess.run(command, check=True)


class Folder:
    """The root file system of one stage."""

    def __init__(self, scratch: Path, number: int, python: Path) -> None:
        upper, work, self.path = (scratch / f"{number}-{name}" for name in ("upper", "work", "root"))
        for folder in (upper, work, self.path):
            folder.mkdir()
        sh("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", str(self.path))
        for each in ("proc", "dev"):
            sh("mount", "--rbind", f"/{each}", str(self.path / each))
        for name in ("python", "python3"):
            (self.path / "usr/local/bin" / name).unlink(missing_ok=True)
            (self.path / "usr/local/bin" / name).symlink_to(python)
        # Python may be installed in the home of root, which other users may not enter.
        for parent in python.parents:
            if not (mode := parent.stat().st_mode) & 0o001:
                self.at(str(parent)).chmod(mode & 0o7777 | 0o011)

    def at(self, path: str) -> Path:
        """A path of the stage, as a path of this machine."""
        return self.path / path.lstrip("/")


def build(stages: list[Stage], scratch: Path, python: Path) -> Folder:
    """Run the steps of every stage; return the last one's folder."""
    context, folders = Context(ROOT), dict[str, Folder]()
    folder: Folder | None = None
    for number, stage in enumerate(stages):
        folder = folders[stage.name] = Folder(scratch, number, python)
        workdir = "/"
        for step in stage.steps:
            if step.name == "WORKDIR":
                workdir = step.words[0]
                folder.at(workdir).mkdir(parents=True, exist_ok=True)
            elif step.name == "COPY":
                copy(step, context, folders, folder, workdir)
            elif step.name == "RUN":
                environment = {**base_environment(), **stage.variables}
                command = ["chroot", str(folder.path), "/bin/sh", "-ec", f"cd {workdir}\n{step.words[0]}"]
                done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
                assert done.returncode == 0, f"RUN {step.words[0]}\n{done.stdout}{done.stderr}"
    assert folder is not None, "the Dockerfile has a stage"
    return folder


def copy(step: Step, context: Context, folders: dict[str, Folder], folder: Folder, workdir: str) -> None:
    *sources, target = step.words
    place = folder.at(os.path.join(workdir, target))
    if source := step.flags.get("from"):
        for name in sources:
            place.parent.mkdir(parents=True, exist_ok=True)
            sh("cp", "-a", str(folders[source].at(name)), str(place))
        return
    for name in sources:
        files = list(context.files(name))
        assert files, f"COPY {name}: .dockerignore leaves it out"
        for file in files:
            to = place / file if target.endswith("/") else place / Path(file).relative_to(name)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, to, follow_symlinks=False)


def base_environment() -> dict[str, str]:
    """The environment of a base image, with the settings that this machine's network needs."""
    passed_on = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    return {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin", "HOME": "/root", **passed_on}


def run(stage: Stage, folder: Folder) -> None:
    """Run the image's command and its health check, read-only and as its user; stop it with SIGTERM."""
    agent = folder.at(stage.environment["GRAPH_AGENT_CONFIG"])
    agent.parent.mkdir(parents=True)
    agent.write_text(_AGENT)
    user, _, group = stage.last("USER").words[0].partition(":")
    for path in ("/tmp", "/data"):
        sh("mount", "-t", "tmpfs", "-o", f"uid={user},gid={group},mode=700", "tmpfs", str(folder.at(path)))
    sh("mount", "-o", "remount,bind,ro", str(folder.path))
    with reserved_port() as port:
        serve(stage, folder, f"{user}:{group}", port)


def serve(stage: Stage, folder: Folder, user: str, port: int) -> None:
    """Run the command and its health check on a port."""
    environment = {
        **stage.environment,
        "GRAPH_AGENT_HOST": "127.0.0.1",
        "GRAPH_AGENT_PORT": str(port),
        "DEBUG_MOCK_RESPONSES": '["Hello!"]',
    }
    inside = ["chroot", f"--userspec={user}", "--groups=", str(folder.path), "/usr/bin/env", "--chdir=/data"]
    confined = ["setpriv", "--no-new-privs", "--bounding-set=-all"]
    writable = (
        "for each in /opt /etc /usr /root /src; do ! touch $each/x 2>/dev/null || exit 1; done; touch /tmp/x /data/x"
    )
    sh(*inside, "/bin/sh", "-ec", writable)
    server = subprocess.Popen([*inside, *confined, *stage.command], env=environment)
    try:
        wait_until_up(server, f"http://127.0.0.1:{port}/ready")
        check = list(stage.last("HEALTHCHECK").words[1:])
        subprocess.run([*inside, *confined, *check], env=environment, check=True)
        server.send_signal(signal.SIGTERM)
        status = server.wait(_WITHIN_S)
        assert status == 0, f"the server ended with status {status}"
        failed = subprocess.run([*inside, *confined, *check], env=environment, check=False, capture_output=True)
        assert failed.returncode == 1, "the health check of a stopped server must fail"
    finally:
        server.kill()
        server.wait()


def wait_until_up(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the server did not come up; its exit status is {server.poll()}")


def find_python(stage: Stage) -> Path | None:
    """The Python of this machine that has the minor version of a stage's base image; also one of pyenv or uv."""
    minor = ".".join(stage.base.partition(":")[2].split(".")[:2])
    managed = [
        f".pyenv/versions/{minor}.*/bin/python{minor}",
        f".local/share/uv/python/cpython-{minor}.*/bin/python{minor}",
    ]
    found = [shutil.which(f"python{minor}"), *(str(path) for pattern in managed for path in Path.home().glob(pattern))]
    show = "import os, sys; print(os.path.realpath(sys.executable))"
    for python in filter(None, found):
        asked = subprocess.run([python, "-c", show], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            return Path(asked.stdout.strip())
    return None


def main() -> None:
    stages = read_stages(ROOT / "deploy/Dockerfile")
    python = find_python(stages[-1])
    if os.geteuid() != 0 or python is None:
        print(f"The image's steps are not run: that needs root, and the Python of {stages[-1].base}.")
        sys.exit(0 if "--if-possible" in sys.argv else 1)
    if _INSIDE not in os.environ:
        # A mount namespace of its own: its mounts end with this process.
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.checks.image_steps"]
        os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        # Not an overlay itself, as the folder of a container may be.
        sh("mount", "-t", "tmpfs", "-o", "size=3g", "tmpfs", temporary)
        try:
            run(stages[-1], build(stages, Path(temporary), python))
        finally:
            sh("umount", "--recursive", "--lazy", temporary)
    print("The image's steps were built, and its command served and stopped.")


if __name__ == "__main__":
    main()
