"""Compiling kernels: ahead of time, and many at a time before the first step."""
