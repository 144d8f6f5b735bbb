"""The optimizer settings that a founder does not give follow from the rest of the file and the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from distro_node.node.create.audits import MUON_MINIMUM
from distro_node.node.create.defaults import default_optimizer, default_schedule
from distro_node.node.create.manifest_file import read_manifest_file
from distro_node.node.errors import ExitCode, UserError
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec

FILE = """
name = "small"
[model]
model_type = "llama"
[data]
sequence_length = 64
"""
NOW, OLDER = ("muon", 0.97, 0.7, "scaled"), ("orthogonal", 0.95, 0.0, "sign")
# With k = 8 an update has 8 coefficients of each block.
ENOUGH = MUON_MINIMUM // 8
AUDITED = "[audits]\n"
STEPS = "[rounds]\nlocal_steps = 4\n"


def model(blocks: int) -> list[ParameterSpec]:
    return [ParameterSpec(name="weight", shape=(64 * blocks, 64))]


def usual(folder: Path, more: str, blocks: int = 4) -> OptimizerSpec:
    path = folder / "run.toml"
    path.write_text(FILE + more)
    return default_optimizer(read_manifest_file(path), path, model(blocks))


def together(spec: OptimizerSpec) -> tuple[str, float, float, str]:
    return spec.preconditioner, spec.momentum, spec.smoothing, spec.step


@pytest.mark.parametrize(
    ("more", "weight"),
    [
        ("", "share"),
        ("[optimizer]\ntop_k = 4", "share"),
        ("[optimizer]\nupdate_weight = 'equal'", "equal"),
        ("[rounds]\nmax_share = 0.0", "equal"),
        ("policy = 'private'", "equal"),
        # Then the manifest refuses it.
        ("policy = 'private'\n[optimizer]\nupdate_weight = 'share'", "share"),
    ],
)
def test_new_swarms_weigh_by_share_where_there_are_shares(
    more: str, weight: str, tmp_path: Path
) -> None:
    spec = usual(tmp_path, more)
    assert type(spec) is OptimizerSpec
    assert (spec.update_weight, spec.top_k) == (weight, 4 if "top_k" in more else 8)


def test_members_with_private_data_are_not_audited(tmp_path: Path) -> None:
    assert usual(tmp_path, "").outlier_filter
    assert not usual(tmp_path, "policy = 'private'").outlier_filter


@pytest.mark.parametrize(
    ("more", "chosen"),
    [
        ("", NOW),
        ("[optimizer]\npreconditioner = 'muon'", NOW),
        ("[optimizer]\npreconditioner = 'muon'\nmomentum = 0.9", ("muon", 0.9, 0.7, "scaled")),
        ("[optimizer]\nstep = 'sign'", ("muon", 0.97, 0.7, "sign")),
        ("[optimizer]\npreconditioner = 'orthogonal'", OLDER),
        ("[optimizer]\npreconditioner = 'rms'\nstep = 'scaled'", ("rms", 0.95, 0.0, "scaled")),
        ("policy = 'private'", OLDER),
        (AUDITED, OLDER),
        (STEPS, ("none", 0.95, 0.0, "scaled")),
        (f"policy = 'private'\n{STEPS}", ("none", 0.95, 0.0, "scaled")),
        (
            f"[optimizer]\npreconditioner = 'muon'\nmomentum = 0.9\n{STEPS}",
            ("muon", 0.9, 0.7, "scaled"),
        ),
    ],
)
def test_the_settings_go_together(
    more: str, chosen: tuple[str, float, float, str], tmp_path: Path
) -> None:
    assert together(usual(tmp_path, more)) == chosen


@pytest.mark.parametrize(
    "said",
    [
        "preconditioner = 'muon'",
        "preconditioner = 'muon'\nsmoothing = 0.0",
        "preconditioner = 'orthogonal'\nsmoothing = 0.5",
        "smoothing = 0.5",
    ],
)
def test_nobody_makes_a_swarm_whose_audits_accuse_the_honest(said: str, tmp_path: Path) -> None:
    more = f"{AUDITED}[optimizer]\n{said}"
    assert update_layout(model(ENOUGH), 64, 8).coefficients == MUON_MINIMUM
    usual(tmp_path, more, ENOUGH)
    with pytest.raises(UserError) as caught:
        usual(tmp_path, more, ENOUGH - 1)
    assert caught.value.code == ExitCode.MANIFEST
    for word in ("run.toml", "1,928", "1,936", "'orthogonal'", "[audits]"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("more", "parameters", "peak"),
    [
        ("", 139_584, 5e-3),
        ("", 100, 5e-3),
        ("[schedule]\ntotal_rounds = 500", 918_656, 5e-3),
        ("[audits]", 139_584, 8e-3),
        ("[optimizer]\nstep = 'sign'", 918_656, 6e-3),
        ("", 2 * 10**9, 4e-4),
        (STEPS, 139_584, 2e-2),
        ("[rounds]\nsequences = 1000\nlocal_steps = 1000", 139_584, 1.0),
        # For these no best value was measured.
        ("[optimizer]\npreconditioner = 'rms'", 139_584, 2e-3),
        ("[optimizer]\npreconditioner = 'none'", 139_584, 2e-3),
        ("[schedule]\npeak = 0.002", 139_584, 2e-3),
    ],
)
def test_a_peak_rate_that_is_not_set_is_what_learned_best(
    more: str, parameters: int, peak: float, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE + more)
    file = read_manifest_file(path)
    schedule = default_schedule(file, default_optimizer(file, path, model(4)), parameters)
    assert schedule == replace(file.schedule, peak=peak)
    assert schedule.total_rounds == (500 if "500" in more else file.schedule.total_rounds)


def test_with_committees_the_aggregators_have_the_momentum(tmp_path: Path) -> None:
    spec = usual(tmp_path, "[committees]")
    assert (spec.top_k, spec.outlier_filter, spec.preconditioner, spec.step) == (
        64,
        False,
        "muon",
        "scaled",
    )
    assert usual(tmp_path, "[optimizer]\ntop_k = 32\n[committees]").top_k == 32
    # For a large model, as many as one committee can aggregate.
    assert usual(tmp_path, "[committees]", blocks=1 << 18).top_k == 60
    with pytest.raises(UserError, match="the committees keep the momentum"):
        usual(tmp_path, "[optimizer]\nmomentum = 0.9\n[committees]")
