"""Admission control: how much may be in flight, and the drain at shutdown."""
