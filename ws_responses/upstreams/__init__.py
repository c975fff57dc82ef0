"""What answers a turn: the wrapped app, called in process."""
