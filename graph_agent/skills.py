"""Reads Agent Skills (agentskills.io): folders of instructions that the model loads when a task needs them.

`create_graph_agent(..., skills=["skills"])`, or `skills: [skills]` in an agent file, adds them to an agent.
"""

from __future__ import annotations

from graph_agent.core.extensions.skill_folder import Skill, read_skill
from graph_agent.core.extensions.skills import SkillSet, open_skills

__all__ = ["Skill", "SkillSet", "open_skills", "read_skill"]
