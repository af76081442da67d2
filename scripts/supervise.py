"""Run the command of a make target, and leave no process of it behind, also if it is interrupted.

`python scripts/supervise.py [--names] COMMAND [ARGUMENT ...]`; it needs the standard library only. With `--names`, of
an installation by pip, the names of the packages are printed in place of its output. SIGINT and SIGTERM are sent to
the command and its process group. What still runs `GRACE_S` seconds later, or at a second signal, is ended; so is what
the command leaves behind, such as a database server in a session of its own. Without Linux's /proc, only the process
group is ended. With the variable REPORT_CPU_TIME, the CPU time of all these processes is printed at the end.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GRACE_S = 20.0
_END_S = 5.0
"""Seconds that processes have to react to SIGTERM."""
_POLL_S = 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(command: list[str]) -> int:
    """Run a command; return its exit status, or 128 and the number of the signal that interrupted it."""
    received: list[int] = []
    begun = time.monotonic()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        # Orphans become children of this process; and it ends with make, however make ends.
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # In a group of its own: a terminal would send Ctrl-C to it as well, and a second one skips clean-up.
    names = command[:1] == ["--names"]
    process = subprocess.Popen(command[names:], process_group=0, stdout=subprocess.PIPE if names else None)
    if process.stdout is not None:
        threading.Thread(target=_print_names, args=(process.stdout,), daemon=True).start()

    def forward(number: int, _: object) -> None:
        received.append(number)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    deadline = float("inf")
    while process.poll() is None and time.monotonic() < deadline and len(received) < 2:
        if received and deadline == float("inf"):
            deadline = time.monotonic() + GRACE_S
        time.sleep(_POLL_S)
    status = process.poll()
    for number in (signal.SIGTERM, signal.SIGKILL):
        _end(process, number)
    if os.environ.get("REPORT_CPU_TIME"):
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = f"{used.ru_utime + used.ru_stime:.1f} s of CPU time in {time.monotonic() - begun:.1f} s"
        sys.stderr.write(f"{' '.join(command)[:100]}: {spent}\n")
    if received:
        return 128 + received[0]
    return 1 if status is None else status if status >= 0 else 128 - status


def _print_names(output: Iterable[bytes]) -> None:
    """Print the names of packages in the output of pip."""
    for line in output:
        words = line.decode(errors="replace").split()
        if words[:1] == ["Collecting"]:
            sys.stdout.write(f"  {words[1]}\n")
        elif words[:2] == ["Installing", "collected"]:
            sys.stdout.write(f"  installing {len(words) - 3} packages\n")
        sys.stdout.flush()


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to all processes that are left, and wait for their end for `_END_S` seconds."""
    left = _descendants()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    for each in left:
        with suppress(ProcessLookupError):
            os.kill(each, number)
    deadline = time.monotonic() + _END_S
    while _descendants() and time.monotonic() < deadline:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_POLL_S)


def _descendants() -> set[int]:
    """Return the process ids of children, and of theirs; empty without /proc."""
    children = defaultdict[int, list[int]](list)
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name of the program, in parentheses, may contain anything.
            children[int(file.read_text(errors="replace").rpartition(")")[2].split()[1])].append(int(file.parent.name))
    found, open_ = set[int](), [os.getpid()]
    while open_:
        more = children[open_.pop()]
        found.update(more)
        open_ += more
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
