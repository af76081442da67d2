"""An agent in a Chainlit chat."""
