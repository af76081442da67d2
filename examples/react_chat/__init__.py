"""An agent inside a FastAPI application, with a page in React."""
