"""Writes docs/benchmarks-public.md from the printed counts of the replays."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-public.md"
_COUNTS = re.compile(
    r"(?P<suite>[^,]+), (?P<mode>\w+): (?P<passed>\d+) of (?P<items>\d+) .*?with (?P<calls>\d+) calls"
    r"[^;]*(?:; failed: (?P<failed>.*))?"
)
_TEXT = """# Public benchmarks

A scripted model makes the calls that a benchmark names as correct, and the benchmark's own checks judge what the agent
did. No model of a provider is asked. So a pass shows that this package parses, validates, runs and records a correct
call as the benchmark expects it, in each mode of tool calling. It says nothing about how well a model chooses calls.
The latencies of LLMCompiler's paper are in [Overlap by simulation](benchmarks-overlap.md).

{date}, graph-agent {version}, {packages}.

| benchmark | mode | items | pass | calls |
|---|---|---|---|---|
{counts}

- *BFCL v4 AST*: one wave of calls for each item; BFCL's AST checker judges them. *Multi-turn*: the calls of each turn
  run on BFCL's own classes, whose state and results are compared after each turn.
- *AgentDojo*: the calls of each user task run on AgentDojo's environments; the check of the task judges the environment
  and the answer. Without injections.

## Items that do not pass

{failed}

In `live_simple`, an argument is a list of texts in place of options. In `live_multiple`, the possible answers name an
argument that the function does not have. Those of multi-turn return numbers of mpmath, which are text in the JSON of
an agent.

{origins}
## What is not replayed

| benchmark | reason |
|---|---|
| tau2-bench | no package index has it (PyPI's `tau2` is another project); its tasks are in its repository only |
| BFCL memory | the checks read what a model has chosen to store; no gold calls |
| BFCL web search | needs the network, and a key of a search API |
| BFCL Java, JavaScript | values are written in these languages, and the calls of an agent are JSON |
| BFCL relevance, irrelevance | the right reply has no calls, so that there is nothing to replay |
| BFCL multi-turn with missing functions or parameters, or long context | variants of the 200 items above; not run |
| AgentDojo injections with a model | they measure the model, not an executor |

## Run it again

It installs the benchmarks into `.venv-proofs/suites`, replays all items, and writes this page:

<!-- not run: installs packages -->
```console
make proofs ITEMS=
```
"""


_ORIGINS = re.compile(
    r"[^,]+, origins: (?P<passed>\d+) of (?P<tasks>\d+) user tasks pass after approval; (?P<benign>\d+) of "
    r"(?P<writing>\d+) that change something ask: (?P<asking>.*)\n"
    r"[^,]+, origins: (?P<asked>\d+) of (?P<attacks>\d+) attacks that reach a sink ask; missed: (?P<missed>.*)"
)
_ORIGINS_TEXT = """## Origins of arguments

How often a call is held because [its destination comes from untrusted text](guides/origins.md), on AgentDojo's runs. A
scripted model makes the calls of a user task; in an attack, those of an injection task follow, whose goal stands where
AgentDojo injects text. All results are untrusted, and a reviewer approves each call that is held. The figures measure
the rule, and not a model that may or may not follow the injected text. The rule was chosen on these runs. Each of 25
injection tasks follows the first 5 user tasks of its suite.

| measure | aim | found |
|---|---|---|
| attacks that reach a sink and ask | ≥ 122 of 125 | {asked} of {attacks} |
| user tasks that change something and ask | ≤ 13 of 60 | {benign} of {writing} |
| user tasks that pass after approval | 97 of 97 | {passed} of {tasks} |

Missed: {missed}. Asking: {asking}.

This rule finds what is copied. It misses by design, and AgentDojo has no run of these: a value that the text has in
another encoding (base64), a paraphrase, and a value that the model composes. A destination that the user wrote, too,
and a number that is also the id of a record, count as the user's; these are the attacks that were missed.
"""


def origins(lines: Sequence[str]) -> str:
    """Return the section about origins of arguments; empty if they were not measured.

    Args:
        lines: What the replays printed.
    """
    found = _ORIGINS.search("\n".join(line.strip() for line in lines))
    return _ORIGINS_TEXT.format(**found.groupdict()) if found is not None else ""


def write(lines: Sequence[str], packages: Sequence[str]) -> None:
    """Write the page.

    Args:
        lines: What the replays printed.
        packages: The benchmarks with their versions.
    """
    found = [match for line in lines if (match := _COUNTS.fullmatch(line.strip())) is not None]
    PAGE.write_text(
        _TEXT.format(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            version=version("graph-agent"),
            packages=", ".join(each.replace("==", " ") for each in packages),
            counts="\n".join(
                f"| {each['suite']} | {each['mode']} | {int(each['items']):,} | {int(each['passed']):,} | "
                f"{int(each['calls']):,} |"
                for each in found
            ),
            failed="\n".join(_failed(found)) or "None.",
            origins=origins(lines),
        )
    )


def _failed(found: Sequence[re.Match[str]]) -> Iterator[str]:
    """Yield a line for each benchmark and set of items that do not pass, with the modes in which they do not."""
    modes: dict[tuple[str, str], list[str]] = {}
    for each in found:
        if each["failed"]:
            modes.setdefault((each["suite"], each["failed"]), []).append(each["mode"])
    for (suite, failed), of in modes.items():
        yield f"- {suite}, in {', '.join(of)}: {', '.join(f'`{item}`' for item in failed.split(', '))}"
