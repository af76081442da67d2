"""Writes an evaluation as JUnit XML, and as one HTML file with the sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from xml.etree import ElementTree

from graph_agent._internal.text import printable, printable_lines
from graph_agent.evaluation.report import CaseSummary, Report, cells, failure_lines
from graph_agent.evaluation.runner import Trial
from graph_agent.state.events import Event
from graph_agent.web.page import export_of, json_in_html, page, source_hash


def junit_of(report: Report, name: str) -> str:
    """Return JUnit XML, with one suite for each agent and one test for each trial.

    Args:
        name: Name of the cases, the class of every test.
    """
    root = ElementTree.Element("testsuites", name=printable(name))
    for agent in report.agents:
        trials = [trial for case in agent.cases for trial in case.trials]
        broken = sum(_is_broken(trial) for trial in trials)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=printable(agent.label),
            tests=str(len(trials)),
            failures=str(len(trials) - agent.passed - broken),
            errors=str(broken),
            time=f"{sum(trial.measures.seconds for trial in trials):.3f}",
        )
        for trial in trials:
            number = f" [{trial.number}]" if report.plan.trials > 1 else ""
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=printable(f"{name}.{agent.label}" if len(report.plan.agents) > 1 else name),
                name=printable(trial.case.name) + number,
                time=f"{trial.measures.seconds:.3f}",
            )
            for failure in trial.failures[:1]:  # a test has one outcome
                kind = "error" if failure.check == "run" else "failure"
                found = ElementTree.SubElement(case, kind, type=failure.check, message=printable(failure.message))
                found.text = printable_lines("\n".join(map(str, trial.failures)))
            ElementTree.SubElement(case, "system-out").text = f"session {trial.session_id}"
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _is_broken(trial: Trial) -> bool:
    return any(failure.check == "run" for failure in trial.failures[:1])


_STYLE = """
#list { max-width: 1100px; margin: 0 auto; padding: 24px; }
#list h1 { font-size: 22px; margin-bottom: 12px; }
#list table { border-collapse: collapse; width: 100%; margin: 16px 0; }
#list td { border-top: 1px solid var(--line); padding: 8px 12px 8px 0; vertical-align: top; }
#list td:not(:nth-child(2)) { white-space: nowrap; }
#list .soft { color: var(--soft); }
#list .pass { color: var(--good-line); }
#list .fail { color: var(--bad-line); }
#list li { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
#view { position: fixed; inset: 0; display: flex; flex-direction: column; }
#view[hidden] { display: none; }
#view a { padding: 6px 12px; color: var(--accent); }
#view iframe { flex: 1; border: 0; width: 100%; }
"""
_PLACE = "@SESSION@"
_SCRIPT = """"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const page = read("page"), sessions = read("sessions");
const list = document.getElementById("list"), view = document.getElementById("view");
function show() {
  const session = sessions[location.hash.slice(1)];
  list.hidden = Boolean(session);
  view.hidden = !session;
  const data = () => JSON.stringify(session).replaceAll("<", "\\\\u003c");
  view.querySelector("iframe").srcdoc = session ? page.replace('"@SESSION@"', data) : "";
}
addEventListener("hashchange", show);
show();
"""


def page_of(report: Report, histories: Mapping[str, Sequence[Event]]) -> str:
    """Return one HTML file: the cases, and the page of each session, which needs no server and no network.

    A link to the file with `#` and the id of a session opens the session.

    Args:
        histories: Session id → its events, for the sessions to include.
    """
    template = page({"name": next(iter(report.plan.agents.values())).name, "description": "", "export": _PLACE})
    sessions = {session_id: export_of(session_id, events) for session_id, events in histories.items()}
    policy = template.policy.replace("; frame-ancestors 'none'", "")
    policy = policy.replace("script-src ", f"script-src {source_hash(_SCRIPT)} ")
    policy = policy.replace("style-src ", f"style-src {source_hash(_STYLE)} ")
    style = template.html.partition("<style>")[2].partition("</style>")[0]
    title = f"{'Passed' if report.passed else 'Failed'}: {', '.join(report.plan.agents)}"
    rows = "".join(_row(summary, histories, several=len(report.plan.agents) > 1) for summary in report.cases)
    lines = "<br>".join(_text(line) for line in report.summary())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{_text(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{style}</style><style>{_STYLE}</style></head><body>'
        f'<main id="list"><h1>{_text(title)}</h1><p>{lines}</p><table>{rows}</table></main>'
        f'<section id="view" hidden><a href="#">All cases</a><iframe title="Session"></iframe></section>'
        f'<script type="application/json" id="page">{json_in_html(template.html)}</script>'
        f'<script type="application/json" id="sessions">{json_in_html(sessions)}</script>'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _row(summary: CaseSummary, sessions: Mapping[str, Sequence[Event]], *, several: bool) -> str:
    state = "pass" if summary.passed == len(summary.trials) else "fail"
    failures = "".join(f"<li>{_text(line)}</li>" for line in failure_lines(summary) if not line.startswith("session "))
    agent = f'<td class="soft">{_text(summary.agent)}</td>' if several else ""
    return (
        f'<tr><td class="{state}">{state}</td><td>{_text(summary.name)}<ul>{failures}</ul></td>{agent}'
        f'<td class="soft">{_text(", ".join(cells(summary)))}</td><td>{" ".join(_links(summary, sessions))}</td></tr>'
    )


def _links(summary: CaseSummary, sessions: Mapping[str, Sequence[Event]]) -> Iterator[str]:
    for trial in summary.trials:
        if trial.session_id in sessions:
            state = "pass" if trial.passed else "fail"
            yield f'<a class="{state}" href="#{_text(trial.session_id)}">run {trial.number}</a>'


def _text(text: str) -> str:
    return escape(printable(text))
