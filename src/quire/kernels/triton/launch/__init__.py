"""How kernels are launched: configurations, workspaces, the partition of work."""
