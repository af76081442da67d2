"""An agent whose tools move money, to show what a crash in the middle of payments does."""
