"""One of several processes that serve; started by the supervisor: ``python -m ws_responses.serve.worker LISTENER CHANNEL``."""

import asyncio
import faulthandler
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial

from ws_responses.serve.channel import receive_options, send_beat, send_started
from ws_responses.serve.command import refusing, serve_on, set_up_logs
from ws_responses.serve.pulse import keep_beating
from ws_responses.serve.server import Server


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes, or the supervisor is gone; return the exit code.

    Args:
        arguments: Descriptors of the listening socket, and of the channel to the supervisor.
    """
    listening, talking = map(int, arguments)
    with socket.socket(fileno=listening) as listener, socket.socket(fileno=talking) as channel:
        try:
            options = receive_options(channel)
        except (EOFError, OSError):
            return 1  # nobody to serve for
        set_up_logs(options)
        # In the handler of the signal itself: a loop that hangs runs no Python one.
        faulthandler.register(signal.SIGUSR1)

        def started(server: Server, report: str) -> None:
            loop = asyncio.get_running_loop()

            def orphaned() -> None:
                # Nothing more is ever said here: it can be read because it has been closed.
                loop.remove_reader(channel)
                server.handle_exit(signal.SIGTERM, None)

            send_started(channel, report)
            loop.add_reader(channel, orphaned)
            if options.worker_timeout_s is not None:
                keep_beating(options.worker_timeout_s, loop.call_later, partial(send_beat, channel))

        return refusing(lambda: serve_on(listener, options, started))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
