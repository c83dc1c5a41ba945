"""Who runs next, with how many tokens. No torch in this room."""
