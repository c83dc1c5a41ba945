"""HTTP itself: connections, bodies, errors, keys, addresses."""
