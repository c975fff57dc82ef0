"""Runs the pi coding agent against a server. It asks at `codex/responses` below the base URL."""

import base64
import json
import subprocess
from pathlib import Path

from . import programs
from .programs import HERE, MODULES

CLI = MODULES / "@mariozechner" / "pi-coding-agent" / "dist" / "cli.js"

# Older Nodes have no WebSocket of their own.
_PRELOADED = HERE / "ws_global.mjs"


class Pi:
    """The `pi` command with a fresh configuration.

    Args:
        home: A new folder for its configuration; it is also where commands run.
        base_url: The server, without `/codex/responses`.
    """

    def __init__(self, home: Path, base_url: str) -> None:
        self.home = home
        agent = home / "agent"
        agent.mkdir(parents=True)
        models = {"providers": {"openai-codex": {"baseUrl": base_url, "apiKey": _key()}}}
        (agent / "models.json").write_text(json.dumps(models), encoding="utf-8")
        # Chains by `previous_response_id`, and goes to HTTP when the socket fails.
        (agent / "settings.json").write_text(json.dumps({"transport": "auto"}), encoding="utf-8")

    def ask(self, *prompts: str) -> subprocess.CompletedProcess[str]:
        """One user turn for each prompt, in one session."""
        env = programs.environment(
            self.home,
            PI_CODING_AGENT_DIR=str(self.home / "agent"),
            PI_OFFLINE="1",
            PI_SKIP_VERSION_CHECK="1",
            PI_TELEMETRY="0",
        )
        command = ("node", f"--import={_PRELOADED.as_uri()}", CLI, "--provider", "openai-codex", "--model", "gpt-5.4")
        return programs.run((*command, "--no-session", "-p", *prompts), home=self.home, env=env)


def _key() -> str:
    """A key of the form that it wants: a token that names an account."""
    claims = {"https://api.openai.com/auth": {"chatgpt_account_id": "account"}}
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims)
    )
    return ".".join((*parts, "signature"))
