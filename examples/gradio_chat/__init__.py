"""An agent in a Gradio chat."""
