"""Readers of a checkpoint's config files. No torch."""
