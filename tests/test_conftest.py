"""The shared helpers of the tests are tested too."""

import anyio
import pytest
import trio

from tests.conftest import require
from tests.left_behind import REQUIRE_ALL


def test_require_lets_a_present_program_or_module_pass() -> None:
    require("sh")
    require("msgspec")
    require("something found elsewhere", present=True)


@pytest.mark.parametrize("name", ["no-such-tool", "no_such_package.module"])
def test_require_skips_for_a_missing_tool(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REQUIRE_ALL, raising=False)

    with pytest.raises(pytest.skip.Exception, match=f"{name} is missing"):
        require(name)


def test_require_fails_for_a_missing_tool_where_all_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUIRE_ALL, "1")

    with pytest.raises(pytest.fail.Exception, match="no-such-tool is missing"):
        require("no-such-tool")


async def test_async_tests_run_on_the_named_backend(anyio_backend_name: str) -> None:
    await anyio.lowlevel.checkpoint()

    assert trio.lowlevel.in_trio_run() == (anyio_backend_name == "trio")
