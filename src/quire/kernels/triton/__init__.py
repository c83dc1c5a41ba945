"""Triton versions of the operations, for CUDA devices. Imported only where one is used."""
