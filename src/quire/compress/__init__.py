"""Making quantized checkpoints, and measuring what their weights lose."""
