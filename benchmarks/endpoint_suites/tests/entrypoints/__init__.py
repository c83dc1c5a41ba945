"""The tests of endpoints."""
