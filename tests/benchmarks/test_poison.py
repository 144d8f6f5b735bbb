"""The benchmark of poisoning: its liars lie as intended, audits find them, and its output is
complete."""

from __future__ import annotations

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.codec.update import DecodedUpdate, UpdateLayout, update_layout
from distro_node.protocol.wire.manifest import ParameterSpec


@pytest.fixture
def benchmark(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("poison")


def layout() -> UpdateLayout:
    names = ("a.weight", "lm_head.weight")
    return update_layout([ParameterSpec(name=name, shape=(64, 64)) for name in names], 64, 4)


def update(*positions: int) -> DecodedUpdate:
    """Return an update with the same positions in each of the tensors, all signs +."""
    places = np.array([sorted(positions)], dtype=np.int32)
    return DecodedUpdate([places] * 2, [np.ones((1, 4), dtype=np.int8)] * 2)


def test_the_liars_say_what_their_names_say(benchmark: Any) -> None:
    own = update(1, 2, 3, 4)
    now = benchmark.Field(
        layout(), [update(1, 2, 8, 9), update(2, 7, 8, 9)], np.random.default_rng(0)
    )
    assert [each.tolist() for each in benchmark.opposite(now, own).signs] == [[[-1] * 4]] * 2
    lied = benchmark.alone(now, own)
    assert [each.tolist() for each in lied.signs] == [[[1, 1, -1, -1]]] * 2
    head, rest = benchmark.the_head(now, own).signs[::-1]
    assert (head.tolist(), rest.tolist()) == ([[-1] * 4], [[1] * 4])
    against = benchmark.against_the_sum(now, own)
    assert against.positions[0].tolist()[0][:2] == [1, 2] or 8 in against.positions[0]
    assert {2, 8, 9} <= set(against.positions[0].tolist()[0])
    assert set(against.signs[0].ravel().tolist()) == {-1}
    corner = benchmark.all_for_one(now, own)
    assert corner.positions[0].tolist() == [[0, 1, 2, 64]]
    assert corner.signs[0].tolist() == [[1] * 4]


def test_who_lies_where_others_are_silent_is_found_with_looks(benchmark: Any) -> None:
    """There is an audit in nearly every round, so that a few rounds are enough."""
    options = Namespace(
        rounds=40,
        members=8,
        share=1,
        rate=8e-3,
        hidden=64,
        layers=1,
        every=1,
        optimizer="signs",
        seeds=[0],
    )
    setting = benchmark.Setting(
        workers=8, sequences=1, steps=40, hidden=64, layers=1, seed=0, device="cpu"
    )
    text = np.frombuffer(Path(json.__file__).read_bytes() * 20, dtype=np.uint8)
    trial = benchmark.Trial(setting, text, text[:40_000])
    run = benchmark.train("lies where others are silent", "checks", trial, options)
    assert len(run.found) == 2
    assert run.accused == []
    assert run.votes == 0
    assert run.lies_in_the_step < 0.5


@pytest.mark.parametrize("asked", [True, False])
def test_a_leader_leaves_out_what_it_can(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """Where members vote for complete records alone that is what came late; else all of the others'."""
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    leading = importlib.import_module("leading")
    members = [PeerId(content_id(b"member %d" % number)) for number in range(12)]
    hostile = set(members[3::4])
    swarm = leading.Leading(members, hostile, np.random.default_rng(1), asked=asked)
    records = [swarm.record(number) for number in range(1, 41)]
    theirs = [record.peers for record in records if record.hostile]
    assert len(theirs) > 4
    assert all(hostile <= peers for peers in theirs)
    if not asked:
        assert all(peers == hostile for peers in theirs)
        return
    assert min(map(len, theirs)) >= 9
    assert sum(map(len, theirs)) / len(theirs) > 11
    # Nor do they keep an honest leader's record from being decided.
    assert max(record.slot for record in records) == 1


def test_what_it_writes(
    benchmark: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = []

    def train(way: str, guard: str, trial: Any, options: Any) -> Any:
        trained.append((way, guard, trial.seed))
        loss = 2.0 if way == "absent" else 2.1
        curve = [(0, 5.0), (30, loss)]
        return benchmark.Run(way, guard, trial.seed, loss, curve, 0.5, 1.0, [7], [], 0.0)

    monkeypatch.setattr(benchmark, "train", train)
    monkeypatch.setattr(benchmark, "Trial", lambda setting, text, heldout: setting)
    monkeypatch.setattr(benchmark, "read_corpus", lambda *_: (None, None))
    written, plot = tmp_path / "poison.json", tmp_path / "poison.png"
    words = ["--work", str(tmp_path / "work"), "--json", str(written), "--plot", str(plot)]
    words += ["--rounds", "300", "--ways", "absent", "the head", "--seeds", "0", "1"]
    monkeypatch.setattr(sys, "argv", ["poison.py", *words])
    for _ in range(2):
        benchmark.main()
    # Stored runs are not trained again.
    assert len(trained) == len(set(trained)) == 8
    figures = json.loads(written.read_text(encoding="utf-8"))
    found = figures["guards"]["checks"]["the head"]
    assert found["above_absent"] == pytest.approx(0.05)
    assert found["found"] == [[7], [7]]
    assert plot.stat().st_size > 1000
    assert "+5.0%" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["poison.py", "--members", "9"])
    with pytest.raises(SystemExit):
        benchmark.main()
