"""The owner's data and options, and whether they fit the swarm: one line each, and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.private_data import trainer
from distro_node.node.private_data.trainer import check_choices
from distro_node.node.settings.components import PrivacySettings, TrainerSettings
from distro_node.node.settings.values import parse_private_path
from distro_node.protocol.wire.manifest import Manifest, OptimizerSpec, PrivateSpec, RoundSpec
from simulation.toy import toy_manifest


def private(**schema: Any) -> Manifest:
    toy = toy_manifest()
    data = replace(toy.data, shards=(), private=PrivateSpec(epoch=1000, **schema))
    return replace(toy, data=data, optimizer=OptimizerSpec(outlier_filter=False))


NOTHING = PrivacySettings()
ONE_DEVICE = TrainerSettings()


def code_of(
    privacy: PrivacySettings, manifest: Manifest, trainer: TrainerSettings = ONE_DEVICE
) -> ExitCode:
    with pytest.raises(UserError) as caught:
        check_choices(privacy, trainer, manifest)
    assert "\n" not in caught.value.problem
    return caught.value.code


def test_what_fits_is_taken(tmp_path: Path) -> None:
    check_choices(NOTHING, ONE_DEVICE, toy_manifest())
    check_choices(PrivacySettings(data=(tmp_path,)), ONE_DEVICE, private())
    some = PrivacySettings(data=(tmp_path,), epsilon=4.0)
    check_choices(some, ONE_DEVICE, private(max_epsilon=4.0))
    # The default delta is adapted to fit.
    check_choices(some, ONE_DEVICE, private(max_delta=1e-9))


def test_private_data_is_missing() -> None:
    assert code_of(NOTHING, private()) == ExitCode.DATA_MISSING


@pytest.mark.parametrize("given", [{"data": (Path("x"),)}, {"epsilon": 1.0}])
def test_shared_data_takes_none(given: dict[str, Any]) -> None:
    assert code_of(PrivacySettings(**given), toy_manifest()) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("privacy", "schema"),
    [
        ({}, {"max_epsilon": 4.0}),
        ({"epsilon": 4.1}, {"max_epsilon": 4.0}),
        ({}, {"max_delta": 1e-6}),
        ({"epsilon": 1.0, "delta": 1e-5}, {"max_delta": 1e-6}),
    ],
)
def test_the_swarm_may_ask_for_privacy(
    tmp_path: Path, privacy: dict[str, float], schema: dict[str, float]
) -> None:
    choice = PrivacySettings(data=(tmp_path,), **privacy)
    assert code_of(choice, private(**schema)) == ExitCode.PRIVACY


def test_noise_takes_one_device_and_an_accountant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = PrivacySettings(data=(tmp_path,), epsilon=1.0)
    for several in (TrainerSettings(device="cpu,cpu"), TrainerSettings(under_torchrun=True)):
        assert code_of(some, private(), several) == ExitCode.USAGE
    steps = replace(private(), rounds=RoundSpec(local_steps=2))
    assert code_of(some, steps) == ExitCode.USAGE
    check_choices(PrivacySettings(data=(tmp_path,)), ONE_DEVICE, steps)
    monkeypatch.setattr(trainer, "find_spec", lambda name: None)
    assert code_of(some, private()) == ExitCode.TRAINER


def test_options_are_checked_before_anything_begins(tmp_path: Path) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"delta": 1e-5},
        {"clip": 2.0},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"epsilon": 1.0, "delta": 0.7},
        {"epsilon": 1.0, "clip": -1.0},
    )
    for given in wrong:
        with pytest.raises(UserError) as caught:
            PrivacySettings(**given)
        assert caught.value.code == ExitCode.USAGE
    assert parse_private_path(tmp_path) == tmp_path
    with pytest.raises(UserError) as caught:
        parse_private_path(tmp_path / "gone")
    assert caught.value.code == ExitCode.DATA_MISSING


def test_a_description_cannot_contradict_itself() -> None:
    toy = toy_manifest()
    spec = PrivateSpec(epoch=1000)
    assert private().data.samples == 1000
    with pytest.raises(ValueError, match="no shards"):
        replace(toy.data, private=spec)
    with pytest.raises(ValueError, match="no shard to train on"):
        replace(toy.data, shards=())
    with pytest.raises(ValueError, match="outlier_filter"):
        replace(toy, data=replace(toy.data, shards=(), private=spec))
    with pytest.raises(ValueError, match=r"optimizer\.update_weight"):
        replace(private(), optimizer=OptimizerSpec(outlier_filter=False, update_weight="share"))


def test_a_shared_swarm_keeps_its_bytes() -> None:
    assert b"private" not in toy_manifest().encode()
    assert b"private" in private().encode()
