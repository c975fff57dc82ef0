"""The command ``serve``: checks what it is told, builds the app, says what it serves, and serves it."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ws_responses.command_line import UsageError
from ws_responses.errors import ConfigurationError
from ws_responses.serve.access import Guard, is_loopback
from ws_responses.serve.arguments import API_KEYS, PROGRAM
from ws_responses.serve.options import ServeOptions, parse
from ws_responses.serve.report import report

if TYPE_CHECKING:
    import socket

    from ws_responses.serve.served import Served
    from ws_responses.serve.server import Server

_PACKAGES = ("uvicorn", "websockets")
_FRAME_ROOM_BYTES = 1 << 20
"""Above our own bound of frames: we tell a client more about a frame that is too large than uvicorn does."""


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes; return the exit code."""
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        return _refuse(f"needs {' and '.join(missing)}: pip install 'ws-responses[serve]'")
    return refusing(lambda: _serve(parse(arguments)))


def refusing(serve: Callable[[], int]) -> int:
    """Return the exit code of what serves, or that of a command line that cannot be followed, and say why."""
    try:
        return serve()
    except (UsageError, ConfigurationError, ImportError) as error:
        return _refuse(str(error))


def _refuse(reason: str) -> int:
    sys.stderr.write(f"serve: {reason}\nserve: {PROGRAM} --help shows all options\n")
    return 2


def _serve(options: ServeOptions) -> int:
    from ws_responses.serve.server import listen, resolve  # noqa: PLC0415 - needs uvicorn, whose absence is told above

    family, address = resolve(options.listen.host, options.listen.port)
    _check_access(options, address[0])
    set_up_logs(options)
    with listen(family, address) as listener:
        if options.workers > 1:
            from ws_responses.serve.supervisor import Supervisor  # noqa: PLC0415

            return asyncio.run(Supervisor(options, listener, _tell).run())
        return serve_on(listener, options, lambda _, report: _tell(report))


def _tell(report: str) -> None:
    with suppress(OSError):  # whoever started it does not listen any more: no reason not to serve
        sys.stdout.write(report)
        sys.stdout.flush()


def serve_on(listener: "socket.socket", options: ServeOptions, started: "Callable[[Server, str], None]") -> int:
    """Serve in this process, until a signal comes; return the exit code.

    Args:
        listener: Where it listens.
        options: What is served.
        started: Is called in the event loop when it serves, with what it says of that.

    Raises:
        ConfigurationError: An option is wrong.
        ImportError: A package is missing.
        UsageError: The command line lacks something.
    """
    served = _served(options)
    try:
        server = _server(options, served, listener, started)
        server.run(sockets=[listener])
    finally:
        if served.close is not None:
            served.close()
    return int(server.forced)


def set_up_logs(options: ServeOptions) -> None:
    """Let the logs of this process go to standard error."""
    name = options.listen.log_level
    of = f" [{os.getpid()}]" if options.workers > 1 else ""
    logging.basicConfig(
        level=_server_level(name), format=f"%(asctime)s{of} %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("ws_responses").setLevel(name.upper())


def _server_level(name: str) -> int:
    """Return the level for loggers that are not ours: at DEBUG, uvicorn's hold frames and headers, content and keys."""
    return max(logging.getLevelNamesMapping()[name.upper()], logging.INFO)


def _check_access(options: ServeOptions, address: str) -> None:
    """Refuse to serve the world without being told to.

    Raises:
        UsageError: Neither keys nor the word were given.
    """
    if options.listen.keys or options.listen.open or is_loopback(address):
        return
    raise UsageError(
        f"{options.listen.host} can be reached from other machines. Give the keys of your clients (--api-key, or better "
        f"{API_KEYS}), or say --open to let everybody in, or listen on 127.0.0.1"
    )


def _served(options: ServeOptions) -> "Served":
    if options.source.upstream is not None:
        from ws_responses.serve.sidecar import sidecar  # noqa: PLC0415 - needs aiohttp

        return sidecar(options)
    from ws_responses.serve.engine import engine  # noqa: PLC0415 - needs what the backend needs

    return engine(options)


def _server(
    options: ServeOptions, served: "Served", listener: "socket.socket", started: "Callable[[Server, str], None]"
) -> "Server":
    import uvicorn  # noqa: PLC0415

    from ws_responses.serve.server import Server  # noqa: PLC0415

    listen = options.listen
    address, port = listener.getsockname()[:2]
    guard = Guard(
        served.app,
        keys=listen.keys,
        local_only=is_loopback(address) and not listen.open,
        allowed_origins=options.mode.allowed_origins,
        draining=lambda: server.draining,
    )
    config = uvicorn.Config(
        guard,
        http="auto",
        ws="websockets-sansio",
        ws_max_size=options.mode.limits.max_frame_bytes + _FRAME_ROOM_BYTES,
        lifespan="on",
        log_config=None,
        log_level=_server_level(listen.log_level),
        access_log=listen.access_log,
        server_header=False,
        proxy_headers=listen.trusted_proxies is not None,
        forwarded_allow_ips=listen.trusted_proxies,
        root_path=listen.root_path,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.private_key,
        ssl_keyfile_password=listen.private_key_password,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"the certificate or its key cannot be used: {error.strerror or error}") from None

    server = Server(
        config,
        drain=served.middleware.drain,
        grace_s=listen.grace_s,
        started=lambda: started(server, report(options, served, address, port)),
        close=served.aclose,
    )
    return server
