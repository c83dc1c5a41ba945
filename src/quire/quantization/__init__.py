"""Weight formats: what is particular to each, their metadata, and which weight gets which."""
