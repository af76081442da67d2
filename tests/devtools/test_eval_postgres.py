"""`graph-agent eval`, `report` and `replay --all` on a database of PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.postgres_server import on_postgres

pytestmark = on_postgres

AGENT = 'name: payer\nmodel: openai:gpt-4o-mini\ntools: ["my_tools:pay"]\n'
TOOLS = '''
from pathlib import Path


def pay(amount: int) -> str:
    """Pay."""
    with Path("paid").open("a") as file:
        file.write(f"{amount}\\n")
    return "paid"
'''
CASES = """
agent: agent.yaml
cases:
  - {name: one, input: Pay 5., expect: {calls: [pay], answer: {equals: You paid 5.}}}
  - {name: two, input: Pay now., expect: {calls: [pay]}}
"""
PAYS = [asks(("a", "pay", {"amount": 5})), "You paid 5."]


def test_an_evaluation_runs_once_and_is_reported_and_replayed(postgres_url: str, tmp_path: Path) -> None:
    for name, text in {"agent.yaml": AGENT, "my_tools.py": TOOLS, "cases.yaml": CASES}.items():
        (tmp_path / name).write_text(text)
    on_database = ("--db", postgres_url, "--json")

    evaluations = [run_cli(tmp_path, "eval", "cases.yaml", *on_database, script=PAYS) for _ in range(2)]
    report = run_cli(tmp_path, "report", "--config", "agent.yaml", *on_database)
    replay = run_cli(tmp_path, "replay", "--all", "--config", "agent.yaml", *on_database)

    assert [done.returncode for done in (*evaluations, report, replay)] == [0] * 4, report.stderr + replay.stderr
    assert (
        [json.loads(done.stdout)["agents"][0]["passed"] for done in evaluations],
        (tmp_path / "paid").read_text(),
        json.loads(report.stdout)["inputs"],
        [each["equal"] for each in map(json.loads, replay.stdout.splitlines())],
    ) == ([2, 2], "5\n5\n", 2, [True, True, 2])  # the last line is the summary
