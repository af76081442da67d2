from proofs.pains import table
from proofs.pains.scenarios import SCENARIOS


def test_the_page_shows_the_recorded_verdicts() -> None:
    assert table.PAGE.read_text() == table.page()


def test_each_scenario_names_an_issue_of_a_public_tracker() -> None:
    assert [scenario.name() for scenario in SCENARIOS if "/" not in scenario.issue()[1]] == []


def test_an_adapter_has_at_most_60_lines_of_code() -> None:
    sizes = {
        file.name: sum(bool(line.strip()) for line in file.read_text().splitlines())
        for file in (table.HERE / "adapters").glob("*.py")
    }
    assert {name: size for name, size in sizes.items() if size > 60} == {}
