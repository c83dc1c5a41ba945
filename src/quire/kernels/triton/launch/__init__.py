"""Launches of kernels: configurations, workspaces, the partition of work."""
