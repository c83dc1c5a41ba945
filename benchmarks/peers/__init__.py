"""The engines of cpu_peers.py: how each is installed, given one checkpoint, and driven."""
