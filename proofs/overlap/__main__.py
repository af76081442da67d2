"""Simulates the time to an answer with and without overlap: `python -m proofs.overlap [N]`, N items of each of BFCL.

First the published latencies of LLMCompiler (`proofs.llm_compiler`); then questions of the hotel example, of a research
and of BFCL, in each way of `proofs.overlap.ways`. The status is 1 if a check fails. Without N, all items are run, and
docs/benchmarks-overlap.md is written. BFCL is installed into the environment of `proofs.suites`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from benchmarks.harness import Table
from proofs import llm_compiler
from proofs.overlap.items import Item, beside_slow_call, bfcl, hotel, research
from proofs.overlap.ways import (
    BASES,
    BY_LEVEL,
    CREATE_AGENT,
    IN_VAIN,
    PREDICTED,
    STREAMED,
    WAYS,
    Pace,
    seconds,
)
from proofs.suites.__main__ import python

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-overlap.md"
PACES = {
    "usual": Pace(first_token_s=1.0, token_s=1 / 60, call_s=0.5),
    "fast model": Pace(first_token_s=0.4, token_s=1 / 120, call_s=0.5),
    "slow calls": Pace(first_token_s=1.0, token_s=1 / 60, call_s=2.0),
    "GPT-3.5 of the paper": Pace(first_token_s=0.64, token_s=0.032, call_s=1.0),
}
"""The first is that of the checks. That of the paper has the fitted seconds of a token; those of a call are split."""
SLOW_CALLS_S = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Seconds of the slow call of the questions for predicted plans."""
FASTER = 1.5
"""How many times as fast as `create_agent` an item with three dependent reading calls is answered, at least."""
SLOWER = 1.02
"""The time in each way, as a multiple of the same replies without overlap, at most."""

Times = Mapping[str, Sequence[float]]
"""Way → the seconds of each item."""


def times_of(items: Sequence[Item], pace: Pace) -> dict[str, list[float]]:
    """Return the seconds of each item in each way."""
    return {way: [seconds(way, item, pace) for item in items] for way in WAYS}


def beside_slow_calls() -> dict[float, dict[str, list[float]]]:
    """Return the seconds of the slow call → way → the seconds of each question of `beside_slow_call`, at the first
    pace."""
    first, items = next(iter(PACES.values())), beside_slow_call()
    ways = (BY_LEVEL, PREDICTED, IN_VAIN)
    paces = {slow_s: replace(first, slow_call_s=slow_s) for slow_s in SLOW_CALLS_S}
    return {s: {way: [seconds(way, item, pace) for item in items] for way in ways} for s, pace in paces.items()}


def failures(items: Sequence[Item], times: Times, slow: Mapping[float, Times] = MappingProxyType({})) -> Iterator[str]:
    """Yield a line for each item that fails a check.

    Args:
        items: The items.
        times: Their seconds in each way, at the first pace.
        slow: The result of `beside_slow_calls`.
    """
    for slow_s, of in slow.items():
        for way in (PREDICTED, IN_VAIN):
            for mine, whole in zip(of[way], of[BY_LEVEL], strict=True):
                if (ratio := mine / whole) > SLOWER:
                    yield f"Beside a call of {slow_s:g} s, {way} takes {ratio:.3f} × {BY_LEVEL}; aim: ≤ {SLOWER}"
    for at, item in enumerate(items):
        faster = times[CREATE_AGENT][at] / times[STREAMED][at]
        if item.is_chain and faster < FASTER:
            yield f"{item.suite}, {item.question[:60]!r}: {faster:.2f} × as fast as create_agent; aim: ≥ {FASTER}"
        for way, base in BASES.items():
            if (ratio := times[way][at] / times[base][at]) > SLOWER:
                yield f"{item.suite}, {item.question[:60]!r}: {way} takes {ratio:.3f} × {base}; aim: ≤ {SLOWER}"


def by_suite(items: Sequence[Item], times: Times) -> Table:
    """Return the median seconds of each suite in each way."""
    suites = list(dict.fromkeys(item.suite for item in items))
    places = {suite: [at for at, item in enumerate(items) if item.suite == suite] for suite in suites}
    chains = [at for at, item in enumerate(items) if item.is_chain]
    rows = []
    for way, found in times.items():
        medians = [f"{statistics.median(found[at] for at in places[suite]):.2f}" for suite in suites]
        ratios = [times[CREATE_AGENT][at] / found[at] for at in chains]
        rows.append([way, *medians, f"{min(ratios):.2f} to {max(ratios):.2f}"])
    columns = ["way", *(f"{suite} ({len(places[suite])})" for suite in suites), f"dependent calls ({len(chains)}) ×"]
    return Table("Seconds to the answer", "Medians.", columns, rows)


def by_pace(items: Sequence[Item]) -> Table:
    """Return how many times as fast as `create_agent` items with dependent reading calls are answered at each pace."""
    chains = [item for item in items if item.is_chain]
    rows = []
    for name, pace in PACES.items():
        times = times_of(chains, pace)
        theirs = times.pop(CREATE_AGENT)
        medians = [statistics.median(a / b for a, b in zip(theirs, mine, strict=True)) for mine in times.values()]
        setting = [f"{pace.first_token_s:g}", f"{1 / pace.token_s:.0f}", f"{pace.call_s:g}"]
        rows.append([name, *setting, *(f"{median:.2f}" for median in medians)])
    ways = [way for way in WAYS if way != CREATE_AGENT]
    columns = ["pace", "first token s", "tokens a s", "call s", *ways]
    return Table("Other paces", "Medians of the ratios to `create_agent`.", columns, rows)


def by_slow_call(slow: Mapping[float, Times]) -> Table:
    """Return the median seconds of each way beside slow calls."""
    ways = next(iter(slow.values()))
    rows = [[way, *(f"{statistics.median(of[way]):.2f}" for of in slow.values())] for way in ways]
    return Table("Beside a slow call", "Medians.", ["way", *(f"{slow_s:g} s" for slow_s in slow)], rows)


_TEXT = """# Overlap by simulation

What [overlap](guides/overlap.md) is worth, without a provider: scripted replies arrive token by token on a virtual
clock, and tools take a fixed time. The simulation leaves out the time of the executor itself, the spread of real
latencies, rate limits, and plans that a model gets wrong: the model is taken to know the whole plan at once.

## Time to the answer

Median seconds from the question to the whole answer; the number of questions in brackets. A reply begins after
{first_token_s:g} s and has {tokens:.0f} tokens a second, at four characters a token; a call takes {call_s:g} s.

{by_suite}

- `create_agent` is LangChain's, run under the same clock; its model makes all calls of a level at once.
- *LLMCompiler by hand* is a planner, tasks and a joiner in 40 lines (`proofs/overlap/compiler.py`), with a plan of one
  line a task in place of JSON. It begins writing calls early, too, which no way of this package does.
- `wave` has one structured plan with references; `streamed` and `candidates` have the same plan with
  `dispatch="streamed"` or `candidates=3`. A streamed plan has its calls before its other fields, as the prompt and the
  schema then ask for it; the first call is complete 0.2 s earlier for that reason.
- `native` has a reply for each level, as `create_agent`. `table` has the same replies with `predict="table"`, in an
  agent that has answered the same question twice before: the most that the table can gain.
- `wave, by level` has a structured plan for each level. `predicted` has the same plans with `predict=True`, and `in
  vain` has a model that waits whenever it is asked before its time. All calls take equally long here, so that there is
  nothing to gain, and nothing is lost; the next table has a slow call.

The last column has the {chains} questions of which three or more reading calls depend on each other: how many times as
fast as `create_agent` they are answered, the lowest and the highest. `make proofs` fails if `streamed` is below
{faster:g}, or if a way takes more than 2 % longer than the same replies without overlap (`wave`, `native`, `wave, by
level`).

- *hotel*: the questions of `make demo`, with the calls that the example's own rules plan. *research*: three questions,
  in `proofs/overlap/items.py`.
- *BFCL*: gold calls of items with several calls. Those of `parallel` and `parallel_multiple` are independent, and
  overlap gains the least there. The calls of a multi-turn item are taken to need each the one before. Turns with three
  calls or more count; those that write cannot begin early.

## The next plan beside a slow call

The questions of *research*, each with one call more in its first wave, whose result only the answer needs. The columns
are the seconds of that call; all others take {call_s:g} s.

{by_slow_call}

A prediction is sent 0.1 s after the other calls have ended. If the slow call ends before the first token of the
prediction, the request with all results is sent, too, and the first plan is taken. If the reply has begun with a plan,
the pass waits for its end. To cancel every prediction that was not whole, as earlier versions did, gained nothing below
3 s, and as much from there on. `make proofs` fails if a prediction costs more than 2 %.

## At other paces

Median ratios of `create_agent`'s time to that of each way, for the questions with dependent reading calls:

{by_pace}

## LLMCompiler's published latencies

Latencies of the LLMCompiler paper (arXiv:2312.04511v3), and those of this executor. Two delays are fitted to the rows
of ReAct alone; the other rows are predictions. {fit}

{published}

The streamed planner's row runs with `dispatch="streamed"`; all replies of a row are taken to be equally long. OpenAI's
rows have one plan for each level of calls, without `needs` inside a wave.

The published figures are those of the paper's Tables 1 (latencies), 2 (tokens) and C.1 (with and without a streamed
planner). They were compared with reading notes on that version of the paper which quote these tables, not with the
paper itself. The notes lack OpenAI's latency in ParallelQA, so its row was removed: it had 19.29 s, without a source,
and the largest error (+25 %). Table 1 has the latency of ReAct with a prompt against repetitions, Table 2 the tokens of
ReAct without it; the fit takes both as those of one run.

## Run it again

`make proofs ITEMS=` writes this page, and [that of the public benchmarks](benchmarks-public.md#run-it-again).
"""


def write(items: Sequence[Item], times: Times, slow: Table, paces: Table, published: Table) -> None:
    """Write the page."""
    first = next(iter(PACES.values()))
    PAGE.write_text(
        _TEXT.format(
            first_token_s=first.first_token_s,
            tokens=1 / first.token_s,
            call_s=first.call_s,
            by_suite=by_suite(items, times).markdown(),
            chains=sum(item.is_chain for item in items),
            faster=FASTER,
            by_slow_call=slow.markdown(),
            by_pace=paces.markdown(),
            fit=published.note,
            published=published.markdown(),
        )
    )


def main() -> None:
    """Print the tables, and exit with the checks that fail."""
    published = llm_compiler.table()
    print(f"{published.title}\n\n{published.note}\n\n{published.markdown()}\n")
    most = int(sys.argv[1]) if len(sys.argv) > 1 else None
    items = [*hotel(), *research(), *bfcl(python(), most)]
    times = times_of(items, next(iter(PACES.values())))
    paces = by_pace(items)
    slow = beside_slow_calls()
    for table in (by_suite(items, times), by_slow_call(slow), paces):
        print(f"{table.title}\n\n{table.note}\n\n{table.markdown()}\n")
    if most is None:
        write(items, times, by_slow_call(slow), paces, published)
    if failed := list(failures(items, times, slow)):
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
