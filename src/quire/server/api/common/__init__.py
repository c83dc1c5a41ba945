"""What the chat-like APIs share."""
