"""Marks tests that need bubblewrap."""

from __future__ import annotations

import subprocess

import pytest


def has_bubblewrap() -> bool:
    try:
        command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


in_sandbox = pytest.mark.skipif(not has_bubblewrap(), reason="bubblewrap is not installed, or may not start a sandbox")
