"""The engine as callers see it: prompts in, outputs out."""
