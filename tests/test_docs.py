"""The documentation hangs together: links, anchors, the navigation, the reference."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def slugs(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: dict[str, int] = {}
    names = set()
    for title in re.findall(r"^#+ (.*)$", without_blocks(text), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        names.add(f"{plain}-{found[plain]}" if plain in found else plain)
        found[plain] = found.get(plain, 0) + 1
    return names


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "", without_blocks(text))
    return re.findall(r"\]\(([^)\s]+)\)", prose)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for link in links(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.is_file(), link
        assert target.is_relative_to(DOCS), link
        if anchor:
            assert anchor in slugs(target.read_text(encoding="utf-8")), link


def test_this_check_sees_the_links():
    assert len(links((DOCS / "index.md").read_text(encoding="utf-8"))) > 20
    assert slugs("# A b\n## `x: y`\n## A b\n```\n# no\n```\n") == {"a-b", "x-y", "a-b-1"}


class _Loader(yaml.SafeLoader):
    """mkdocs.yml names a function of the site's; it isn't looked at here."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def pages_of(node: object) -> list[str]:
    if isinstance(node, str):
        return [node]
    parts = node.values() if isinstance(node, dict) else node
    return [page for part in parts for page in pages_of(part)]


def test_every_page_is_in_the_navigation():
    config = yaml.load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)
    assert sorted(pages_of(config["nav"])) == sorted([p.name for p in PAGES] + ["notebook.ipynb"])


def test_the_reference_is_what_the_commands_say():
    spec = importlib.util.spec_from_file_location("make_cli", DOCS / "make_cli.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    fresh = maker.make()
    assert "## opaque unpack" in fresh
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == fresh, "run python docs/make_cli.py"
