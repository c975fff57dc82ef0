"""Adapters: one module per third-party thing, imported as ``ws_responses.adapters.<name>``.

An adapter uses public names of ``ws_responses`` only, imports its third-party package itself, and is never imported by
the core: what is not installed costs nothing.
"""
