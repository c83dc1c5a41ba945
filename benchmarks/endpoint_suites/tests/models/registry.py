"""Stand-in for tests/models/registry.py of vLLM: no models."""

HF_EXAMPLE_MODELS = None
