"""Summarizes the trials of an evaluation: pass rates, measures, and the comparison of two agents.

Also writes the summary as JUnit XML, and as one HTML file with the sessions. A trial is one run of a case by one agent,
in a session of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

from graph_agent.base._internal.text import printable, printable_lines
from graph_agent.base.history.events import Event
from graph_agent.devtools.calls import CallDifference, compare_runs
from graph_agent.devtools.cases import Measures
from graph_agent.devtools.statistics import Estimate, mcnemar, paired_difference, pass_hat, pass_rate
from graph_agent.devtools.trials import Plan, Trial
from graph_agent.web.page import export_of, json_in_html, page, source_hash

REPORT_FORMAT = 1
"""Version of the JSON; a change that breaks readers increases it."""
MEASURES = tuple(each.name for each in fields(Measures))
"""Names of the measures: steps, tokens, cost, seconds."""


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """The trials of one case by one agent."""

    name: str
    agent: str
    trials: tuple[Trial, ...]
    """At least one."""

    @property
    def passed(self) -> int:
        """Number of trials that passed."""
        return sum(trial.passed for trial in self.trials)

    def mean(self, measure: str) -> float | None:
        """Return the mean of a measure, one of `MEASURES`, over the trials; None if one of them has no value."""
        values = [getattr(trial.measures, measure) for trial in self.trials]
        return None if None in values else fmean(values)


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """The cases of one agent, with their trials."""

    label: str
    cases: tuple[CaseSummary, ...]
    """At least one; each has the same number of trials."""

    @property
    def runs(self) -> int:
        """Number of trials of all cases."""
        return sum(len(case.trials) for case in self.cases)

    @property
    def passed(self) -> int:
        """Number of trials of all cases that passed."""
        return sum(case.passed for case in self.cases)

    @property
    def pass_rate(self) -> Estimate:
        """Share of the trials that passed, with its interval."""
        return pass_rate(self.passed, self.runs)

    @property
    def pass_hat(self) -> list[float]:
        """pass^1, pass^2, … up to the number of trials of a case: the probability that so many runs of a case all
        pass.
        """
        runs = len(self.cases[0].trials)
        return [pass_hat([case.passed for case in self.cases], runs, k) for k in range(1, runs + 1)]

    def mean(self, measure: str) -> float | None:
        """Return the mean of a measure over the cases; None if one of them has no value."""
        values = [value for case in self.cases if (value := case.mean(measure)) is not None]
        return fmean(values) if len(values) == len(self.cases) else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A second agent compared with a first one on the same cases."""

    first: AgentSummary
    second: AgentSummary

    @property
    def differences(self) -> dict[str, Estimate]:
        """The second agent's values minus the first's, with intervals: the pass rate as `passed`, and the measures.

        A measure is included only if both agents have it for all cases.
        """
        found = {
            "passed": paired_difference(
                [case.passed / len(case.trials) for case in self.first.cases],
                [case.passed / len(case.trials) for case in self.second.cases],
            )
        }
        for name in MEASURES:
            pairs = [(one.mean(name), other.mean(name)) for one, other in self._cases()]
            both = [(one, other) for one, other in pairs if one is not None and other is not None]
            if len(both) == len(pairs):
                found[name] = paired_difference([one for one, _ in both], [other for _, other in both])
        return found

    @property
    def changed(self) -> tuple[int, int]:
        """Number of cases of which only the first agent passed all trials, and number for the second."""
        # Only these cases carry information in McNemar's test: those on which the agents agree do not count.
        pairs = [(one.passed == len(one.trials), other.passed == len(other.trials)) for one, other in self._cases()]
        return pairs.count((True, False)), pairs.count((False, True))

    @property
    def changed_versions(self) -> dict[str, list[str]]:
        """The names of the prompts and of the tools whose versions differ: `{"prompts": […], "tools": […]}`."""
        one, other = _versions(self.first), _versions(self.second)
        return {
            kind: sorted(name for name in {*one[kind], *other[kind]} if one[kind].get(name) != other[kind].get(name))
            for kind in ("prompts", "tools")
        }

    def divergences(self) -> Iterator[tuple[str, CallDifference | None]]:
        """Yield the name of each case, and where the calls of the first trials begin to differ; None if they do not."""
        for one, other in self._cases():
            yield one.name, compare_runs(one.trials[0].calls, other.trials[0].calls)

    def _cases(self) -> list[tuple[CaseSummary, CaseSummary]]:
        """Pair the summaries of each case by both agents."""
        return [*zip(self.first.cases, self.second.cases, strict=True)]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of an evaluation: its plan, and its trials after they ran."""

    plan: Plan
    trials: tuple[Trial, ...]

    @property
    def agents(self) -> list[AgentSummary]:
        """The summary of each agent, in the order of the plan."""
        return [
            AgentSummary(label, tuple(summary for summary in self.cases if summary.agent == label))
            for label in self.plan.agents
        ]

    @property
    def cases(self) -> list[CaseSummary]:
        """The summary of each planned case by each agent, also of a case without a trial so far.

        Summaries of one case stand next to each other.
        """
        grouped: dict[tuple[str, str], list[Trial]] = {}
        for case in self.plan.cases:
            grouped |= {(case.name, label): [] for label in self.plan.agents}
        for trial in self.trials:
            grouped[trial.case.name, trial.agent].append(trial)
        return [CaseSummary(name, agent, tuple(trials)) for (name, agent), trials in grouped.items()]

    @property
    def comparison(self) -> Comparison | None:
        """The comparison of the first two agents; None if there is one agent."""
        agents = self.agents
        return Comparison(agents[0], agents[1]) if len(agents) > 1 else None

    @property
    def shown(self) -> list[Trial]:
        """The trials whose sessions are in the HTML report: those that failed, and the first one of each case."""
        return [trial for trial in self.trials if trial.number == 1 or not trial.passed]

    @property
    def passed(self) -> bool:
        """Whether every trial passed."""
        return all(trial.passed for trial in self.trials)

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as plain JSON: format, database, agents, trials and, with two agents, the comparison."""
        found: dict[str, Any] = {
            "format": REPORT_FORMAT,
            "db": self.plan.db,
            "passed": self.passed,
            "agents": [_agent_object(agent) for agent in self.agents],
            "trials": [trial_object(trial) for trial in self.trials],
        }
        if (comparison := self.comparison) is not None:
            only_first, only_second = comparison.changed
            found["comparison"] = {
                "differences": {name: each.as_json() for name, each in comparison.differences.items()},
                "only_first_passed": only_first,
                "only_second_passed": only_second,
                "p": round(mcnemar(only_first, only_second), 6),
                "versions": comparison.changed_versions,
                "diverges": {
                    name: difference.as_json() if difference is not None else None
                    for name, difference in comparison.divergences()
                },
            }
        return found

    def summary(self) -> Iterator[str]:
        """Yield the lines of text below the table of cases: pass rates, the comparison, and hints."""
        several = len(self.plan.agents) > 1
        for agent in self.agents:
            label = f"{agent.label}: " if several else ""
            line = f"{label}{agent.passed} of {agent.runs} passed: {agent.pass_rate.text('.0%')}"
            yield line + "".join(f", pass^{k} {value:.0%}" for k, value in enumerate(agent.pass_hat, 1) if k > 1)
        if (comparison := self.comparison) is not None:
            yield from _compared(comparison)
        if not self.passed:
            yield f"A session shows what happened: graph-agent trace SESSION --db {self.plan.db}"
        if stored := sum(trial.is_stored for trial in self.trials):
            ran = "1 run is" if stored == 1 else f"{stored} runs are"
            yield f"{ran} from an earlier evaluation; --fresh runs all cases again"


def case_line(summary: CaseSummary, width: int, agent_width: int = 0) -> str:
    """Return a case as one line of text: `pass` or `FAIL`, its name, the agent's label, and the measures.

    `width` is the columns for the name, `agent_width` those for the label; 0 leaves the label out.
    """
    mark = "pass" if summary.passed == len(summary.trials) else "FAIL"
    label = f"{summary.agent:<{agent_width}}  " if agent_width else ""
    return f"{mark}  {summary.name:<{width}}  {label}{'  '.join(cells(summary))}"


def cells(summary: CaseSummary) -> list[str]:
    """Return the measures of a case as texts, such as `["2/3", "2 steps", "1,204 tokens", "1.32 s"]`.

    The first one, of the trials that passed, is present if there are several; the cost is present if it is known.
    """
    steps, tokens, cost, seconds = (summary.mean(name) for name in MEASURES)
    found = [f"{summary.passed}/{len(summary.trials)}"] if len(summary.trials) > 1 else []
    found += [f"{steps or 0:g} steps", f"{tokens or 0:,.0f} tokens"]
    found += [f"cost {cost:.4f}"] if cost is not None else []
    return [*found, f"{seconds or 0:.2f} s"]


def failure_lines(summary: CaseSummary) -> Iterator[str]:
    """Yield the failed checks of a case, each once, and then the id of one session that failed.

    A check is followed by its number of trials if the case has several. Yields nothing if all trials passed.
    """
    found: dict[str, list[Trial]] = {}
    for trial in summary.trials:
        for failure in trial.failures:
            found.setdefault(str(failure), []).append(trial)
    for text, trials in found.items():
        times = f" ({len(trials)} of {len(summary.trials)} runs)" if len(summary.trials) > 1 else ""
        yield f"{text}{times}"
    # One session is enough to see what happened; the HTML report has the others.
    if found:
        yield f"session {next(iter(found.values()))[0].session_id}"


def _compared(comparison: Comparison) -> Iterator[str]:
    """Yield the lines of a comparison: the differences, the test of McNemar, and where the calls diverge."""
    yield f"{comparison.second.label} compared with {comparison.first.label}, with intervals of 95 %:"
    for name, difference in comparison.differences.items():
        form = {"passed": "+.1%", "tokens": "+,.0f", "cost": "+.4f"}.get(name, "+.2f")
        yield f"  {name:<8} {difference.text(form)}"
    for kind, names in comparison.changed_versions.items():
        if names:
            yield f"  {kind} that differ: {', '.join(names)}"
    only_first, only_second = comparison.changed
    alone = f"passed by the first alone: {only_first}, by the second alone: {only_second}"
    yield f"  {alone} (exact McNemar test: p = {mcnemar(only_first, only_second):.3f})"
    places = dict(comparison.divergences())
    for name, place in places.items():
        if place is not None:
            yield f"  {name} diverges at {place}"
    yield f"  cases with the same calls: {[*places.values()].count(None)} of {len(places)}"


def _versions(agent: AgentSummary) -> Mapping[str, Mapping[str, str]]:
    """Return the versions of the prompts and tools that an agent first planned with; empty if it made no plan."""
    trials = (trial for case in agent.cases for trial in case.trials)
    events: Iterator[Any] = (entry for trial in trials for result in trial.results for entry in result.events)
    return next((entry["versions"] for entry in events if "versions" in entry), {"prompts": {}, "tools": {}})


def _agent_object(agent: AgentSummary) -> dict[str, Any]:
    """Return the summary of an agent as plain JSON.

    It has the label, the numbers of runs and of those that passed, the pass rate, pass^k, and the means of the
    measures.
    """
    return {
        "agent": agent.label,
        "runs": agent.runs,
        "passed": agent.passed,
        "pass_rate": agent.pass_rate.as_json(),
        "pass_hat": [round(each, 6) for each in agent.pass_hat],
        **{name: agent.mean(name) for name in MEASURES},
    }


def trial_object(trial: Trial) -> Mapping[str, Any]:
    """Return a trial as plain JSON: case, agent, session, failures, answer, status, calls, measures, metadata.

    Answer and status are those of the last turn; empty and None if no turn ended.
    """
    last = trial.results[-1] if trial.results else None
    return {
        "case": trial.case.name,
        "agent": trial.agent,
        "trial": trial.number,
        "session_id": trial.session_id,
        "passed": trial.passed,
        "failures": [asdict(failure) for failure in trial.failures],
        "answer": last.answer if last else "",
        "status": last.status.value if last else None,
        "stop_reason": last.stop_reason if last else None,
        "calls": [asdict(call) for call in trial.calls],
        **asdict(trial.measures),
        "metadata": trial.case.metadata,
    }


def junit_of(report: Report, name: str) -> str:
    """Return JUnit XML, with one suite for each agent and one test for each trial; `name` is the class of the tests.

    A trial that raised, or whose run waits for an answer, is an error; one that did not pass a check, such as that of
    its status, is a failure. With several agents, the class is followed by the agent's label; with several trials, the
    name of the case by the number of the trial.
    """
    root = ElementTree.Element("testsuites", name=printable(name))
    for agent in report.agents:
        trials = [trial for case in agent.cases for trial in case.trials]
        # JUnit distinguishes a test that fails from one that could not run.
        broken = sum(any(failure.check == "run" for failure in trial.failures[:1]) for trial in trials)
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


def report_page(report: Report, histories: Mapping[str, Sequence[Event]]) -> str:
    """Return one HTML file: the cases, and the page of each session, which needs no server and no network.

    A link to the file with `#` and the id of a session opens that session. `histories` is session id → events.
    """
    template = page({"name": next(iter(report.plan.agents.values())).name, "description": "", "export": _PLACE})
    sessions = {session_id: export_of(session_id, events) for session_id, events in histories.items()}
    # The page of a session is shown in a frame of this file, which its own policy would forbid.
    policy = template.policy.replace("; frame-ancestors 'none'", "")
    policy = policy.replace("script-src ", f"script-src {source_hash(_SCRIPT)} ")
    policy = policy.replace("style-src ", f"style-src {source_hash(_STYLE)} ")
    # The list of cases gets the style of the page of a session, so that both look the same.
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
    """Return the HTML row of a case: its outcome, failed checks, measures, and links to the sessions that are in the
    file.

    If `several`, the row also has the label of the agent.
    """
    state = "pass" if summary.passed == len(summary.trials) else "fail"
    failures = "".join(f"<li>{_text(line)}</li>" for line in failure_lines(summary) if not line.startswith("session "))
    agent = f'<td class="soft">{_text(summary.agent)}</td>' if several else ""
    return (
        f'<tr><td class="{state}">{state}</td><td>{_text(summary.name)}<ul>{failures}</ul></td>{agent}'
        f'<td class="soft">{_text(", ".join(cells(summary)))}</td><td>{" ".join(_links(summary, sessions))}</td></tr>'
    )


def _links(summary: CaseSummary, sessions: Mapping[str, Sequence[Event]]) -> Iterator[str]:
    """Yield a link to each trial of a case whose session is in the file."""
    for trial in summary.trials:
        if trial.session_id in sessions:
            state = "pass" if trial.passed else "fail"
            yield f'<a class="{state}" href="#{_text(trial.session_id)}">run {trial.number}</a>'


def _text(text: str) -> str:
    """Escape a text for HTML, without characters that cannot be shown."""
    return escape(printable(text))
