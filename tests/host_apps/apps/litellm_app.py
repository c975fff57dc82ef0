"""LiteLLM's proxy: a FastAPI object in front of a chat completions server. It has a socket of its own, on the same path."""

# It is installed in an environment of its own.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import os
from pathlib import Path

os.environ["CONFIG_FILE_PATH"] = str(Path(__file__).with_name("litellm.yaml"))
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch its list of prices
from litellm.proxy.proxy_server import app as api

__all__ = ["api"]
