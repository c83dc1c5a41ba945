"""Formats of quantized checkpoints: what their config says, and their tensors as canonical rows."""
