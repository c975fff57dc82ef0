"""What keeps the clients' programs in bounds is tested too."""

from pathlib import Path

import pytest

from tests.conftest import require

from .programs import environment, run

pytestmark = pytest.mark.clients

CONNECTS = """\
import net from 'node:net';

const socket = net.connect({ host: process.argv[1], port: 2 });
socket.on('error', (error) => console.log(error.code ?? 'refused'));
"""
FETCHES = (
    "await fetch('http://' + process.argv[1] + ':2').catch((error) => console.log(error.cause.code ?? 'refused'));\n"
)


@pytest.mark.parametrize("script", [CONNECTS, FETCHES], ids=["net", "fetch"])
def test_a_node_program_that_goes_elsewhere_fails_the_test(tmp_path: Path, script: str) -> None:
    require("node")
    command = ("node", "--input-type=module", "--eval", script)

    # Port 2 of this machine is reached, and has nobody; the other host would not be found.
    here = run((*command, "127.0.0.1"), home=tmp_path, env=environment(tmp_path))
    assert here.stdout.strip() == "ECONNREFUSED"
    with pytest.raises(AssertionError, match=r"loopback only: outside\.invalid"):
        run((*command, "outside.invalid"), home=tmp_path, env=environment(tmp_path))
