"""The documentation as a site: ``python -m tests.docs.site`` (``make docs``) builds ``build/docs/site`` by Zensical.

The pages are written for readers of the repository: the readme is the first of them, and links lead to files anywhere in it. For
the site they are copied to one folder, the links are bent accordingly, each example becomes a page, and what is no part of the site
(tests, sources) loses its link. The navigation is made from the folder, in four kinds, in the order of the readme's list: a page cannot
be forgotten. The build is strict: a link, or an anchor, that leads nowhere fails it.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from . import pages
from .source import REPO

Entry: TypeAlias = "dict[str, str] | dict[str, list[dict[str, str]]]"
"""A title of the navigation, and the page behind it or the pages below it."""

KINDS: Final = {"tutorial": "Tutorial", "how-to": "How to", "explanation": "Explanation", "reference": "Reference"}
OUT: Final = REPO / "build" / "docs"

_FOLDERS: Final = frozenset({*KINDS, "pictures", "examples", "project"})
_DOCS: Final = REPO / "docs"
_EXAMPLES: Final = REPO / "examples"
_CONFIG: Final = Path(__file__).with_name("zensical.toml")
_LANGUAGES: Final = {".py": "python", ".mjs": "javascript", ".json": "json"}
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_WORDS_BEHIND: Final = re.compile(r"\A(```\w*) .*")  # such as `no-run`: Zensical takes such a line for text
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def places() -> dict[Path, str]:
    """Where each page and picture of the repository stands in the site."""
    found = {REPO / "README.md": "index.md"}
    found |= {path: path.relative_to(_DOCS).as_posix() for path in sorted(_DOCS.rglob("*")) if path.is_file()}
    found |= {path: f"examples/{path.stem}.md" for path in _examples()}
    found |= {path: f"project/{path.stem.lower()}.md" for path in pages.PAGES if path not in found}
    return found


def navigation() -> list[Entry]:
    """The pages in order, by kind: ``[{"Home": "index.md"}, {"Tutorial": [{title: page}, ...]}, ...]``."""
    where = places()
    named = [(REPO / link.partition("#")[0]).resolve() for link in pages.links(REPO / "README.md")]
    order = {path: place for place, path in enumerate(named)}  # the last mention counts: the list is at the end
    ordered = sorted(where, key=lambda path: (order.get(path, len(named)), where[path]))
    groups = {kind: _entries(kind, ordered, where) for kind in [*KINDS, "examples", "project"]}
    titles = {**KINDS, "examples": "Examples", "project": "Project"}
    return [{"Home": "index.md"}, *({titles[kind]: entries} for kind, entries in groups.items())]


def stage(folder: Path) -> Path:
    """Write the pages and the configuration of a Zensical project to a folder; return the configuration.

    Raises:
        ValueError: A page lies outside of the four kinds.
    """
    where = places()
    strays = [place for place in where.values() if "/" in place and place.split("/")[0] not in _FOLDERS]
    if strays:
        raise ValueError(f"docs/ has four kinds of pages ({', '.join(KINDS)}); elsewhere: {', '.join(strays)}")
    shutil.rmtree(folder, ignore_errors=True)
    for path, place in where.items():
        target = folder / "pages" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(_bent(path, where), encoding="utf-8")
        elif path in _examples():
            target.write_text(_as_page(path), encoding="utf-8")
        else:
            shutil.copy(path, target)
    config = folder / "zensical.toml"
    config.write_text(configuration(navigation()), encoding="utf-8")
    return config


def configuration(nav: list[Entry]) -> str:
    """The text of ``zensical.toml``, for pages in a folder ``pages`` beside it."""
    head = f'[project]\ndocs_dir = "pages"\nsite_dir = "site"\nnav = {_toml(nav)}\n'
    return _CONFIG.read_text(encoding="utf-8").replace("[project]\n", head, 1)


def build(config: Path) -> tuple[bool, str]:
    """Build the site into the folder ``site`` beside its configuration; whether nothing was wrong, and what Zensical said."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(config)]
    run = subprocess.run(command, cwd=config.parent, capture_output=True, text=True, check=False)
    return run.returncode == 0, run.stdout + run.stderr


def _examples() -> list[Path]:
    folders = [path for path in _EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"]
    return sorted([*_EXAMPLES.glob("*.py"), *folders])


def _entries(kind: str, ordered: list[Path], where: dict[Path, str]) -> list[dict[str, str]]:
    return [
        {_title(path): where[path]}
        for path in ordered
        if where[path].startswith(f"{kind}/") and where[path].endswith(".md")
    ]


def _title(path: Path) -> str:
    if path in _examples():
        return path.name
    heading = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None:
        raise ValueError(f"{path.relative_to(REPO)} has no heading")
    return heading[1].replace("`", "")


def _bent(page: Path, where: dict[Path, str]) -> str:
    """The text of a page with its links as they are in the site."""
    parts = _FENCED.split(page.read_text(encoding="utf-8"))
    parts[::2] = [_LINK.sub(_bend(page, where), part) for part in parts[::2]]
    parts[1::2] = [_WORDS_BEHIND.sub(r"\1", part) for part in parts[1::2]]
    return "".join(parts)


def _bend(page: Path, where: dict[Path, str]) -> Callable[[re.Match[str]], str]:
    up = "../" * where[page].count("/")

    def bent(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        place = where.get((page.parent / path).resolve())
        return text if place is None else f"{mark}[{text}]({up}{place}{hash_}{anchor})"

    return bent


def _as_page(example: Path) -> str:
    files = [example] if example.is_file() else sorted(path for path in example.iterdir() if path.suffix in _LANGUAGES)
    return "\n".join([f"# {example.name}\n", *(part for path in files for part in _listing(path))])


def _listing(path: Path) -> Iterator[str]:
    yield f"`{path.relative_to(REPO).as_posix()}`:\n"
    yield f"```{_LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}```\n"


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(entry)}" for key, entry in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Build the site; end with 1 and what is wrong if something is."""
    fine, said = build(stage(OUT))
    if not fine:
        raise SystemExit(said)
    print(f"docs: {OUT.relative_to(REPO) / 'site' / 'index.html'}")


if __name__ == "__main__":
    main()
