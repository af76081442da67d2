"""Builds the tools by which the model loads skills and reads their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import Field

from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.base._internal.text import clean
from graph_agent.base.errors import did_you_mean
from graph_agent.core.extensions.allowed_tools import LOAD_SKILL, READ_SKILL_FILE
from graph_agent.core.extensions.read_result import part_of
from graph_agent.core.extensions.skill_files import UnreadableFileError, list_files, read_skill_text
from graph_agent.core.extensions.skill_folder import FILE_NAMES, Skill
from graph_agent.core.state.messages import KEPT_AS

if TYPE_CHECKING:
    from graph_agent.core.extensions.skills import SkillSet

MOST_BODY_CHARS = 60_000
"""Maximum characters of a skill's instructions; the rest is left out."""
MOST_FILE_CHARS = 20_000
"""Maximum characters that one call of `read_skill_file` returns."""

_LOAD = "Load a skill: returns its instructions and the names of its files. Follow them for the task at hand."
_READ = "Read a text file of a skill, by its path in the skill's folder. Offsets and lengths are in characters."


class SkillTool(StructuredTool):
    """A tool by which the model uses the agent's skills."""

    source: Any = Field(default=None, exclude=True, repr=False)
    """The `SkillSet`, which reads changed files before each plan."""


def make_tools(skills: SkillSet) -> list[BaseTool]:
    """Return the tools `load_skill` and `read_skill_file` for an agent's skills. Both are marked as reading.

    An unknown skill or a file that cannot be read gives an error result, and so does loading a skill whose
    `allowed-tools` were added since the agent was opened. The result of `load_skill` stays in shortened requests.
    """

    async def load(name: Annotated[str, Field(description="Name of the skill.")]) -> tuple[str, dict[str, Any]]:
        skill = _named(skills, name)
        # Whether calls are compared is part of the configuration, which is fixed when the agent is opened.
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
        length: Annotated[
            int, Field(ge=1, description=f"How much to read; {MOST_FILE_CHARS} at most.")
        ] = MOST_FILE_CHARS,
    ) -> str:
        named = _named(skills, skill)
        return await call_in_thread(_part, named, path, offset, min(length, MOST_FILE_CHARS))

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
    """Return the skill of a name; raise `ToolException`, which lists the known names, if there is none."""
    if (skill := skills.find(name)) is None:
        raise ToolException(f"Unknown skill {name!r}; {did_you_mean(name, skills.names)}")
    return skill


def _loaded(skill: Skill) -> tuple[str, dict[str, Any]]:
    """Return a skill as text for the model, and the value that the event of the call stores.

    The text has the instructions (at most `MOST_BODY_CHARS`), what the skill needs, the tools that it allows, and its
    files. The value is `{"skill": <name>, "digest": …}`, with `allowed_tools` if the skill limits tools.
    """
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
    """Return a part of a skill's file, after a line with its range; the text alone if the part is the whole file.

    Args:
        skill: The skill.
        path: Path of the file in the skill's folder.
        offset: Where the part begins, in characters.
        length: Maximum characters of the part.

    Raises:
        ToolException: The file cannot be read as text (the message lists the skill's files), or ends before `offset`.
    """
    try:
        text = clean(read_skill_text(skill.folder, path))
    except UnreadableFileError as error:
        files, more = list_files(skill.folder)
        listed = ", ".join([*files, *(["…"] if more else [])])
        raise ToolException(f"{error} The skill {skill.name!r} has: {listed}.") from None
    return text if offset == 0 and length >= len(text) else part_of(text, repr(path), offset, length)
