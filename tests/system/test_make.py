"""The targets of the Makefile: what they install, and how they end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHIN_S = 60
PROGRAM = """
import os, signal, subprocess, sys, time
daemon = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
started = subprocess.Popen([sys.executable, "-c", daemon], start_new_session=True)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {started.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(float(sys.argv[2]))
"""
"""Starts a process in a session of its own that ignores SIGINT, as a server of a test may."""


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
@pytest.mark.parametrize("option", ["", "--names "])
@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "its own end", "SIGKILL of make"])
def test_a_target_leaves_no_process_behind(tmp_path: Path, end: str, option: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    seconds = 0 if end == "its own end" else 600
    command = f"{sys.executable} {ROOT / 'scripts/supervise.py'} {option}{sys.executable} program.py pids {seconds}"
    (tmp_path / "Makefile").write_text(f"run:\n\t@{command}\n")
    make = subprocess.Popen(["make", "run"], cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE)
    deadline = time.monotonic() + WITHIN_S
    while not (tmp_path / "pids").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    processes = [int(each) for each in (tmp_path / "pids").read_text().split()]

    if end == "SIGINT":
        os.killpg(make.pid, signal.SIGINT)
    elif end != "its own end":
        make.send_signal(signal.SIGTERM if end == "SIGTERM" else signal.SIGKILL)
    if end != "SIGKILL of make":
        make.wait(WITHIN_S)
    while end == "SIGKILL of make" and any(map(_runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)

    left = [process for process in processes if _runs(process)]
    make.communicate()
    assert left == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_the_cpu_time_of_a_target_and_its_processes_is_reported() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}], start_new_session=True)"
    command = [sys.executable, str(ROOT / "scripts/supervise.py"), sys.executable, "-c", f"{program}.wait()"]

    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "REPORT_CPU_TIME": "1"}, check=True
    )

    found = re.search(r": ([\d.]+) s of CPU time in [\d.]+ s\n$", done.stderr)
    assert found is not None, done.stderr
    assert float(found[1]) >= 0.3


def test_the_programs_of_all_targets_are_supervised() -> None:
    documented = re.findall(r"^([\w-]+):[^=\n]*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    running = [name for name in documented if name not in ("lint", "format", "clean")]
    command = ["make", "-n", "-B", *running]  # as if nothing was installed

    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    is_shell = subprocess.run(["sh", "-n"], input=planned, text=True, check=False).returncode == 0

    programs = [line for line in planned.splitlines() if re.search(r"\.venv/bin/(graph-agent|py|lang|jup)", line)]
    programs += [line for line in planned.splitlines() if "pip install" in line and line.startswith("python3")]
    bare = [line for line in programs if "scripts/supervise.py" not in line or "|" in line]
    assert (is_shell, len(programs) > len(running), bare) == (True, True, [])


def test_a_service_that_a_target_needs_is_no_reason_to_skip(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from tests.support.required import unavailable\n\n\ndef test_it() -> None:\n    unavailable('install it')\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]

    ended = {
        required: subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TEST_REQUIRE_SERVICES": required},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        ).returncode
        for required in ("", "1")
    }

    assert ended == {"": 0, "1": 1}
