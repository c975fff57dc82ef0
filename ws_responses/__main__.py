"""``python -m ws_responses COMMAND``: what the package can do from a shell."""

import argparse
import importlib
import sys
from collections.abc import Sequence

# Command: the module with its ``main``, whether that takes arguments, and a line of help. Modules are imported only when
# they are asked for: each needs packages that the middleware does not.
_COMMANDS = {
    "bench": ("ws_responses.bench.command", True, "measure what the middleware costs, beside what it is built on"),
    "chat": ("ws_responses.chat.command", True, "talk to an endpoint over its socket, in this terminal"),
    "conformance": ("ws_responses.conformance.command", True, "check a server's WebSocket mode from outside"),
    "demo": ("ws_responses.demo", True, "run an agent loop over HTTP and over one WebSocket, side by side"),
    "serve": ("ws_responses.serve.command", True, "serve WebSocket mode for a server elsewhere, or for a backend"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code.

    Args:
        arguments: Command and its arguments; by default the process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m ws_responses", description="WebSocket mode for Responses apps.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, takes_arguments, text) in _COMMANDS.items():
        commands.add_parser(name, help=text, add_help=not takes_arguments)
    chosen, rest = parser.parse_known_args(arguments)
    module_name, takes_arguments, _ = _COMMANDS[chosen.command]
    if rest and not takes_arguments:
        parser.error(f"{chosen.command} takes no arguments")
    run = importlib.import_module(module_name).main
    return (run(rest) if takes_arguments else run()) or 0


if __name__ == "__main__":
    sys.exit(main())
