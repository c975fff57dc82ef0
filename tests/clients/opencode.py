"""Runs opencode against a server."""

import json
import subprocess
from pathlib import Path

from . import programs
from .programs import MODULES

BINARY = MODULES / ".bin" / "opencode"

# The model is one that it knows from a list of its own: it is not to fetch a newer one.
_MODEL = "openai/gpt-5.2"


class OpenCode:
    """The `opencode` command with a fresh configuration.

    Args:
        home: A new folder for its configuration and state.
        base_url: The server, without `/responses`.

    Attributes:
        work: Where its commands run.
    """

    def __init__(self, home: Path, base_url: str) -> None:
        self.work = home / "work"
        self.work.mkdir(parents=True)
        self._home = home
        config = {
            "autoupdate": False,
            "share": "disabled",
            "model": _MODEL,
            "small_model": _MODEL,
            "enabled_providers": ["openai"],
            "permission": {"bash": "allow"},
            "provider": {"openai": {"options": {"baseURL": base_url, "apiKey": "k"}}},
        }
        (home / "opencode.json").write_text(json.dumps(config), encoding="utf-8")

    def run(self, prompt: str) -> subprocess.CompletedProcess[str]:
        folders = {f"XDG_{kind}_HOME": str(self._home / kind.lower()) for kind in ("DATA", "CONFIG", "CACHE", "STATE")}
        offline = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "SHARE")
        env = programs.environment(
            self._home,
            OPENCODE_CONFIG=str(self._home / "opencode.json"),
            OPENCODE_EXPERIMENTAL_WEBSOCKETS="1",
            OPENCODE_AUTH_CONTENT=json.dumps({"openai": {"type": "api", "key": "k"}}),
            **folders,
            **{f"OPENCODE_DISABLE_{what}": "1" for what in offline},
        )
        command = (BINARY, "run", "--print-logs", "--log-level", "WARN", prompt)
        return programs.run(command, home=self.work, env=env)
