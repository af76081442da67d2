"""What the framework costs, as ratios measured interleaved in one run."""
