"""Figures in documents: generated tables are current, and how `make docs` writes them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def documents(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("document_figures")


@pytest.fixture
def figures(documents: Any) -> Any:
    return importlib.import_module("figures")


def test_every_generated_table_is_current(documents: Any, figures: Any) -> None:
    tables = [
        figure
        for source in figures.SOURCES
        for figure in source()
        if isinstance(figure, documents.WholeTable)
    ]
    assert len(tables) > 20
    texts, lost = figures.rewritten(tables)
    assert not lost, "a table has another heading than in benchmarks/figures.py"
    for document, (before, after) in texts.items():
        assert before.splitlines() == after.splitlines(), f"{document}: run `make docs`"


def test_every_results_file_is_in_the_table_of_them(checkout: Path, figures: Any) -> None:
    """One place says how and when each was measured, and where it is read."""
    text = (checkout / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)\.json` \| `.+ \|(.*)\|$", text, re.MULTILINE)
    there = [path.stem for path in (checkout / "benchmarks" / "results").glob("*.json")]
    assert sorted(name for name, _ in rows) == sorted(there)


def test_numbers_are_written_anew_and_the_rest_stays(documents: Any) -> None:
    text = "The loss\n  was 1.72 at **906 times**\nfewer bytes, or -3 % of\n12,345. Or 1.72.\n"
    sentence = "The loss was {:.2f} at **{:.0f} times** fewer bytes, or {:+.0f} % of {:,d}."
    figure = documents.Figure("a", sentence, (1.7349, 1000.4, 2.6, 1_234_567))
    assert figure.written_into(text) == (
        "The loss\n  was 1.73 at **1000 times**\nfewer bytes, or +3 % of\n1,234,567. Or 1.72.\n"
    )
    assert documents.Figure("a", sentence, (1.72, 906, -3, 12345)).written_into(text) == text


def test_numbers_in_a_comment_over_two_lines(documents: Any) -> None:
    figure = documents.Figure("a.toml", "which {:.1f} MB of {:d}", (2.9, 7))
    assert figure.written_into("# which 2.4 MB\n# of 7\n") == "# which 2.9 MB\n# of 7\n"


@pytest.mark.parametrize("text", ["", "some 3 MB\n", "it has 3 MB, and it has 4 MB\n"])
def test_a_sentence_that_is_not_there_once_is_an_error(documents: Any, text: str) -> None:
    with pytest.raises(LookupError, match=r"a\.md"):
        documents.Figure("a.md", "it has {:d} MB", (5,)).written_into(text)


def test_a_table_is_found_row_by_row(documents: Any) -> None:
    text = "| n | a |\n|---|---|\n| 4 | 1.0 |\n| 8 | 2.0 |\n"
    rows = [("| 4 | {:.1f} |", (3.14,)), ("| 8 | {:.1f} |", (2.0,))]
    assert documents.table("a", "| a |", 2, rows).written_into(text) == text.replace("1.0", "3.1")
    with pytest.raises(LookupError):
        documents.table("a", "| a |", 2, rows[1:]).written_into(text)


def test_a_whole_table_takes_the_rows_that_there_are(documents: Any) -> None:
    text = "Before.\n\n| n | a |\n|---|---|\n| 4 | 1.0 |\n| 8 | – |\n\nAfter.\n"
    table = documents.WholeTable("a", "| n | a |", ("| 4 | 1.5 |", "| 8 | 2.0 |", "| 9 | 3.0 |"))
    written = table.written_into(text)
    assert written == text.replace("1.0", "1.5").replace("–", "2.0").replace(
        "2.0 |\n", "2.0 |\n| 9 | 3.0 |\n"
    )
    assert table.written_into(written) == written
    with pytest.raises(LookupError):
        table.written_into("| n | b |\n")


def test_the_newest_results_file_counts(
    documents: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "CHECKOUT", tmp_path)
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    for name in ("2026-11-21-a", "2026-11-22-a", "2026-11-23-b-a"):
        (folder / f"{name}.json").write_text("{}")
    assert documents.results_file("a").name == "2026-11-22-a.json"
