"""The protocols that carry requests to models and their replies."""
