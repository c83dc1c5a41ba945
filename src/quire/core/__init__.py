"""The nouns of the engine: requests, steps and messages. No torch in this room."""
