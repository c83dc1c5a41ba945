"""Run-time forms of weights with fewer bits: their size in memory, how they are made and read."""
