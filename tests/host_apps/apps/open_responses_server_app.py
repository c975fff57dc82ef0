"""open-responses-server: a FastAPI object in front of a chat completions server, which the environment names. Its path is another."""

# It is installed in an environment of its own.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from open_responses_server.api_controller import app as api

__all__ = ["api"]
