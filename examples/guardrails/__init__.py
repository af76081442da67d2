"""A recipe: guards on the input and on the answer."""
