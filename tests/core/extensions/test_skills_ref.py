"""The reader of skills against `skills-ref`, the reference: what both accept, and the values that both read."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import skills_ref
from hypothesis import event, given
from hypothesis import strategies as st

from graph_agent.errors import ConfigError
from graph_agent.skills import read_skill

Outcome = dict[str, Any] | None
"""The values of a skill; None if it is refused."""


def outcomes(raw: bytes, folder_name: str = "tea") -> tuple[Outcome, Outcome]:
    """What this package and `skills-ref` read of a `SKILL.md`."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / folder_name
        folder.mkdir()
        (folder / "SKILL.md").write_bytes(raw)
        return of_package(folder), of_reference(folder)


def of_package(folder: Path) -> Outcome:
    try:
        skill = read_skill(folder)
    except ConfigError:
        return None
    return {
        "name": skill.name,
        "description": skill.description,
        "license": skill.license,
        "compatibility": skill.compatibility,
        "metadata": dict(skill.metadata),
        "allowed_tools": skill.allowed_tools,
    }


def of_reference(folder: Path) -> Outcome:
    try:
        faults = skills_ref.validate(folder)
        read = skills_ref.read_properties(folder)
    except Exception:  # noqa: BLE001 - it lets errors of its YAML parser through
        return None
    if faults:
        return None
    tools: Any = read.allowed_tools
    if isinstance(tools, str):  # the reference does not split it
        tools = tools.replace(",", " ").split()
    return {
        "name": read.name,
        "description": read.description,
        "license": read.license,
        "compatibility": read.compatibility,
        "metadata": read.metadata or {},
        "allowed_tools": None if tools is None else tuple(tools),
    }


def plain(text: str) -> str:
    return text


def block(style: str) -> Any:
    return lambda text: f"{style}\n" + "\n".join(f"  {line}" for line in text.split("\n"))


STYLES = [plain, lambda text: json.dumps(text, ensure_ascii=False), lambda text: "'" + text.replace("'", "''") + "'"]
STYLES += [block("|"), block(">"), block("|-")]
CHARS = st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0()")
TEXTS = st.one_of(
    st.sampled_from(["", " ", "yes", "null", "~", "1.0", "0x1F", "2026-01-01", "a: b", "a # b", "- a", "é", "\u2028"]),
    st.text(st.sampled_from("ab -:#'\"\\,.!&*?|>%@`\t\n\u00e9\u00df\u4e2d\U0001f375"), max_size=12),
    st.text(CHARS, max_size=12),
    st.sampled_from([1, 500, 501, 1023, 1024, 1025]).map("x".__mul__),
).filter(lambda text: "---" not in text)
VALID = st.sampled_from(["tea", "tea-pot", "tée", "ｔｅａ", "чай", "茶", "0", "a" * 64])
NAMES = st.one_of(
    VALID,
    VALID,
    st.sampled_from(
        ["tea", " tea ", "Tea", "tea-pot", "-tea", "tea-", "tea--pot", "te_a", "tée", "ｔｅａ", "чай", "茶", "ﬁ"]
    ),
    st.integers(60, 68).map("a".__mul__),
    st.text(CHARS, min_size=1, max_size=6),
)
KEYS = ["name", "description", "license", "compatibility", "allowed-tools"]
EXTRA = st.sampled_from(["version", "Name", "allowed_tools", "metadata ", "", "1", "<<", "&a b"])
ENDS = st.sampled_from(["--- \n", "...\n", "", "--\n", "===\n"])


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, str]:
    """The text of a `SKILL.md`, and the name of its folder."""
    name = draw(NAMES)
    fields = {"name": name, "description": draw(st.one_of(st.just("Makes tea."), TEXTS))}
    for key in draw(st.lists(st.sampled_from(KEYS[2:]), unique=True)):
        fields[key] = draw(TEXTS)
    items = [f"{key}: {draw(st.sampled_from(STYLES))(value)}" for key, value in fields.items()]
    if draw(st.booleans()):
        values = draw(st.dictionaries(st.sampled_from(["author", "version", "1", "ключ"]), TEXTS, min_size=1))
        items.append("metadata:\n" + "\n".join(f"  {key}: {json.dumps(text)}" for key, text in values.items()))
    match draw(st.integers(0, 15)):
        case 0:
            items.pop(draw(st.integers(0, len(items) - 1)))
        case 1:
            items.append(draw(st.sampled_from(items)))
        case 2:
            items.append(f"{draw(EXTRA)}: {draw(TEXTS)}")
        case 3:
            items.insert(
                draw(st.integers(0, len(items))), draw(st.sampled_from(["# note", "", "  ", "\t", "- a", "a"]))
            )
    start, end = "---\n", "---\n"
    if draw(st.integers(0, 7)) == 0:
        start = draw(st.sampled_from(["--- \n", "", "\n---\n", "# a\n---\n", "--\n"]))
    if draw(st.integers(0, 7)) == 0:
        end = draw(ENDS)
    text = start + "\n".join(items) + "\n" + end + "Body."
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    folder = name.strip() if draw(st.integers(0, 5)) else draw(st.sampled_from(["tea", "ｔｅａ"]))
    is_folder = folder and len(folder.encode()) < 255 and not {"/", "\0"} & set(folder) and folder not in (".", "..")
    return text.replace("\n", newline), folder if is_folder else "tea"


@given(documents())
def test_both_accept_the_same_skills_with_the_same_values(document: tuple[str, str]) -> None:
    text, folder = document

    package, reference = outcomes(text.encode(), folder)

    event("accepted" if reference else "refused")
    assert package == reference


FRONT = "---\nname: tea\ndescription: Makes tea.\n"
DIFFERENCES = {
    # Editors of Windows write one; the specification does not forbid it.
    "a byte order mark": ("\ufeff" + FRONT + "---\n", (True, False)),
    # The reference ends the front matter at the first three hyphens, also inside of a value.
    "three hyphens in a value": ('---\nname: tea\ndescription: "Makes --- tea."\n---\n', (True, False)),
    # It reads the rest of such a line as the body; the specification has a line of its own.
    "text after the fence": (FRONT + "---Body.", (False, True)),
    "text after the first fence": ("---name: tea\ndescription: Makes tea.\n---\n", (False, True)),
    # The specification has YAML; the reference's parser reads a part of it.
    "a mapping in braces": (FRONT + "metadata: {author: ana}\n---\n", (True, False)),
    "a list in brackets": (FRONT + "allowed-tools: [brew, pour]\n---\n", (True, False)),
    "an anchor": ("---\nname: &name tea\ndescription: *name\n---\n", (True, False)),
    # The specification has a map of texts to texts, and texts; the reference checks no types there.
    "metadata that is no mapping": (FRONT + "metadata: ana\n---\n", (False, True)),
    "metadata of lists": (FRONT + "metadata:\n  authors:\n    - ana\n---\n", (False, True)),
    "a license that is no text": (FRONT + "license:\n  name: MIT\n---\n", (False, True)),
    "allowed tools that are a mapping": (FRONT + "allowed-tools:\n  brew: yes\n---\n", (False, True)),
}
"""What the two judge differently: a text, and whether this package and the reference accept it."""


@pytest.mark.parametrize(("text", "accepted"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_each_difference_is_known(text: str, accepted: tuple[bool, bool]) -> None:
    package, reference = outcomes(text.encode())

    assert (package is not None, reference is not None) == accepted
