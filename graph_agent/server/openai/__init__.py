"""OpenAI's chat completions: routes, requests and responses."""
