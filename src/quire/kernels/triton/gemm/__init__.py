"""The portable GEMM of few rows, and the rules by which all GEMMs are cut into tiles."""
