"""Runs commands in a folder with limits, in a sandbox if one is available."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Literal

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt

from graph_agent.base._internal.extras import needs_extra
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.validation_text import CheckedModel, describe_fields
from graph_agent.base.errors import ConfigError

if TYPE_CHECKING:
    import psutil

    from graph_agent.integrations.workspace.folder import Folder

logger = get_logger("graph_agent.workspace.shell")

_MARK = "GRAPH_AGENT_COMMAND"
"""Environment variable that marks the processes of a command, including those that left its process group."""
_LOOK_S = 0.1
"""Seconds between two checks of a command's processes and memory."""
_GRACE_S = 2.0
"""Seconds for reading the output after the end of a command."""
_PIECE = 65_536
_KILL_ROUNDS = 100
"""Maximum times, with pauses, that the processes of a command are searched and killed."""
_KILL_PAUSE_S = 0.02
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store")
"""Folders of the system's programs, which commands in a sandbox may read."""
_SYSTEM_FILES = (
    *("alternatives", "ca-certificates", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime"),
    *("nsswitch.conf", "passwd", "pki", "resolv.conf", "ssl"),
)
_PROBE = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true")
"""A command that succeeds if bubblewrap works here."""


class Shell(CheckedModel):
    """How `run_command` runs commands. Frozen, and validated once at construction.

    Raises:
        ConfigError: If a field is unknown or a value is out of range.
    """

    model_config = ConfigDict(json_schema_extra=describe_fields)

    sandbox: Literal["auto", "bubblewrap", "none"] | tuple[str, ...] = "auto"
    """`bubblewrap`: a command sees the folder and the system's programs, and nothing else of the machine. `none`: it
    can do what this process can. `auto`: bubblewrap if it works here. A tuple is the beginning of a command line that
    runs the rest in a container; `{folder}` in it is replaced by the folder."""
    approve: bool | None = None
    """Whether a person must approve each command; None: if it runs in no sandbox."""
    network: bool = False
    """Whether commands in bubblewrap reach the network."""
    timeout_s: PositiveFloat = 120.0
    """Seconds that a command may run."""
    memory_mb: PositiveInt = 4096
    """Megabytes that the processes of a command may have in memory together."""
    processes: PositiveInt = 256
    """Processes that a command may have at one time."""
    output_bytes: PositiveInt = 1_000_000
    """Bytes of output that are kept: the first half and the last half."""
    readable: tuple[str, ...] = ()
    """Further folders that commands in bubblewrap may read."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of commands, in addition to `PATH`, `HOME`, `LANG` and `TERM`; no others are inherited."""


class CommandRunner:
    """Runs the commands of one workspace.

    Args:
        folder: The workspace.
        shell: How commands are run.

    Raises:
        ConfigError: The required sandbox is not available.
        MissingExtraError: The extra `workspace` is not installed.
    """

    def __init__(self, folder: Folder, shell: Shell) -> None:
        with needs_extra("run_command", "workspace"):
            import psutil as psutil  # its functions import it, too
        if shell.sandbox == "bubblewrap" and not _has_bubblewrap():
            raise ConfigError(
                "sandbox='bubblewrap': bwrap cannot start a sandbox here; install bubblewrap and permit user "
                "namespaces, or set another sandbox."
            )
        self._folder = folder
        self._shell = shell
        is_bubblewrap = shell.sandbox == "bubblewrap" or (shell.sandbox == "auto" and _has_bubblewrap())
        self._is_bubblewrap = is_bubblewrap
        self._prefix = [] if is_bubblewrap else _container(folder, shell.sandbox)
        has_sandbox = is_bubblewrap or bool(self._prefix)
        self.needs_approval = not has_sandbox if shell.approve is None else shell.approve
        """Whether a reviewer must approve each command."""
        self._has_sandbox = has_sandbox
        if not has_sandbox and shell.approve is False:
            logger.warning("Commands run in no sandbox and without approval: they can do what this process can.")

    async def run_command(self, command: str) -> str:
        """Run a shell command in the workspace. Returns its exit status and its output.

        It has no standard input. Processes that it leaves in the background end with it.

        Args:
            command: A command line for sh.
        """
        if not self._has_sandbox:
            return await self._run(command, [])
        # Imported here: it loads LangGraph, which `Shell` does not need.
        from graph_agent.integrations.workspace.protection import Guard

        guard = await asyncio.to_thread(Guard, self._folder.root, self._folder.protected)
        prefix = _bubblewrap(self._folder, self._shell, guard.mounts()) if self._is_bubblewrap else self._prefix
        try:
            text = await self._run(command, prefix)
        finally:
            # Also after a cancellation.
            moved = await asyncio.shield(asyncio.to_thread(guard.set_aside_new))
        if moved:
            logger.warning("A command of a workspace made files that are not permitted; renamed to: %s", moved)
            text += f"\nFiles that git or this agent would use may not be made; renamed to: {', '.join(moved)}"
        return text

    async def _run(self, command: str, prefix: Sequence[str]) -> str:
        """Run a command behind a prefix, and return its exit status, or why it was stopped, and its output.

        All of its processes are killed at the end, also after a cancellation. It receives only a few variables of the
        environment, and those of the settings; with a prefix, `HOME` is `/tmp`.
        """
        # A process can leave its process group, but its environment keeps the mark.
        mark = secrets.token_hex(16)
        home = "/tmp" if prefix else os.environ.get("HOME", "/")
        defaults = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb"}
        # With a pipe of asyncio's own, `wait` would return only when no process has the pipe open any more.
        ours, theirs = os.pipe()
        pipe = os.fdopen(ours, "rb", buffering=0)
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *(*prefix, "/bin/sh", "-c", command),
                cwd=self._folder.root,
                env={**defaults, **self._shell.env, _MARK: mark},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                # In a process group of its own, which can be killed as a whole.
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The start, if it were cancelled, would kill the shell alone, and not what it has started.
            process = await starting
            await asyncio.to_thread(_kill, process.pid, mark)
            await process.wait()
            pipe.close()
            raise
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(theirs)
        output = _Output(self._shell.output_bytes)
        reading = asyncio.create_task(output.read(pipe))
        try:
            stopped = await self._watch(process)
        finally:
            # Also after a cancellation; in a thread, because all processes of the machine are looked at.
            await asyncio.shield(asyncio.to_thread(_kill, process.pid, mark))
            status = await asyncio.shield(process.wait())
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await reading
            reading.cancel()
        return "\n".join([stopped or f"exit status {status}", output.text()]).rstrip()

    async def _watch(self, process: asyncio.subprocess.Process) -> str:
        """Wait for the end of a command, or until it exceeds a limit of time, number of processes, or memory.

        Returns why it must be stopped, as a line of output; empty if it has ended. The command is not stopped here.
        """
        limits = self._shell
        ended = asyncio.create_task(process.wait())
        try:
            async with asyncio.timeout(limits.timeout_s):
                while not (await asyncio.wait([ended], timeout=_LOOK_S))[0]:
                    count, used = await asyncio.to_thread(_count, process.pid)
                    if count > limits.processes:
                        return f"stopped: it had {count} processes; {limits.processes} are permitted"
                    if used > limits.memory_mb * 1_000_000:
                        return f"stopped: it used {used // 1_000_000} MB of memory; {limits.memory_mb} are permitted"
        except TimeoutError:
            return f"stopped after {limits.timeout_s:g} s"
        finally:
            ended.cancel()
        return ""


class _Output:
    """Keeps the first and the last bytes of a stream, half of `most` each."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    async def read(self, pipe: IO[bytes]) -> None:
        """Read a pipe to its end, and close it; keep the first and the last bytes, and count those that are dropped
        between.
        """
        stream = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        try:
            while piece := await stream.read(_PIECE):
                room = max(0, self._half - len(self._head))
                self._head += piece[:room]
                self._tail += piece[room:]
                if (over := len(self._tail) - self._half) > 0:
                    self._dropped += over
                    del self._tail[:over]
        finally:
            transport.close()

    def text(self) -> str:
        """Return the output as text, with a note where bytes were dropped; bytes that are not UTF-8 are replaced."""
        between = f"\n[… {self._dropped} bytes left out …]\n".encode() if self._dropped else b""
        return (bytes(self._head) + between + bytes(self._tail)).decode(errors="replace")


@functools.cache
def _has_bubblewrap() -> bool:
    """Whether bubblewrap is installed and can start a sandbox; tested once."""
    if shutil.which("bwrap") is None:
        return False
    try:
        return subprocess.run(_PROBE, capture_output=True, check=False, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _bubblewrap(folder: Folder, shell: Shell, mounts: Sequence[str]) -> list[str]:
    """Return the beginning of a command line that runs the rest in bubblewrap, with only the folder and programs.

    Args:
        folder: The workspace, which commands may write.
        shell: How commands are run.
        mounts: The arguments of `Guard.mounts`.
    """
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if shell.network:
        command.append("--share-net")
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    readable = [*_SYSTEM, *(f"/etc/{name}" for name in _SYSTEM_FILES), sys.base_prefix, sys.prefix, *shell.readable]
    for path in dict.fromkeys(readable):
        if os.path.islink(path) and path in _SYSTEM:
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind-try", path, path]
    root = str(folder.root)
    command += ["--bind", root, root, *mounts]
    return [*command, "--chdir", root, "--"]


def _container(folder: Folder, sandbox: str | Sequence[str]) -> list[str]:
    """Return the beginning of a command line for a sandbox given as a tuple, with `{folder}` replaced; else an empty
    list.
    """
    if isinstance(sandbox, str):
        return []
    return [part.replace("{folder}", str(folder.root)) for part in sandbox]


def _processes(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; empty if it has ended."""
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _count(pid: int) -> tuple[int, int]:
    """Return the number of processes of a command, and the bytes of memory that they use together.

    `pid` is the id of its first process. `(0, 0)` if it has ended. Processes that have left its tree are not counted.
    """
    import psutil

    found = _processes(pid)
    used = 0
    for process in found:
        with suppress(psutil.Error):
            used += process.memory_info().rss
    return len(found), used


def _marked(mark: str) -> Iterator[psutil.Process]:
    """Yield the processes of a command, which have `mark` in their environment, also outside of its process group.

    Processes whose environment this user may not read are left out.
    """
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == mark:
                yield process


def _kill(pid: int, mark: str) -> None:
    """Kill the processes of a command: its group, its descendants, and all that have its mark, except the shell itself.

    `pid` is the id of the shell, which leads the group, and `mark` the text in the environment of its processes. Gives
    up after `_KILL_ROUNDS` rounds. Blocking.
    """
    import psutil

    found = _processes(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for _ in range(_KILL_ROUNDS):
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        # A process may have started another while the list was made.
        found = [process for process in _marked(mark) if process.pid != pid]
        if not found:
            return
        time.sleep(_KILL_PAUSE_S)
