"""Results files: each has its row in benchmarks/README.md, and documents name only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# `2026-11-22-codec.json`, also with its folder in front.
NAMED = re.compile(r"`(?:benchmarks/results/)?(\d{4}-\d\d-\d\d-[\w.-]+\.(?:json|jsonl|txt|png))`")


@pytest.fixture(scope="module")
def folder(checkout: Path) -> Path:
    return checkout / "benchmarks" / "results"


def test_every_results_file_is_in_the_table_of_them(checkout: Path, folder: Path) -> None:
    """A single place states how and when each was measured, and where it is used."""
    text = (checkout / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)\.json` \| `.+ \|(.*)\|$", text, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(path.stem for path in folder.glob("*.json"))


def test_documents_name_results_that_exist(checkout: Path, folder: Path) -> None:
    there = {path.name for path in folder.iterdir()}
    documents = [checkout / "README.md", *(checkout / "docs").rglob("*.md")]
    named = {
        (path.name, name)
        for path in documents
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert {each for each in named if each[1] not in there} == set()


def test_the_readme_names_the_file_of_each_figure_of_its_limits(checkout: Path) -> None:
    text = (checkout / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## What it can't do\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    bullets = re.findall(r"^- (.*?)(?=^- |^$|\Z)", section, re.MULTILINE | re.DOTALL)
    assert len(bullets) == 5
    assert [bullet for bullet in bullets if not NAMED.search(bullet)] == []


def test_the_readme_fits_a_screen(checkout: Path) -> None:
    assert len((checkout / "README.md").read_text(encoding="utf-8").split()) <= 900
