"""Plans from the history, or answers: requests to the model, hooks, fallbacks and loop detection."""
