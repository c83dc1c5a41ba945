"""Structured outputs: compiles JSON schemas, regular expressions and grammars to token masks.

No torch.
"""
