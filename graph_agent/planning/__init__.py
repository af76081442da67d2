"""From the history to a plan or an answer: requests to the model, hooks, fallbacks and loop detection."""
