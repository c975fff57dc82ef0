"""``python -m ws_responses serve``: WebSocket mode for a server elsewhere, or for an inference backend."""
