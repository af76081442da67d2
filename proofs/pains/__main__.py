"""Runs the scenarios: python -m proofs.pains [NAME …] [--only SCENARIO …] [--opt-in] [--write]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from proofs.pains import environments, table
from proofs.pains.runner import Worker, judge
from proofs.pains.scenario import Scenario
from proofs.pains.scenarios import SCENARIOS

HERE = {"graph_agent": "proofs.pains.ours", "control": "proofs.pains.control"}
"""Adapters that run in the environment of this project."""


def main() -> None:
    """Run scenarios against adapters; the status is 1 if a verdict is not the recorded one."""
    parser = argparse.ArgumentParser(prog="python -m proofs.pains", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"graph_agent (default), control (default), all, {', '.join(environments.NAMES)}",
    )
    scenarios = [scenario.name() for scenario in SCENARIOS]
    parser.add_argument("--only", nargs="+", metavar="SCENARIO", default=scenarios, help=f"of {', '.join(scenarios)}")
    parser.add_argument("--opt-in", action="store_true", help="also with settings that are off by default")
    parser.add_argument("--write", action="store_true", help="record the verdicts, and write docs/why.md")
    given = parser.parse_args()
    for kind, asked, known in (
        ("name", given.names, {"all", *HERE, *environments.NAMES}),
        ("scenario", given.only, set(scenarios)),
    ):
        if unknown := sorted(set(asked) - known):
            parser.error(f"Unknown {kind} {', '.join(unknown)}; known: {', '.join(sorted(known))}.")
    names = [*HERE, *environments.NAMES] if given.names == ["all"] else given.names or list(HERE)
    changed = False
    for name in names:
        changed |= run(name, given.only, opt_in=given.opt_in, write=given.write)
    sys.exit(changed and not given.write)


def run(name: str, only: list[str], *, opt_in: bool, write: bool) -> bool:
    """Run one adapter, and print its verdicts; True if one is not the recorded one."""
    python = Path(sys.executable) if name in HERE else environments.python_of(name)
    recorded, verdicts = table.read(name).verdicts, {}
    with Worker(python, HERE.get(name, f"proofs.pains.adapters.{name}")) as worker:
        about = worker.about
        print(f"{name}: {about['PACKAGE']} {about['version']}")
        for scenario in SCENARIOS:
            if scenario.name() in only:
                verdict = verdicts[scenario.name()] = both(worker, scenario, opt_in=opt_in and bool(about["OPT_IN"]))
                print(
                    "  "
                    + "  ".join(
                        [f"{verdict['default']:5}", f"{verdict.get('opt_in', ''):5}", scenario.name(), verdict["seen"]]
                    )
                )
    changed = [
        key
        for key, verdict in verdicts.items()
        if verdict["default"] != recorded.get(key, {"default": "pass"})["default"]
    ]
    if write and name != "control":
        table.write(name, about, verdicts)
        table.PAGE.write_text(table.page())
    elif changed:
        print(f"  Not as recorded: {', '.join(changed)}.")
    return bool(changed)


def both(worker: Worker, scenario: type[Scenario], *, opt_in: bool) -> dict[str, str]:
    """The verdict by default, and the one with opt-in settings where the first is no pass."""
    first = judge(worker, scenario)
    verdict = {"default": first.kind, "seen": first.seen}
    if opt_in and first.kind == "fail":
        second = judge(worker, scenario, opt_in=True)
        verdict |= {"opt_in": second.kind, **({"seen_opt_in": second.seen} if second.seen else {})}
    return verdict


if __name__ == "__main__":
    main()
