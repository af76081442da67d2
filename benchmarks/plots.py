"""Draws the plots of the documentation from `benchmarks/RESULTS.md`: `python -m benchmarks.plots`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

from benchmarks.capacity import RESULTS, ROOT, read_table
from benchmarks.peers import NAMES

FOLDER = ROOT / "docs/images"
OURS, PEER, OTHER = "graph-agent", "create_agent", "others"

_WIDTH, _LEFT, _BAR, _GAP, _CHARACTER = 360, 14, 17, 5, 6.6
"""Pixels; the width is that of a phone, so that the text has the size of the page's text there."""
_STYLE = """\
text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600}.note{fill:#59636e}
.card{fill:#fff;stroke:#d1d9e0}.s0{fill:#3b5bdb}.s1{fill:#d9822b}.s2{fill:#98a2ad}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9aa4af}
.card{fill:#15181d;stroke:#30363d}.s0{fill:#7c95ff}.s1{fill:#e8a05c}.s2{fill:#6b7580}}"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a plot."""

    series: str
    value: float
    label: str
    """The value as it is printed, with its unit, and the name of one of several others."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Horizontal bars in groups, which share one axis that begins at zero."""

    title: str
    note: str
    """What the bars measure; less is better."""
    groups: Mapping[str, Sequence[Bar]]
    """Heading of a group → its bars."""

    def svg(self) -> str:
        """Return the plot, which follows the reader's light or dark theme."""
        series = list(dict.fromkeys(bar.series for bars in self.groups.values() for bar in bars))
        # Pixels of one unit, such that each bar has space for its label.
        scale = min(
            (_WIDTH - 2 * _LEFT - _CHARACTER * len(bar.label)) / bar.value
            for bars in self.groups.values()
            for bar in bars
        )
        parts = [_text(_LEFT, 24, self.title, "title"), _text(_LEFT, 43, self.note, "note")]
        y, x = 66, _LEFT
        for number, name in enumerate(series):
            parts += [f'<rect class="s{number}" x="{x}" y="{y - 10}" width="11" height="11" rx="2"/>']
            parts += [_text(x + 16, y, name)]
            x += 26 + 7 * len(name)
        for heading, bars in self.groups.items():
            y += 27
            parts.append(_text(_LEFT, y, heading))
            y += 7
            for bar in bars:
                width = max(2, round(bar.value * scale))
                kind = f"s{series.index(bar.series)}"
                parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}" rx="3"/>')
                parts.append(_text(_LEFT + width + 6, y + 13, bar.label))
                y += _BAR + _GAP
        height = y + 10
        card = f'<rect class="card" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>'
        description = escape("; ".join(f"{heading}: {_described(bars)}" for heading, bars in self.groups.items()))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH * 1.3:g}" role="img">'
            f"<title>{escape(self.title)}</title><desc>{description}</desc><style>{_STYLE}</style>\n"
            + "\n".join([card, *parts])
            + "\n</svg>\n"
        )


def plots(page: str) -> dict[str, Plot]:
    """Return the plots by file name.

    Args:
        page: The results.

    Raises:
        ValueError: If a figure is missing.
    """

    def read(title: str, column: str, works: Mapping[str, str], unit: str = "") -> list[Bar]:
        rows = {row["work"].replace("`", ""): row[column] for row in read_table(page, title)}
        return [Bar(series, _number(rows[work]), _label(rows[work], unit)) for series, work in works.items()]

    def others(title: str, column: str, work: str, unit: str = "") -> list[Bar]:
        rows = {row["work"].replace("`", ""): row[column] for row in read_table(page, title)}
        bars = []
        for name in (each.replace("`", "") for each in NAMES):
            if (cell := rows.get(f"{work}, {name}")) is not None:
                series, label = (name, "") if name in (OURS, PEER) else (OTHER, f" {name}")
                bars.append(Bar(series, _number(cell), _label(cell, unit) + label))
        return bars

    def times(title: str, work: str) -> list[Bar]:
        """Return CPU times as multiples of that of `create_agent`: ratios within a round vary less than times."""
        rows = {row["work"].replace("`", ""): row["CPU"] for row in read_table(page, title)}
        of_peer = _number(rows[f"{work}, {PEER}"])
        ratios = others(title, "CPU ratio", work)
        return [
            replace(
                bar, value=bar.value * of_peer, label=f"{bar.value * of_peer:.2f} ms{bar.label.lstrip('0123456789.')}"
            )
            for bar in ratios
        ]

    durable = {OURS: "own SQLite saver, writing tool", PEER: "LangGraph's SQLite saver, create_agent"}
    return {
        "turns": Plot(
            "A turn without a saver",
            "CPU time per turn; less is better",
            {f"{number} turns": times("Turns of other frameworks", f"{number} turns") for number in (10, 50, 200)},
        ),
        "turns-sqlite": Plot(
            "A stored turn",
            "CPU time per turn; less is better",
            {f"{number} turns": times("Stored turns of other frameworks", f"{number} turns") for number in (50, 200)},
        ),
        "sessions": Plot(
            "100 sessions at the same time",
            "CPU time per turn; less is better",
            {
                "in SQLite": read("Concurrent sessions", "CPU", durable),
                "nothing stored": times("Sessions of other frameworks", "100 sessions of 5 turns"),
            },
        ),
        "storage": Plot(
            "Storage",
            "KB per turn beyond the messages; less is better",
            {
                f"{number} turns": others("Storage of other frameworks", "KB/turn", f"{number} turns", " KB")
                for number in (50, 200)
            },
        ),
        "growth": Plot(
            "Growth with the history",
            "CPU of turn 190 to that of turn 20; 1 is no growth",
            {"one run of 200 turns": others("Growth of other frameworks", "ratio", "turns 180–199 to turns 10–29")},
        ),
    }


def write() -> None:
    """Write each plot that has changed."""
    for name, plot in plots(RESULTS.read_text(encoding="utf-8")).items():
        (FOLDER / f"{name}.svg").write_text(plot.svg(), encoding="utf-8")


def _number(cell: str) -> float:
    found = re.match(r"[\d.]+", cell.replace(",", ""))
    if found is None:
        raise ValueError(f"The results have {cell!r} in place of a number; run `make bench`.")
    return float(found[0]) / (1000 if "µs" in cell else 1)


def _label(cell: str, unit: str) -> str:
    return cell.partition(" /")[0] + unit


def _described(bars: Sequence[Bar]) -> str:
    return ", ".join(f"{bar.series} {bar.label}" for bar in bars)


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{attribute}>{escape(text)}</text>'


if __name__ == "__main__":
    write()
