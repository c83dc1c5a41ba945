"""What a checkpoint's config files say. No torch."""
