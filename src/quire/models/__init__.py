"""Model families: what their config files say, how their weights are named, how they compute."""
