"""From a folder to a loaded model."""
