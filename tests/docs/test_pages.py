"""The pages for users are current, hang together, and name what there is."""

import ast
import inspect
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import ws_responses
from ws_responses import Limits, ResponsesWebSocketMiddleware, errors
from ws_responses.protocol import session

from . import generate, pages
from .source import PACKAGE, REPO, keyword_literals, modules, parameters, tree_of, wire_errors

DOCS = [page for page in pages.PAGES if page.name != "known-faults.md"]


def of(page: str) -> str:
    return (REPO / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_page_that_is_made_from_the_code_is_current(name: str) -> None:
    """Else: ``python -m tests.docs.generate``."""
    assert (generate.REFERENCE / name).read_text(encoding="utf-8") == generate.PAGES[name]()


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    """Without this a page that moves leaves readers in front of nothing."""
    broken = []
    for link in pages.links(page):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        if not target.exists() or (anchor and anchor not in pages.anchors(target)):
            broken.append(link)

    assert broken == []


def test_every_page_is_found_from_the_readme() -> None:
    """Without this a page can be written and never be read."""
    seen: set[Path] = set()
    waiting = [REPO / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in pages.links(page)]
        waiting += [target for target in targets if target.suffix == ".md" and target.exists() and target not in seen]

    assert [page for page in pages.PAGES if page not in seen] == []


# -- the reference names all there is --------------------------------------------------------------------------------


def test_every_option_is_documented() -> None:
    """Without this an option could be added that nobody hears of."""
    names = [name for name, _, _ in parameters(ResponsesWebSocketMiddleware.__init__)]
    given = inspect.signature(ResponsesWebSocketMiddleware).parameters

    assert names == [name for name in given if name != "app"]
    assert [name for name in names if f"| `{name}` |" not in of("docs/reference/options.md")] == []


def test_every_limit_is_documented_with_what_happens() -> None:
    """Without this a limit could strike with no word in the documentation."""
    names = [field.name for field in fields(Limits)]

    assert list(generate.REACHED) == names
    assert [name for name in names if f"| `{name}` |" not in of("docs/reference/limits.md")] == []


def test_every_error_code_is_documented() -> None:
    """Without this a client could meet a code that no page names."""
    own = {kind.code for kind in wire_errors()}
    given = {code for code in keyword_literals("code") if isinstance(code, str)}

    assert given - own <= set(generate.FURTHER_CODES)
    assert [code for code in own | given if f"| `{code}` |" not in of("docs/reference/errors.md")] == []


def test_every_close_code_is_documented() -> None:
    """Without this a client could be cut off for a reason that no page gives."""
    source = inspect.getsource(session) + (PACKAGE / "connection.py").read_text(encoding="utf-8")
    sent = {int(code) for code in re.findall(r"(?:close|_close|close_code)(?:\(|=)(1\d{3})", source)}

    assert sent == generate.CLOSE_CODES


def test_every_public_name_is_documented() -> None:
    """Without this a public name could have no page."""
    page = of("docs/reference/options.md")

    assert [name for name in ws_responses.__all__ if f"| `{name}` |" not in page] == []


def test_every_event_that_the_package_names_is_documented() -> None:
    """Without this an event could be made, or treated in a special way, that no page tells."""
    page = of("docs/reference/events.md")
    constants = (node.value for tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    named = {each for each in constants if isinstance(each, str) and _EVENT.fullmatch(each)} - _NO_EVENTS

    assert len(named) > 30
    # Some are only the beginning of a name.
    assert [name for name in sorted(named) if f"`{name}`" not in page and f"`{name}." not in page] == []


_EVENT = re.compile(r"response\.[a-z_.]+[a-z]|ws_responses:[a-z]+")
_NO_EVENTS = {"response.mcp_call_arguments"}
"""The beginning of an app's events, which are passed on."""


def test_no_page_speaks_of_files_that_are_no_part_of_the_repository() -> None:
    """Without this notes of its makers could slip into a page."""
    assert [page for page in DOCS if re.search(r"/work/|\bshared/|contracts\.md|design\.md", page.read_text())] == []


def test_the_readme_names_the_versions_of_the_clients_that_are_tested() -> None:
    """Without this the readme would promise what no test has seen."""
    package = json.loads(of("tests/clients/package.json"))
    project = tomllib.loads(of("pyproject.toml"))["project"]["optional-dependencies"]["clients"]
    pinned = dict(re.findall(r"^([a-z-]+)>=([\d.]+)", line)[0] for line in project)

    readme = of("README.md")
    names = {
        "@openai/codex": "OpenAI Codex CLI",
        "@mariozechner/pi-coding-agent": "pi",
        "opencode-ai": "opencode",
        "cline": "Cline CLI",
    }
    for name, version in package["dependencies"].items():
        if name not in ("ws", "zod", "@ai-sdk/openai"):
            assert f"| {names.get(name, f'`{name}` (Node)')} | {version} |" in readme
    assert [name for name, version in pinned.items() if f"| `{name}` (Python) | {version} |" not in readme] == []
    assert set(pinned) == {"openai", "openai-agents", "pydantic-ai-slim"}


def test_json_of_the_pages_is_json() -> None:
    """Without this a reader could copy a frame that no server takes."""
    for page in DOCS:
        for language, _, line, text in pages.fences(page):
            if language == "json":
                try:
                    json.loads(text)
                except ValueError as error:
                    pytest.fail(f"{page.relative_to(REPO)}:{line}: {error}")


# -- the tools of these tests ----------------------------------------------------------------------------------------


def test_the_names_that_a_block_lacks_are_found() -> None:
    """Without this a block could be checked with other names than a reader sees."""
    defined, used = pages._names("import json\nx = 1\ndef f(y):\n    return json.dumps(x + y + z)\nprint(api)")

    assert defined == {"json", "x", "f"}
    assert used - defined == {"z", "api"}


def test_modules_are_found() -> None:
    """Without this the search for error codes could find nothing and be content."""
    assert len(list(modules())) > 20
    assert tree_of(errors).body
