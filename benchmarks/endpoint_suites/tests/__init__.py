"""The tests that are copied here."""
