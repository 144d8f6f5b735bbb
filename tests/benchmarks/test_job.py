"""The benchmark of a whole job: its own calculations, and as a slow test the whole job at a small
size."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BEGINNING = "What is said of something here is long enough to be a document of its own. "


@pytest.fixture
def modules(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    found = {name: importlib.import_module(name) for name in ("job_swarm", "job_text")}
    # By its path: pytest takes a checkout in a folder called `job` for a package of that name.
    spec = importlib.util.spec_from_file_location("job_itself", checkout / "benchmarks" / "job.py")
    assert spec is not None
    assert spec.loader is not None
    found["job"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found["job"])
    return found


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a library that would fail if it were imported."""
    folder = tmp_path / "lib" / "documented"
    (folder / "tests").mkdir(parents=True)
    said = '"""{0}{1}"""\n'
    (folder / "__init__.py").write_text(said.format(BEGINNING * 2, "First.") + "1 / 0\n")
    code = f"def f():\n    {said.format(BEGINNING * 2, 'Second.')}\n\nclass A:\n    '''Short.'''\n"
    (folder / "a.py").write_text(code)
    (folder / "b.py").write_text(code)
    (folder / "broken.py").write_text("def (")
    (folder / "tests" / "c.py").write_text(said.format(BEGINNING * 2, "Third."))
    monkeypatch.syspath_prepend(tmp_path / "lib")
    return "documented"


def test_what_libraries_say_comes_back_out_of_both_files(
    modules: dict[str, ModuleType], package: str, tmp_path: Path
) -> None:
    text = modules["job_text"]
    found = [*text.library_documents([package])]
    assert [document.split()[-1] for _, document in found] == ["First.", "Second."]
    parquet, lines = tmp_path / "a.parquet", tmp_path / "b.jsonl.zst"
    assert text.write_parquet(parquet, found) == 2
    assert text.write_lines(lines, [("topic", "ä topic")]) == 1
    assert [*text.read_texts(parquet, lines)] == [found[0][1], found[1][1], "ä topic"]
    with pytest.raises(ModuleNotFoundError):
        list(text.library_documents(["nobody_has_this"]))


def test_prose_is_cut_between_paragraphs(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    file = tmp_path / "prose.txt"
    paragraph = BEGINNING * 10
    file.write_text("\n\n".join([paragraph] * 7))
    parts = [part for _, part in modules["job_text"].prose_documents([file])]
    assert [part.count(BEGINNING.strip()) for part in parts] == [30, 30, 10]


def test_the_tokenizer_has_as_many_tokens_as_were_asked_for(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    text, file = modules["job_text"], tmp_path / "tokenizer.json"
    text.make_tokenizer([BEGINNING * 3], 300, file)
    assert len(json.loads(file.read_text())["model"]["vocab"]) == 300
    with pytest.raises(ValueError, match="ask for fewer"):
        text.make_tokenizer([BEGINNING], 3000, file)


def test_rounds_fill_the_minutes(modules: dict[str, ModuleType]) -> None:
    fitting, forecast = (
        modules["job"].fitting_rounds,
        {"sequence_seconds": 0.25, "update_seconds": 0.5},
    )
    # (32 · 0.25 + 4 · 0.5) / 2 + 1 = 6 seconds per round.
    assert fitting(forecast, 60, nodes=4, cores=2, sequences=32) == 600
    assert fitting(forecast, 60, nodes=4, cores=8, sequences=32) == 3600 / 3.5 // 1
    assert fitting(forecast, 0.01, nodes=4, cores=2, sequences=32) == modules["job"].LEAST_ROUNDS


def test_sessions_are_added_up(modules: dict[str, ModuleType]) -> None:
    swarm = modules["job_swarm"]
    one, other, nothing = swarm.Session(), swarm.Session(), swarm.Session()
    began = one.ended(1, 0.0, 100.0)
    one.ended(11, began, 150.0)
    # The rounds and the time between the sessions are not counted.
    began = other.ended(20, 0.0, 1000.0)
    other.ended(25, began, 1040.0)
    assert swarm.pace([one, nothing, other]) == (15, 90.0)
    one.sent, one.received, other.sent, other.received = [1, 2], [3, 4], [10, 20], [30, 40]
    added = [{"sent": 11, "received": 33}, {"sent": 22, "received": 44}]
    assert swarm.traffic([one, nothing, other], 2) == added
    assert swarm.points(100) == [20, 40, 60, 80, 100]
    assert swarm.points(3) == [1, 2, 3]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (172.72, 172.724, True),
        (172.72, 172.78, False),
        (9.9995, 9.9999, True),
        (9.994, 9.9951, False),
    ],
)
def test_four_digits(modules: dict[str, ModuleType], one: float, other: float, same: bool) -> None:
    assert modules["job"].same_digits(one, other) is same


def test_a_job_that_was_begun_keeps_its_settings(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    job, work = modules["job"], tmp_path / "work"
    job.Job(job.parse(["--work", str(work), "--hidden", "64"]))
    job.Job(job.parse(["--work", str(work), "--hidden", "64", "--muon", "1e-3"]))
    with pytest.raises(SystemExit, match="other options"):
        job.Job(job.parse(["--work", str(work), "--hidden", "128"]))
    with pytest.raises(SystemExit, match="something else"):
        job.Job(job.parse(["--work", str(tmp_path)]))


@pytest.mark.soak
@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_a_whole_job_in_small_and_again_where_it_was_ended(checkout: Path, tmp_path: Path) -> None:
    work, result = tmp_path / "work", tmp_path / "result.json"
    small = (
        *("--nodes", "2", "--hidden", "64", "--layers", "1", "--vocabulary", "1024"),
        *("--sequence", "32", "--sequences", "8", "--rounds", "20", "--libraries", "networkx"),
    )
    command = [sys.executable, str(checkout / "benchmarks" / "job.py"), "--work", str(work), *small]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    begun = subprocess.Popen(command, env=environment)
    samples = work / "samples.jsonl"
    try:
        while not samples.exists():
            with pytest.raises(subprocess.TimeoutExpired):
                begun.wait(0.5)
    finally:
        begun.terminate()
        begun.wait(60)
    kept = samples.read_text()
    files = ("--json", str(result), "--plot", str(tmp_path / "plot.png"))
    subprocess.run([*command, *files], env=environment, check=True)
    assert samples.read_text().startswith(kept)
    told = json.loads(result.read_text())
    assert told["sessions"] == 2
    assert [sample["round"] for sample in told["samples"]] == [4, 8, 12, 16, 20]
    assert {way["tokens"] for way in told["ways"].values()} == {20 * 8 * 32}
    assert told["export"]["same_to_four_digits"]
    assert all(member["sent"] and member["received"] for member in told["members"])
    assert (tmp_path / "plot.png").stat().st_size
