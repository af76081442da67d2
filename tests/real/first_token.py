"""Measure the time to the first token through `graph-agent serve`, as a ratio to that of the model's own server.

    python -m tests.real.first_token [ROUNDS]

Both receive questions of the same length in turns, each with other first words, so that the server's cache of prompts
holds neither. The ratio is that of the medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from scripts.local_model import model_server
from tests.interfaces.server.process import serving

_WORDS = "The sea is deep and blue, and the boats are small. " * 12


def first_token_s(http: httpx.Client, path: str, body: dict[str, Any]) -> float:
    """Seconds from a streamed request to the first piece of text."""
    begun = time.monotonic()
    with http.stream("POST", path, json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                if choices and choices[0]["delta"].get("content"):
                    return time.monotonic() - begun
    raise AssertionError("The reply has no text.")


def main() -> None:
    """Print the medians and their ratio."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    own: list[float] = []
    served: list[float] = []
    prompt = "You are a helpful assistant."
    agent = {"name": "local", "model": "openai:local", "system_prompt": prompt, "config": {"max_output_tokens": 8}}
    with tempfile.TemporaryDirectory() as folder, model_server("local", context=4096) as base_url:
        environment = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "any"}
        with (
            serving(Path(folder), agent=agent, environment=environment) as server,
            server.http() as through,
            httpx.Client(base_url=base_url, trust_env=False, timeout=120) as direct,
        ):
            for number in range(rounds + 1):
                for client, times, word in ((direct, own, "one"), (through, served, "two")):
                    user = {"role": "user", "content": f"{number} {word}: {_WORDS}"}
                    messages = [*([{"role": "system", "content": prompt}] if client is direct else []), user]
                    body = {"model": "local", "messages": messages, "max_tokens": 8}
                    path = "/v1/chat/completions" if client is through else f"{base_url}/chat/completions"
                    taken = first_token_s(client, path, body)
                    # The first round loads code.
                    if number:
                        times.append(taken)
    ratio = statistics.median(served) / statistics.median(own)
    print(
        f"own {statistics.median(own):.3f} s, through the agent's server {statistics.median(served):.3f} s: {ratio:.3f}"
    )


if __name__ == "__main__":
    main()
