"""Kernels that draw tokens from logits."""
