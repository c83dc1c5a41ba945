"""Runtimes of a loaded model."""
