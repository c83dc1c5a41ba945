"""Engine and API processes: started, connected, supervised, ended."""
