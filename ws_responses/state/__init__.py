"""What is kept of a conversation, for how long, and at whose cost."""
