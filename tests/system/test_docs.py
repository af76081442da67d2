"""README and the pages in `docs/`: every block is run or validated, and every link has a target.

The pages in `docs/reference/` are generated, so their blocks are not examples.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import skills_ref
import yaml

from graph_agent.skills import read_skill
from scripts.docs_tabs import CALL_KEYS, with_tabs
from tests.support.doc_pages import POSTGRES, ROOT, PageRun, assert_shown, read_blocks
from tests.support.postgres_server import on_postgres

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))
WRITTEN = [*(page for page in PAGES if "reference" not in page.parts), *SKILLS]
NOT_RUN = {
    "a configuration of Neovim": 1,
    "a page, which the tests open in Chromium": 1,
    "a patch of LangGraph": 1,
    "a picture": 2,
    "has the form of a shell's variables": 2,
    "it ends when the page is no longer needed": 1,
    "it is the configuration of another program": 2,
    "it serves the page of another program": 1,
    "these are other programs": 3,
    "installs other frameworks": 1,
    "installs packages": 8,  # the extras of the README may be a second block there
    "installs packages, and opens a browser": 1,
    "is a configuration of Prometheus": 2,
    "its commands have tests of their own": 19,
    "needs a cluster": 3,
    "needs a container engine": 4,
    "needs a model server": 5,
    "needs the servers": 1,
    "needs Python 3.12, PostgreSQL and Redis": 1,
    "needs a Restate server": 1,
    "needs LangGraph's server": 2,
    "needs Node.js; the tests run this client": 2,
    "rendered by the tests of the manifests": 3,
    "takes an hour": 1,
}
"""The accepted reasons for a block that is not run, and the number of blocks that may have each."""


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_POSTGRES = [
    page for page in WRITTEN if any(POSTGRES in block.text for block in read_blocks(page) if block.language == "python")
]


# OpenAI's client of WebSockets connects in a way that `websockets` deprecates from 17.1 on.
@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used as a context manager:DeprecationWarning")
@pytest.mark.parametrize(
    "page", [page for page in WRITTEN if read_blocks(page) and page not in WITH_POSTGRES], ids=page_id
)
def test_every_block_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PageRun(page, tmp_path, monkeypatch).run()


@on_postgres
@pytest.mark.parametrize("page", WITH_POSTGRES, ids=page_id)
def test_every_block_runs_with_a_postgresql_server(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    PageRun(page, tmp_path, monkeypatch, postgres_url).run()


@pytest.mark.parametrize("page", SKILLS, ids=page_id)
def test_a_skill_for_coding_agents_is_valid_and_short(page: Path) -> None:
    skill = read_skill(page.parent)

    assert (skills_ref.validate(page.parent), len(skill.body) < 5_000, len(SKILLS)) == ([], True, 3)


def test_a_block_is_left_out_only_for_an_accepted_reason() -> None:
    blocks = [block for page in WRITTEN for block in read_blocks(page)]
    reasons = Counter(block.directives["not run"] for block in blocks if "not run" in block.directives)
    unseen = [block for block in blocks if "output" in block.directives]
    python = [block for block in blocks if block.language == "python" and "not run" in block.directives]

    assert (sorted(reasons.keys() - NOT_RUN), python, len(unseen)) == ([], [], 5)
    assert [reason for reason, count in reasons.items() if count > NOT_RUN[reason]] == []


@pytest.mark.parametrize("page", [page for page in WRITTEN if "<!-- script: [" in page.read_text()], ids=page_id)
def test_the_site_shows_the_script_of_each_example(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = [json.loads(block.directives["script"]) for block in read_blocks(page) if "script" in block.directives]

    shown = with_tabs(page.read_text(encoding="utf-8"))

    tabs = re.findall(r'^=== "Without a key"\n\n.*?\n    ```(\w+)\n(.*?)\n    ```$', shown, re.M | re.S)
    scripts = [script_of(language, textwrap.dedent(f"{code}\n"), monkeypatch) for language, code in tabs]
    assert scripts == [
        [reply if isinstance(reply, str) or reply.keys() & CALL_KEYS else json.dumps(reply) for reply in replies]
        for replies in scripted
        if replies
    ]


def script_of(language: str, code: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the replies that the code of a tab gives to the model."""
    if language == "console":
        printed = subprocess.check_output(["bash", "-c", f'{code}printf %s "$DEBUG_MOCK_RESPONSES"'], text=True)
    else:
        monkeypatch.setenv("DEBUG_MOCK_RESPONSES", "")
        exec(code, {})
        printed = os.environ["DEBUG_MOCK_RESPONSES"]
    replies: list[Any] = json.loads(printed)
    return replies


@pytest.mark.parametrize("page", WRITTEN, ids=page_id)
def test_the_code_of_a_page_fits_100_columns(page: Path) -> None:
    blocks = [block for block in read_blocks(page) if block.language != "text"]

    assert [line for block in blocks for line in block.text.splitlines() if len(line) > 100] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"(?:- |: )([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)

    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES if page != README)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_linked_files_and_headings_exist(page: Path) -> None:
    linked = re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8"))
    missing = []
    for link in linked:
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        is_page = target.suffix == ".md"  # the fragment of a picture selects a theme
        if not target.exists() or (is_page and heading and heading not in headings(target)):
            missing.append(link)

    assert missing == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^a-z0-9_ -]", "", text.lower()).replace(" ", "-") for text in found}


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, pending = {README}, [README]
    while pending:
        page = pending.pop()
        for name in re.findall(r"\]\((?!https?:)([^)#]+\.md)", page.read_text(encoding="utf-8")):
            target = (page.parent / name).resolve()
            if target in PAGES and target not in reached:
                reached.add(target)
                pending.append(target)

    assert [page_id(page) for page in PAGES if page not in reached] == []


def test_named_make_commands_are_targets() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"(?:`|^)make ([\w-]+)", page.read_text(encoding="utf-8"), re.M)
    }
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    assert (named - targets, {"demo", "demo-waves", "demo-team", "test"} <= named) == (set(), True)


def test_the_readme_shows_keys_of_the_hotel_agents_file() -> None:
    shown = next(yaml.safe_load(block.text) for block in read_blocks(README) if block.language == "yaml")
    real = yaml.safe_load((ROOT / "examples/hotel/agent.yaml").read_text(encoding="utf-8"))
    del real["mcp_servers"]["hotel"]["env"]

    assert shown == {name: real[name] for name in shown}


def test_the_exported_script_of_getting_started_is_that_of_its_examples() -> None:
    blocks = read_blocks(ROOT / "docs" / "getting-started.md")
    replies = [json.loads(block.directives["script"]) for block in blocks if "script" in block.directives]
    exports = [block.text for block in blocks if block.text.startswith("export ")]
    exported = [json.loads(shlex.split(text)[1].partition("=")[2]) for text in exports]

    assert exported == replies[:1]


def test_a_guide_has_at_most_1200_words() -> None:
    guides = {each.name: each.read_text(encoding="utf-8") for each in (ROOT / "docs/guides").glob("*.md")}
    # A reader sees one of the two pictures of a place, that of the theme.
    words = {name: len(re.sub(r"!\[.*\]\(.*#only-dark\)", "", text).split()) for name, text in guides.items()}

    # Shorten what is longer, or split it where an idea ends.
    assert {name: count for name, count in words.items() if count > 1_200} == {}


def test_the_readme_is_at_most_120_lines_long() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize(
    ("printed", "shown"),
    [("a\n", None), ("a\n", "b\n"), ("a\nb\n", "a\n"), ("a 1\n", "a 2…\n"), ("", "a\n"), ("b\n", "…\na\n")],
)
def test_output_that_differs_from_the_page_is_refused(printed: str, shown: str | None) -> None:
    with pytest.raises(AssertionError):
        assert_shown(printed, shown)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [("", None), ("a  \n", "a\n"), ("id 7f: x\n", "id …: x\n"), ("a\nb\nc\n", "a\n…\n"), ("a\n", "a\n…\n")],
)
def test_output_that_fits_the_page_is_accepted(printed: str, shown: str | None) -> None:
    assert_shown(printed, shown)


def test_a_block_in_an_unknown_language_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```rust\nfn main() {}\n```\n", encoding="utf-8")
    (tmp_path / "run").mkdir()

    with pytest.raises(AssertionError, match="'rust' cannot be run"):
        PageRun(page, tmp_path / "run", monkeypatch).run()
