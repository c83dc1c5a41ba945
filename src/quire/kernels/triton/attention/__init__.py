"""Attention kernels for any GPU."""
