"""Implements the tools `load_skill` and `read_skill_file`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import Field

from graph_agent._internal.sync_bridge import call_in_thread
from graph_agent._internal.text import clean
from graph_agent.errors import did_you_mean
from graph_agent.skills.allowed_tools import LOAD_SKILL, READ_SKILL_FILE
from graph_agent.skills.files import UnreadableFileError, list_files, read_text
from graph_agent.skills.front_matter import FILE_NAMES, Skill
from graph_agent.state.messages import KEPT_AS

if TYPE_CHECKING:
    from graph_agent.skills.catalog import SkillSet

MOST_BODY_CHARS = 60_000
"""Characters of a skill's instructions; the rest is left out."""
MOST_CHARS = 20_000
"""Maximum characters that one call of `read_skill_file` returns."""

_LOAD = "Load a skill: returns its instructions and the names of its files. Follow them for the task at hand."
_READ = "Read a text file of a skill, by its path in the skill's folder. Offsets and lengths are in characters."


class SkillTool(StructuredTool):
    """A tool of the agent's skills."""

    source: Any = Field(default=None, exclude=True, repr=False)
    """The `SkillSet`, which follows its files before each plan."""


def make_tools(skills: SkillSet) -> list[BaseTool]:
    """Return the tools of an agent's skills."""

    async def load(name: Annotated[str, Field(description="Name of the skill.")]) -> tuple[str, dict[str, Any]]:
        skill = _named(skills, name)
        if skill.allowed_tools is not None and not skills.limits_tools:
            raise ToolException(
                f"The skill {skill.name!r} cannot be loaded: its allowed-tools were added after the agent was opened. "
                "The agent must be opened again."
            )
        text, value = await call_in_thread(_loaded, skill)
        return text, {"structured_content": value, KEPT_AS: f"skill {skill.name}"}

    async def read(
        skill: Annotated[str, Field(description="Name of the skill.")],
        path: Annotated[str, Field(description="The file, e.g. references/forms.md.")],
        offset: Annotated[int, Field(ge=0, description="Where to begin.")] = 0,
        length: Annotated[int, Field(ge=1, description=f"How much to read; {MOST_CHARS} at most.")] = MOST_CHARS,
    ) -> str:
        named = _named(skills, skill)
        return await call_in_thread(_part, named, path, offset, min(length, MOST_CHARS))

    # Their outputs are bounded already and must not be truncated again.
    marks = {"effect": "read", "max_output_chars": 4 * MOST_BODY_CHARS, "max_output_lines": 4 * MOST_BODY_CHARS}
    return [
        SkillTool.from_function(
            coroutine=load,
            name=LOAD_SKILL,
            description=_LOAD,
            metadata=marks,
            response_format="content_and_artifact",
            source=skills,
        ),
        SkillTool.from_function(coroutine=read, name=READ_SKILL_FILE, description=_READ, metadata=marks, source=skills),
    ]


def _named(skills: SkillSet, name: str) -> Skill:
    if (skill := skills.find(name)) is None:
        raise ToolException(f"Unknown skill {name!r}; {did_you_mean(name, skills.names)}")
    return skill


def _loaded(skill: Skill) -> tuple[str, dict[str, Any]]:
    """Return a skill's instructions for the model, and the value of the event of its load."""
    files, more = list_files(skill.folder)
    files = [name for name in files if name not in FILE_NAMES]
    body = skill.body[:MOST_BODY_CHARS]
    lines = [f"The skill {skill.name!r} is loaded. Its instructions:", "", body or "(It has no instructions.)", ""]
    if len(skill.body) > MOST_BODY_CHARS:
        lines.insert(3, f"[… {len(skill.body) - MOST_BODY_CHARS:,} characters left out here …]")
    if skill.compatibility:
        lines.append(f"It needs: {clean(' '.join(skill.compatibility.split()))}")
    if skill.allowed_tools is not None:
        lines.append(
            f"Tools that it allows: {' '.join(skill.allowed_tools) or 'none'}. A call of another tool needs a person's "
            "approval until this input is answered."
        )
    listed = ", ".join([*files, *(["…"] if more else [])])
    lines.append(f"Its files, for {READ_SKILL_FILE}: {listed}." if files else "It has no further files.")
    value: dict[str, Any] = {"skill": skill.name, "digest": skill.digest}
    if skill.allowed_tools is not None:
        value["allowed_tools"] = list(skill.allowed_tools)
    return "\n".join(lines), value


def _part(skill: Skill, path: str, offset: int, length: int) -> str:
    try:
        text = clean(read_text(skill.folder, path))
    except UnreadableFileError as error:
        files, more = list_files(skill.folder)
        listed = ", ".join([*files, *(["…"] if more else [])])
        raise ToolException(f"{error} The skill {skill.name!r} has: {listed}.") from None
    size, end = len(text), min(len(text), offset + length)
    if offset and offset >= size:
        raise ToolException(f"{path!r} has {size} characters; an offset of {offset} is past its end.")
    if offset == 0 and end == size:
        return text
    rest = f"go on at offset {end}" if end < size else "this is the end"
    return f"[Characters {offset} to {end} of {size}; {rest}]\n{text[offset:end]}"
