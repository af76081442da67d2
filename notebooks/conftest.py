"""Where notebooks run as tests, they and their kernels talk through files.

A kernel is told a TCP port that was free a moment before; beside tests that open many, it may be taken by then, and the
kernel dies.
"""

from __future__ import annotations

import tempfile
import uuid

import pytest
from jupyter_client.manager import KernelManager
from nbclient.client import NotebookClient

_FOLDER = tempfile.TemporaryDirectory(prefix="kernels-")
_plain = NotebookClient.create_kernel_manager
_patched = pytest.MonkeyPatch()


def _through_files(client: NotebookClient) -> KernelManager:
    manager = _plain(client)
    manager.transport, manager.ip = "ipc", f"{_FOLDER.name}/{uuid.uuid4().hex}"
    return manager


def pytest_configure(config: pytest.Config) -> None:
    """Before the first notebook."""
    _patched.setattr(NotebookClient, "create_kernel_manager", _through_files)


def pytest_unconfigure(config: pytest.Config) -> None:
    """After the last."""
    _patched.undo()
    _FOLDER.cleanup()
