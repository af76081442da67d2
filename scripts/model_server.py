"""Serves a GGUF file with llama.cpp's own server, from the wheel `xllamacpp`; runs in an environment of its own.

    python model_server.py MODEL.gguf [--context 2048] [--alias NAME] [--template FILE] [--port 0]

Prints the address as one line on standard output once the model is loaded, and ends when standard input is closed, so
that the server does not outlive the program that started it. One thread, temperature 0 and no busy waiting: the same
request gives the same reply, and other processes have their share of a small machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

_MAX_OUTPUT = 400
"""Tokens of a reply: a small model that repeats itself ends here."""


def lacks_avx2(machine: str | None = None, cpuinfo: str | None = None) -> str:
    """Return why this machine cannot run the wheel's llama.cpp; empty if it can, or if that is unknown.

    The wheel is compiled for AVX2. Without it the process would end with SIGILL and no message.

    Args:
        machine: The processor's architecture; None for this machine's.
        cpuinfo: The text of Linux's `/proc/cpuinfo`; None to read it.
    """
    machine = platform.machine() if machine is None else machine
    if machine.lower() not in ("x86_64", "amd64"):
        return ""
    if cpuinfo is None:
        file = Path("/proc/cpuinfo")
        cpuinfo = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split()}
    if not flags or "avx2" in flags:
        return ""
    return (
        "The processor of this machine has no AVX2, which llama.cpp in the wheel xllamacpp needs; "
        "run `make real` and `make demo-local` on another machine."
    )


def serve(arguments: argparse.Namespace) -> None:
    """Load the model, print the address, and serve until standard input is closed."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.model_alias = {arguments.alias}
    params.n_ctx = arguments.context
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.n_predict = _MAX_OUTPUT
    params.sampling.temp = 0
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = 1
        threads.poll = 0
    params.n_threads_http = 4
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    params.use_jinja = True
    params.ui = False
    if arguments.template is not None:
        params.chat_template = Path(arguments.template).read_text(encoding="utf-8")
    # llama.cpp writes its log to standard output, too.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = xllamacpp.Server(params)
    print(server.listening_address, file=output, flush=True)
    sys.stdin.read()
    # Its threads have no orderly end, and hold nothing that must be kept.
    os._exit(0)


def main() -> None:
    """Parse the command line, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--alias", default="local")
    parser.add_argument("--template")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    if reason := lacks_avx2():
        sys.exit(reason)
    serve(arguments)


if __name__ == "__main__":
    main()
