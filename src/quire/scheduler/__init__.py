"""Choice of the requests that run next, and their numbers of tokens. No torch in this room."""
