"""OpenAI-compatible HTTP over an engine: parse, ask, answer. No torch, and no engine internals."""
