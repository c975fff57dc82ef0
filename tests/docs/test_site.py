"""The documentation becomes a site: all pages, all of each page, and no link that leads nowhere."""

import re
from pathlib import Path

import pytest

from tests.conftest import require

from . import pages, site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the pages as they were staged, and the site."""
    require("zensical")
    folder = tmp_path_factory.mktemp("docs")
    fine, said = site.build(site.stage(folder / "project"))
    assert fine, said
    return folder / "project"


def flat(value: object) -> list[str]:
    """The pages that a navigation leads to."""
    if isinstance(value, str):
        return [value]
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [page for member in members for page in flat(member)]


def test_every_page_is_in_the_navigation_and_in_the_site(built: Path) -> None:
    """Without this a page can be written that readers of the site never find."""
    staged = {path.relative_to(built / "pages").as_posix() for path in (built / "pages").rglob("*.md")}
    led_to = flat(site.navigation())

    assert {site.places()[page] for page in pages.PAGES} <= staged
    assert sorted(led_to) == sorted(staged)
    assert [page for page in staged if not (built / "site" / page).with_suffix(".html").exists()] == []


def test_the_navigation_has_the_four_kinds(built: Path) -> None:
    """Without this tutorial, how-tos, explanations and reference could run into each other."""
    titles = [title for entry in site.navigation() for title in entry]

    assert titles == ["Home", "Tutorial", "How to", "Explanation", "Reference", "Examples", "Project"]
    assert all(flat(entry) for entry in site.navigation())


def test_nothing_of_a_page_is_lost(built: Path) -> None:
    """Without this a fence that the builder does not understand takes all that follows for code."""
    for page, place in site.places().items():
        if page.suffix == ".md":
            html = (built / "site" / place).with_suffix(".html").read_text(encoding="utf-8")
            headings = re.findall(
                r"^#+ ", re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8")), re.MULTILINE
            )

            assert len(re.findall(r"<h[1-6] id=", html)) == len(headings), place


@pytest.mark.parametrize("link", ["other.md", "index.md#nowhere"])
def test_a_link_that_leads_nowhere_fails_the_build(link: str, tmp_path: Path) -> None:
    """Without this the build would be content with whatever stands in a page."""
    require("zensical")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(f"# Home\n\n[there]({link})\n", encoding="utf-8")
    config = tmp_path / "zensical.toml"
    config.write_text(site.configuration([{"Home": "index.md"}]), encoding="utf-8")

    fine, said = site.build(config)

    assert not fine
    assert "does not exist" in said


def test_a_page_of_a_fifth_kind_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without this such a page would be built, and no navigation would lead to it."""
    docs = tmp_path / "docs"
    (docs / "notes").mkdir(parents=True)
    (docs / "notes" / "page.md").write_text("# A page\n", encoding="utf-8")
    monkeypatch.setattr(site, "_DOCS", docs)

    with pytest.raises(ValueError, match=r"notes/page\.md"):
        site.stage(tmp_path / "project")
