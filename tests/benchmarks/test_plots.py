"""The plots of the documentation show the measured figures."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.capacity import RESULTS
from benchmarks.plots import FOLDER, Bar, Plot, plots

DRAWN = plots(RESULTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", DRAWN)
def test_a_plot_shows_the_figures_of_the_results(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == DRAWN[name].svg(), "run `python -m benchmarks.plots`"


def test_the_bars_of_a_plot_share_one_axis() -> None:
    plot = Plot("Time", "ms", {"a": [Bar("x", 1, "1 ms"), Bar("<y>", 4, "4 ms")], "b": [Bar("x", 2, "2 ms")]})

    drawn = ElementTree.fromstring(plot.svg())

    bars = [each for each in drawn.findall("{*}rect") if each.get("height") == "17"]
    widths = [int(each.attrib["width"]) for each in bars]
    assert ([each.get("class") for each in bars], widths) == (["s0", "s1", "s0"], [76, 306, 153])
    assert drawn.findtext("{*}desc") == "a: x 1 ms, <y> 4 ms; b: x 2 ms"
