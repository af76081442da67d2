"""An agent behind the webhooks of a chat such as Slack, with approvals that take days."""
