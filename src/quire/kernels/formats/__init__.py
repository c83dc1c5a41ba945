"""Weight formats: metadata, bytes, packing and reference product of each. No torch at import."""
