"""The engine's loop and the state of its running requests."""
