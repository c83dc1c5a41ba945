"""Safetensors files: read, mapped, copied to a GPU, written."""
