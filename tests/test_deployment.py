"""What docs/how-to/workers.md tells operators to write into the files of nginx and Kubernetes works as it stands there."""

import asyncio
import io
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tests.adapters.proxy_servers import running
from tests.conftest import require
from tests.docs.pages import fences
from tests.ports import free_port, until_listened_to
from tests.serve_process import PATIENCE_S, Here, serve_here
from tests.shell import create, id_of, kinds
from tests.worker_processes import KEY, turn
from ws_responses.serve.options import parse
from ws_responses.testing import ScriptedApp, steps

for package in ("aiohttp", "uvicorn", "websockets", "yaml"):
    require(package)

import aiohttp  # noqa: E402
from websockets.asyncio.client import connect  # noqa: E402
from websockets.exceptions import ConnectionClosed  # noqa: E402

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "workers.md"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


def block(language: str) -> str:
    """The one piece of the page in a language."""
    (text,) = [text for name, _, _, text in fences(PAGE) if name == language]
    return text


# -- Kubernetes ------------------------------------------------------------------------------------------------------


def manifests() -> list[dict[str, Any]]:
    return [msgspec.yaml.decode(document) for document in block("yaml").split("\n---\n")]


def test_the_deployment_starts_what_exists() -> None:
    """Without this a pod made after the page would end at once with a wrong option."""
    deployment, service = manifests()
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    module, *arguments = [*container["command"][1:], *container["args"]][1:]
    options = parse(
        arguments[1:],
        {"WS_RESPONSES_API_KEY": "k", "WS_RESPONSES_STORE": "redis://r", "WS_RESPONSES_TENANT_KEY": "0123456789abcdef"},
    )

    assert (container["command"][0], module, arguments[0]) == ("python", "ws_responses", "serve")
    assert options.workers == 2
    (port,) = container["ports"]
    assert (port["name"], port["containerPort"]) == ("http", options.listen.port)
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": port["name"]}
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]


def test_a_pod_has_time_to_drain() -> None:
    """Without this Kubernetes would kill it while turns run, in spite of all that was said to it."""
    deployment, _ = manifests()
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    wait_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    options = parse(container["args"][1:], {"WS_RESPONSES_STORE": "redis://r"})

    assert pod["terminationGracePeriodSeconds"] >= wait_s + options.listen.grace_s + 15


# -- nginx -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def nginx(folder: Path, *ports: int) -> AsyncGenerator[int]:
    """Run nginx by the page's piece, in front of these ports of ours; give its own."""
    require("nginx")
    port = free_port()
    servers = "\n".join(f"    server 127.0.0.1:{each};" for each in ports)
    text, count = re.subn(r"(    server 10\.[\d.:]+;\n)+", servers + "\n", block("nginx"))
    text, also = re.subn(r"listen 80;", f"listen 127.0.0.1:{port};", text)
    assert (count, also) == (1, 1)
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}\n{text}\n}}\n"
    )
    command = ("nginx", "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf"))
    tested = await anyio.run_process([*command, "-t"], check=False)
    assert tested.returncode == 0, tested.stderr.decode()
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await until_listened_to(port)
        yield port
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[ScriptedApp, str]]:
    app = ScriptedApp(listen=True, timeout=PATIENCE_S)
    async with running(app) as url:
        yield app, url


@asynccontextmanager
async def node(url: str, store: Path) -> AsyncGenerator[Here]:
    """One of two hosts that share a store."""
    options = ("--upstream", url, "--open", "--store", f"sqlite:{store}", "--durable")
    async with serve_here(*options, WS_RESPONSES_TENANT_KEY="the same on all of them") as served:
        yield served


def port_of(served: Here) -> int:
    return int(served.url.removesuffix("/v1").rpartition(":")[2])


async def test_a_loop_through_nginx_goes_on_at_the_other_node_when_one_is_drained(
    upstream: tuple[ScriptedApp, str], tmp_path: Path
) -> None:
    """With the lines of the page: upgrades pass, and a node that no longer listens is passed over."""
    _, url = upstream
    async with (
        node(url, tmp_path / "c") as first,
        node(url, tmp_path / "c") as second,
        nginx(tmp_path, port_of(first), port_of(second)) as port,
    ):
        at = f"ws://127.0.0.1:{port}/v1/responses"
        async with connect(at, additional_headers=KEY) as ws:
            parent = id_of(await turn(ws, create("one")))
            (drained,) = [each for each in (first, second) if each.server.server_state.connections]
            drained.server.handle_exit(15, None)
            with pytest.raises(ConnectionClosed) as closed:
                await ws.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        ends: list[str] = []
        for _ in range(4):  # least_conn would try the other one in between
            async with connect(at, additional_headers=KEY) as ws:
                events = await turn(ws, create("two", previous_response_id=parent))
                parent = id_of(events)
                ends.append(kinds(events)[-1])

    assert ends == ["completed"] * 4


async def test_nginx_takes_an_upgrade_that_a_draining_node_refuses_to_the_next_one(
    upstream: tuple[ScriptedApp, str], tmp_path: Path
) -> None:
    """Without this a node that still listens while it drains would turn half of the clients away."""
    _, url = upstream
    async with (
        node(url, tmp_path / "c") as first,
        node(url, tmp_path / "c") as second,
        nginx(tmp_path, port_of(first), port_of(second)) as port,
    ):
        assert await first.server._drain(PATIENCE_S)
        for _ in range(4):
            async with connect(f"ws://127.0.0.1:{port}/v1/responses", additional_headers=KEY) as ws:
                assert kinds(await turn(ws, create("hi")))[-1] == "completed"


async def test_events_pass_nginx_as_they_come_and_large_bodies_too(
    upstream: tuple[ScriptedApp, str], tmp_path: Path
) -> None:
    """Without this a client that falls back to HTTP would see nothing until the end, or a 413."""
    app, url = upstream
    release = anyio.Event()
    app.script([steps.text("one", finish=False), steps.wait_for(release), steps.text("two")])
    body = io.BytesIO(json.dumps(create("x" * 3_000_000, stream=True)).encode())
    async with (
        node(url, tmp_path / "c") as served,
        nginx(tmp_path, port_of(served)) as port,
        aiohttp.ClientSession() as http,
        http.post(
            f"http://127.0.0.1:{port}/v1/responses", data=body, headers={**KEY, "content-type": "application/json"}
        ) as answer,
    ):
        assert answer.status == 200
        seen = b""
        with anyio.fail_after(PATIENCE_S):
            while b"response.output_text.delta" not in seen:
                seen += await answer.content.readany()
            release.set()
            seen += await answer.read()

    last = json.loads(seen.strip().rpartition(b"data: ")[2])
    assert last["type"] == "response.completed"
