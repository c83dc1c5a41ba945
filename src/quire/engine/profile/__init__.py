"""Where a step's time goes, against what the device can do."""
