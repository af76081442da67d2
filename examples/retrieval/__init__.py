"""A recipe: answers from documents, with sources."""
