"""A team of three agents, each a process of its own, that talk over A2A."""
