"""The documentation site: every page is built, its links work, and it loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from distro_node.node.cli.main import COMMANDS
from distro_node.node.config import command_options
from properdocs.exceptions import ProperDocsException


@pytest.fixture(scope="module")
def builder(checkout: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", checkout / "docs" / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    builder.build_site(out)
    return out


def test_every_document_is_a_page(site: Path, checkout: Path) -> None:
    documents = {path.relative_to(checkout) for path in (checkout / "docs").rglob("*.md")}
    assert len(documents) > 20
    pages = {path.with_suffix(".html") for path in documents}
    assert {
        page for page in pages if page.name != "README.html" and not (site / page).exists()
    } == set()
    assert "How it compares" in (site / "docs" / "overview.html").read_text("utf-8")
    assert (site / "benchmarks" / "index.html").exists()
    # As a browser gets it: images exist, and tables are tables.
    assert (site / "docs" / "dashboard-wide.png").exists()
    assert "<table" in (site / "docs" / "exit-codes.html").read_text("utf-8")


def test_every_command_has_its_place(site: Path) -> None:
    text = (site / "docs" / "commands.html").read_text("utf-8")
    for name, function in COMMANDS.items():
        assert f"<code>distro-node {name}</code>" in text
        for option in command_options(function):
            assert f"--{option.replace('_', '-')}" in text, f"{name}: {option}"
    assert "DISTRO_NODE_&lt;COMMAND&gt;_&lt;OPTION&gt;" in text


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?([^\"' >]+)"
    )
    checked = 0
    for page in site.rglob("*.html"):
        for address in loaded.findall(page.read_text("utf-8")):
            assert not re.match(r"(\w+:)?//", address), f"{page.name}: {address}"
            checked += 1
    assert checked > 100
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(\w+:)?//", style.read_text("utf-8")), style


@pytest.mark.parametrize(
    ("document", "more"),
    [
        ("docs/demo.md", "[gone](no-such-page.md)"),
        ("docs/demo.md", "[gone](exit-codes.md#no-such-heading)"),
        ("docs/demo.md", "[outside](../../elsewhere.md)"),
        ("docs/in-no-menu.md", "# A page"),
    ],
)
def test_what_leads_nowhere_ends_the_build(
    builder: ModuleType, document: str, more: str, checkout: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    builder.stage(copy, checkout)
    with (copy / document).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{more}\n")
    with pytest.raises(ProperDocsException):
        builder.build_site(tmp_path / "out", copy)
