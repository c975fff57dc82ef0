"""Importing the package brings in nothing that the user did not ask for, and no turn waits for modules. (How long it takes:
`test_installed.py`.)
"""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

import ws_responses

ROOT: Final = Path(__file__).resolve().parent.parent
OPTIONAL: Final = {"cerebras", "fastapi", "hypothesis", "openai", "starlette", "tiktoken", "uvicorn"}

OF_OTHERS: Final = (
    "adapters",
    "app",
    "backends",
    "bench",
    "chat",
    "conformance",
    "engine",
    "failover",
    "judged_turns",
    "rendering",
    "routers",
    "routing",
    "safety",
    "serve",
    "testing",
    "wrapped_routes",
    "wrapped_tokens",
)
"""Modules and packages of ours that a wrapped app without further options has no use for."""


def run(*arguments: str) -> Any:
    """What a fresh interpreter prints, as JSON."""
    # -I: neither the working directory nor the environment decides what is imported.
    done = subprocess.run(
        [sys.executable, "-I", *arguments], check=False, capture_output=True, text=True, cwd=ROOT.root, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def imported(statement: str) -> set[str]:
    """The modules that a statement has loaded when nothing else was."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); known = set(sys.modules); {statement}; new = set(sys.modules) - known"
    return set(run("-c", f"{code}; import json; print(json.dumps(sorted(new)))"))


def test_the_bare_import_loads_nothing_else() -> None:
    """Without this a command or a worker that asks for one name of ours could wait for all of them."""
    assert imported("import ws_responses") - {"importlib", "warnings"} == {"ws_responses", "ws_responses._lazy"}


@pytest.mark.parametrize("then", ["", "; ResponsesWebSocketMiddleware(print)"], ids=["imported", "made"])
def test_the_middleware_does_not_load_what_only_others_need(then: str) -> None:
    """Without this everybody who wraps an app could pay for the engine, the renderers and the classifiers again."""
    loaded = imported(f"from ws_responses import ResponsesWebSocketMiddleware{then}")

    assert "ws_responses.turn" in loaded
    assert "asyncio" not in loaded  # the largest of all; a server that runs on it has loaded it
    assert {name.partition(".")[0] for name in loaded} & OPTIONAL == set()
    assert sorted(name for name in loaded if name.startswith("ws_responses.") and name.split(".")[1] in OF_OTHERS) == []


def test_the_engine_loads_no_optional_package() -> None:
    """Without this an extra could become a requirement."""
    loaded = imported("from ws_responses import *")

    assert "ws_responses.engine.planning" in loaded
    assert {name.partition(".")[0] for name in loaded} & OPTIONAL == set()


@pytest.mark.parametrize("serving", ["nothing", "everything", "engine"])
def test_no_turn_waits_for_a_module(serving: str) -> None:
    """Without this the first turn of each process could load modules, while all its other connections wait for that.

    What options need is loaded when the middleware is made, and anyio's part for the event loop in the lifespan.
    """
    told = run(str(ROOT / "tests" / "first_turn.py"), str(ROOT), serving)

    assert '"status":"completed"' in told["frames"][-1]
    assert told["loaded"] == []


# -- the public names --------------------------------------------------------------------------------------------------


def checked_names() -> dict[str, str]:
    """Where type checkers find each public name."""
    tree = ast.parse(Path(ws_responses.__file__).read_text(encoding="utf-8"))
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in branch.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_a_public_name_is_what_type_checkers_take_it_for() -> None:
    """Without this a name could be there for type checkers only, be missing for them, or be another thing."""
    names = checked_names()

    assert sorted(names) == sorted(ws_responses.__all__)
    for name, module in names.items():
        assert getattr(ws_responses, name) is getattr(import_module(module), name)


def test_the_package_lists_its_public_names() -> None:
    """Without this completion in a shell or a notebook would offer nothing."""
    assert set(ws_responses.__all__) | {"__version__", "errors", "limits"} <= set(dir(ws_responses))


def test_a_name_that_does_not_exist_is_an_attribute_error_that_says_so() -> None:
    """Without this a typing error could look like a fault of ours."""
    with pytest.raises(AttributeError, match="module 'ws_responses' has no attribute 'ResponsesWebsocketMiddleware'"):
        getattr(ws_responses, "ResponsesWebsocketMiddleware")  # noqa: B009 - type checkers know that it is not there


def test_a_module_is_found_on_the_package() -> None:
    """Without this `import ws_responses; ws_responses.errors.WireError` passes type checkers, and fails."""
    assert imported("import ws_responses; ws_responses.errors.WireError") >= {"ws_responses.errors"}
