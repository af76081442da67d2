"""What a release is made of: its version, its notes, and the forms of the repository's host."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from scripts.reference.source import ROOT
from scripts.release import notes_of

CHANGELOG = """# Changelog

## 1.1.0 (unreleased)

- New.

## 1.0.0 (2026-12-01)

### Added

- First.

## 0.2.0 (2026-11-01)

- Old.
"""


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first = re.search(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert first is not None
    assert first[1] == project["version"]


def test_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    assert notes_of("1.0.0", CHANGELOG) == "### Added\n\n- First.\n"


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        ("1.1.0", "CHANGELOG.md gives 'unreleased' as the date of 1.1.0: write the day of the release, YYYY-MM-DD."),
        ("1.0", "CHANGELOG.md has no section of 1.0: begin it with '## 1.0 (YYYY-MM-DD)'."),
    ],
)
def test_a_release_needs_a_dated_section_of_the_changelog(version: str, fault: str) -> None:
    with pytest.raises(SystemExit) as raised:
        notes_of(version, CHANGELOG)

    assert str(raised.value) == fault


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", ".github/workflows/*.yml"),
        ("vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/*.yml"),
    ],
)
def test_forms_of_the_repository_are_valid(schema: str, files: str) -> None:
    found = sorted(ROOT.glob(files))
    assert found

    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, found)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout
