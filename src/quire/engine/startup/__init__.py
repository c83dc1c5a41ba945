"""From settings to a running engine: files, device, memory, measured steps."""
