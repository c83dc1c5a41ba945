"""Ollama's own HTTP API, as far as its clients use it: lines of JSON in place of events."""
