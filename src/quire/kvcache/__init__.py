"""The KV cache: which block belongs to whom (no torch), and where its bytes lie (tensors)."""
