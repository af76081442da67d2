"""The page of an evaluation, in a browser."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.support.cli import run_cli

MARKUP = "</script><script>document.title='run'</script>"
CASES = f"""
agent: agent.yaml
cases:
  - name: "{MARKUP}"
    input: "Say {MARKUP}"
    expect: {{answer: {{equals: Other.}}}}
"""


def test_a_failed_case_opens_the_page_of_its_session(page: Page, tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: helper\nmodel: openai:gpt-4o-mini\n")
    (tmp_path / "cases.yaml").write_text(CASES)
    done = run_cli(tmp_path, "eval", "cases.yaml", "--html", "report.html", script=[f"Said {MARKUP}"])

    page.goto((tmp_path / "report.html").as_uri())
    expect(page.locator("#list td.fail")).to_have_text("fail")
    expect(page.locator("#list")).to_contain_text(MARKUP)
    page.get_by_role("link", name="run 1").click()

    expect(page.frame_locator("iframe").get_by_text(f"Said {MARKUP}")).to_be_visible()
    assert (done.returncode, page.title()) == (1, "Failed: agent.yaml")
    page.get_by_role("link", name="All cases").click()
    expect(page.locator("#list")).to_be_visible()
