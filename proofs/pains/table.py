"""The recorded verdicts in `results/`, and docs/why.md, which is made from them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from proofs.pains import environments
from proofs.pains.scenarios import SCENARIOS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "why.md"
TITLES = {
    "graph_agent": "graph-<br>agent",
    "create_agent": "create_<br>agent",
    "deepagents": "deep-<br>agents",
    "create_react_agent": "create_<br>react_<br>agent",
    "openai_agents": "openai-<br>agents",
    "pydantic_ai": "pydantic-<br>ai",
    "strands": "strands",
    "smolagents": "smol-<br>agents",
    "google_adk": "google-<br>adk",
    "agno": "agno",
    "agent_framework": "agent-<br>framework",
}
"""Adapter → heading of its column, which is narrow; the control has none."""


@dataclass
class Record:
    """The last recorded run of one adapter."""

    package: str = ""
    version: str = ""
    date: str = ""
    opt_in: str = ""
    """The settings of the second run; empty if there are none."""
    verdicts: dict[str, dict[str, str]] = field(default_factory=dict)
    """Scenario → `default` and `opt_in` (each `pass`, `fail` or `n/a`), and `seen`."""


def read(name: str) -> Record:
    """The record of an adapter; an empty one if it never ran."""
    file = HERE / "results" / f"{name}.json"
    return Record(**json.loads(file.read_text())) if file.exists() else Record()


def write(name: str, about: Mapping[str, str], verdicts: Mapping[str, Mapping[str, str]]) -> None:
    """Record verdicts; those of scenarios that did not run are kept."""
    known = {scenario.name() for scenario in SCENARIOS}
    merged = {key: dict(value) for key, value in {**read(name).verdicts, **verdicts}.items() if key in known}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    record = Record(about["PACKAGE"], about["version"], today, about["OPT_IN"], dict(sorted(merged.items())))
    (HERE / "results" / f"{name}.json").write_text(json.dumps(asdict(record), indent=1, ensure_ascii=True) + "\n")


def _cell(verdict: Mapping[str, str] | None) -> str:
    if verdict is None:
        return ""
    if verdict["default"] == "fail" and verdict.get("opt_in") == "pass":
        return "(✓)"
    return {"pass": "✓", "fail": "✗", "n/a": "–"}[verdict["default"]]


def page() -> str:
    """docs/why.md, from the recorded verdicts."""
    records = {name: record for name in TITLES if (record := read(name)).verdicts}
    lines = [
        "| what must hold | " + " | ".join(TITLES[name] for name in records) + " |",
        "|---" * (1 + len(records)) + "|",
    ]
    for scenario in SCENARIOS:
        cells = [_cell(record.verdicts.get(scenario.name())) for record in records.values()]
        lines.append(f"| [{scenario.title()}]({scenario.issue()[0]}) | " + " | ".join(cells) + " |")
    versions = ["| name | measured version | date | holds | opt-in settings |", "|---|---|---|---|---|"]
    for name, record in records.items():
        versions.append(
            f"| `{name}` | {record.package} {record.version} | {record.date} | {_counts(record)} "
            f"| {record.opt_in or 'none'} |"
        )
    text = (HERE / "why.md").read_text()
    return text.replace("<!-- table -->", "\n".join(lines)).replace("<!-- versions -->", "\n".join(versions))


def _counts(record: Record) -> str:
    """How many rows hold by default, of those that apply."""
    kinds = [verdict["default"] for verdict in record.verdicts.values()]
    return f"{kinds.count('pass')} of {kinds.count('pass') + kinds.count('fail')}"


def all_names() -> list[str]:
    """Every adapter that the table has a column for, and whose environment is described."""
    return ["graph_agent", *environments.NAMES]
