"""Statements about WebSocket mode, checked from outside: ``python -m ws_responses conformance URL``."""
