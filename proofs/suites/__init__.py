"""Replays the gold calls of public benchmarks, without a model, in each mode of tool calling."""
