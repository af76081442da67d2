"""An agent that runs at due times and on webhooks, each delivery once."""
