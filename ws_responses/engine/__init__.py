"""Turns answered here, by an inference backend."""
