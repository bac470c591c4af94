"""The consensus core."""
