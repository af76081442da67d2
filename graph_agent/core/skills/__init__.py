"""Reads Agent Skills (agentskills.io): folders of instructions that the model loads when a task needs them."""
