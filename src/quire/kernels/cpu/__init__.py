"""Fast CPU versions of the operations whose plain twin is slow there."""
