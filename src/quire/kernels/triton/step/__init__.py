"""Kernels around a model's products: step inputs, norms, activations, RoPE."""
