"""Replaces the package wget: nothing is downloaded."""
