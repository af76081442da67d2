"""A recipe: questions about a database, in SQL."""
