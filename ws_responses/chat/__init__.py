"""``python -m ws_responses chat``: talk to an endpoint over its socket, in a terminal or from a script."""
