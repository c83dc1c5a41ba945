"""GGUF files, as llama.cpp writes them: their header, and their metadata as a model's files."""
