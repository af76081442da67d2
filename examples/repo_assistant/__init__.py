"""An agent that answers questions about a folder of text files, and changes files after a person has approved it."""
