"""Weights in their run-time format on disk, so that a second start maps them."""
