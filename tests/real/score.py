"""Ask the real model the thirty questions through the shipped defaults, and print how it did.

    python -m tests.real.score [ALIAS ...] [--verbose] [--check]

An alias is the model's name at the server. `smollm2:135m` is a name that is known to lack tools, so that calls are
asked for in text at once; `local` is unknown, as most names of local servers are. With `--check` the exit status is 1
if an aim is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time

from graph_agent import LoopConfig
from scripts.local_model import model_server
from tests.real.questions import Score, ask_model, load_questions


async def score(model: str, config: LoopConfig | None = None, *, verbose: bool = False, each: int = 1) -> Score:
    """Ask each n-th question, one after another, and return the outcomes."""
    outcomes = []
    for question in load_questions()[::each]:
        outcome = await ask_model(question, model, config)
        outcomes.append(outcome)
        if verbose:
            right = "right" if question.is_right(outcome.calls) else "wrong"
            print(
                f"{right} {outcome.seconds:5.1f} s {outcome.output_tokens:4} {outcome.status:12} {question.ask!r}"
                f" {[(each['name'], each['arguments']) for each in outcome.calls]}"
                f" {outcome.answer[:160]!r} {outcome.warnings}",
                flush=True,
            )
    return Score(outcomes)


def main() -> None:
    """Print one line for each alias; exit with the aims that are missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("aliases", nargs="*")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--check", action="store_true", help="Fail if an aim is missed.")
    parser.add_argument("--each", type=int, default=1, help="Ask each n-th question only.")
    parser.add_argument("--config", default="{}", help="The configuration as JSON; the default is the shipped one.")
    arguments = parser.parse_args()
    config = LoopConfig.model_validate_json(arguments.config)
    failures = []
    for alias in arguments.aliases or ["local", "smollm2:135m"]:
        begun = time.monotonic()
        with model_server(alias) as base_url:
            os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"] = base_url, "any"
            found = asyncio.run(score(f"openai:{alias}", config, verbose=arguments.verbose, each=arguments.each))
        print(f"{alias}: {found}; {time.monotonic() - begun:.0f} s", flush=True)
        failures += [f"{alias}: {found.fails}"] if found.fails else []
    if arguments.check and failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
