"""Cost of the framework, as ratios measured interleaved in one run."""
