"""Data structures of the engine: requests, steps, messages, layer descriptions. No torch here."""
