"""Profile of a step: time of each part, against what the device can do."""
