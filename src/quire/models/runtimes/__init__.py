"""What runs a loaded model."""
