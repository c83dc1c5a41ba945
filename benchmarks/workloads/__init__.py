"""Workloads of real services, the load that makes them, and what it is put on."""
