"""Code that the chat-like APIs share."""
