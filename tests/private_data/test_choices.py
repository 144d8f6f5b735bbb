"""The owner's data and options, and whether they fit the swarm: one line each, and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.cli.own_data import privacy_settings, private_files
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.private_data import trainer
from distro_node.node.private_data.trainer import check_choices
from distro_node.node.settings import DaemonSettings, PrivacySettings
from distro_node.protocol.wire.manifest import Manifest, OptimizerSpec, PrivateSpec
from simulation.toy import toy_manifest


def private(**schema: Any) -> Manifest:
    toy = toy_manifest()
    data = replace(toy.data, shards=(), private=PrivateSpec(epoch=1000, **schema))
    return replace(toy, data=data, optimizer=OptimizerSpec(outlier_filter=False))


def settings(tmp_path: Path, **given: Any) -> DaemonSettings:
    return DaemonSettings(swarm=toy_manifest().swarm, data_dir=tmp_path, **given)


def code_of(choice: DaemonSettings, manifest: Manifest) -> ExitCode:
    with pytest.raises(UserError) as caught:
        check_choices(choice, manifest)
    assert "\n" not in caught.value.problem
    return caught.value.code


def test_what_fits_is_taken(tmp_path: Path) -> None:
    check_choices(settings(tmp_path), toy_manifest())
    check_choices(settings(tmp_path, stateless=True), toy_manifest())
    data = (tmp_path,)
    check_choices(settings(tmp_path, private_data=data), private())
    some = PrivacySettings(epsilon=4.0)
    check_choices(settings(tmp_path, private_data=data, privacy=some), private(max_epsilon=4.0))
    # The default delta is adapted to fit.
    check_choices(settings(tmp_path, private_data=data, privacy=some), private(max_delta=1e-9))


def test_private_data_is_missing(tmp_path: Path) -> None:
    assert code_of(settings(tmp_path), private()) == ExitCode.DATA_MISSING


@pytest.mark.parametrize(
    "given", [{"private_data": (Path("x"),)}, {"privacy": PrivacySettings(epsilon=1)}]
)
def test_shared_data_takes_none(tmp_path: Path, given: dict[str, Any]) -> None:
    assert code_of(settings(tmp_path, **given), toy_manifest()) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("privacy", "schema"),
    [
        (None, {"max_epsilon": 4.0}),
        (PrivacySettings(epsilon=4.1), {"max_epsilon": 4.0}),
        (None, {"max_delta": 1e-6}),
        (PrivacySettings(epsilon=1.0, delta=1e-5), {"max_delta": 1e-6}),
    ],
)
def test_the_swarm_may_ask_for_privacy(
    tmp_path: Path, privacy: PrivacySettings | None, schema: dict[str, float]
) -> None:
    choice = settings(tmp_path, private_data=(tmp_path,), privacy=privacy)
    assert code_of(choice, private(**schema)) == ExitCode.PRIVACY


def test_noise_takes_one_device_and_an_accountant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {"private_data": (tmp_path,), "privacy": PrivacySettings(epsilon=1.0)}
    several = settings(tmp_path, device="cpu,cpu", **some)
    assert code_of(several, private()) == ExitCode.USAGE
    monkeypatch.setattr(trainer, "find_spec", lambda name: None)
    assert code_of(settings(tmp_path, **some), private()) == ExitCode.TRAINER


def test_options_are_checked_before_anything_begins(tmp_path: Path) -> None:
    assert privacy_settings(None, None, 1.0) is None
    assert privacy_settings(2.0, None, 0.5) == PrivacySettings(epsilon=2.0, clip=0.5)
    for given in (
        (None, 1e-5, 1.0),
        (None, None, 2.0),
        (0.0, None, 1.0),
        (float("nan"), None, 1.0),
        (1.0, 0.7, 1.0),
        (1.0, None, -1.0),
    ):
        with pytest.raises(UserError) as caught:
            privacy_settings(*given)
        assert caught.value.code == ExitCode.USAGE
    assert private_files([tmp_path]) == (tmp_path,)
    with pytest.raises(UserError) as caught:
        private_files([tmp_path / "gone"])
    assert caught.value.code == ExitCode.DATA_MISSING


def test_a_description_cannot_contradict_itself() -> None:
    toy = toy_manifest()
    spec = PrivateSpec(epoch=1000)
    assert private().data.samples == 1000
    with pytest.raises(ValueError, match="no shards"):
        replace(toy.data, private=spec)
    with pytest.raises(ValueError, match="no shard to train on"):
        replace(toy.data, shards=())
    with pytest.raises(ValueError, match="audit"):
        replace(toy, data=replace(toy.data, shards=(), private=spec))
    with pytest.raises(ValueError, match=r"optimizer\.say"):
        replace(private(), optimizer=OptimizerSpec(outlier_filter=False, update_weight="share"))


def test_a_shared_swarm_keeps_its_bytes() -> None:
    assert b"private" not in toy_manifest().encode()
    assert b"private" in private().encode()
