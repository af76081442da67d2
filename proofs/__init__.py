"""Claims about this project that anyone can run."""
