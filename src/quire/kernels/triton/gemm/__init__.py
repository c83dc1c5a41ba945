"""GEMMs of few rows: the portable kernel, its configurations and their costs."""
