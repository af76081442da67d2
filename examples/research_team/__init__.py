"""A team of three agents, each a process of its own, that communicate over A2A."""
