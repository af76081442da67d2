"""Makes a plan or an answer from the history: requests to the model, hooks, fallbacks and loop detection."""
