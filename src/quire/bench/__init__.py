"""Measuring an OpenAI-compatible server from outside, over HTTP alone. No torch."""
