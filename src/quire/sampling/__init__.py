"""Sampling on the host and on a device: logits processors, the exact draw, log-probabilities."""
