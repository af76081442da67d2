"""A recipe: a support desk with refunds and a colleague."""
