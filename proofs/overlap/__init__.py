"""Measures the time to an answer with and without overlap, on a virtual clock: `python -m proofs.overlap`."""
