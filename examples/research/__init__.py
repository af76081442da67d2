"""A recipe: long research, with delegates."""
