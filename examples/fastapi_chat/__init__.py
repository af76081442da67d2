"""An agent inside a FastAPI application, with its own users."""
