"""A founder's file: its values take effect, and every mistake is reported with file and key."""

from __future__ import annotations

import contextlib
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.create.manifest_file import (
    FoundersFile,
    ManifestFile,
    read_manifest_file,
)
from distro_node.node.create.model_config import complete_model, read_checkpoint_config
from distro_node.node.create.rates import default_rate, rate_warning
from distro_node.node.errors import ExitCode, UserError
from distro_node.protocol.wire.manifest import AuditsSpec, ScheduleSpec
from distro_node.protocol.wire.structure import StructureError
from hypothesis import given
from hypothesis import strategies as st

SMALL = """
name = "small"
[model]
model_type = "llama"
hidden_size = 128
num_attention_heads = 4
[data]
sequence_length = 64
"""
LLAMA: dict[str, Any] = tomllib.loads(SMALL)["model"]


def read(folder: Path, text: str | bytes) -> FoundersFile:
    file = folder / "run.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_manifest_file(file)


def shipped(name: str, checkout: Path) -> ManifestFile:
    return read_manifest_file(checkout / "node" / "create" / "manifests" / name)


def test_a_short_file_has_defaults_for_the_rest(tmp_path: Path) -> None:
    file = read(tmp_path, SMALL)
    assert (file.name, file.seed, file.fault_model) == ("small", 0, "byzantine")
    assert file.model == LLAMA
    assert file.data.tokenizer is None
    assert file.optimizer.top_k == 8
    assert file.admission.policy == "open"


def test_work_is_audited_if_the_file_asks_for_it(tmp_path: Path) -> None:
    assert read(tmp_path, SMALL).audits is None
    assert read(tmp_path, SMALL + "[audits]").audits == AuditsSpec()
    said = read(tmp_path, SMALL + "[audits]\ninterval = 5\ndeviation = 200").audits
    assert said == AuditsSpec(interval=5, deviation=200)


def test_what_a_file_states_is_known(tmp_path: Path) -> None:
    assert read(tmp_path, SMALL).given_keys == frozenset()
    more = "[optimizer]\ntop_k = 4\nsmoothing = 0.7\n[schedule]\npeak = 0.002"
    said = read(tmp_path, SMALL + more).given_keys
    assert said == {"optimizer.top_k", "optimizer.smoothing", "schedule.peak"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMALL + "[audits]\ninterval = 0", ["audits.interval", "0"]),
        (SMALL + "[audits]\neach = 3", ["audits", "'each'"]),
        ("", ["'name' is missing"]),
        ("name = 'x'", ["'model' is missing"]),
        (SMALL + "[optimiser]\ntop_k = 1", ["'optimiser'", "did you mean 'optimizer'?"]),
        (SMALL + "[optimizer]\ntop-k = 1", ["optimizer", "'top-k'", "did you mean 'top_k'?"]),
        (SMALL + "[optimizer]\ntop_k = '8'", ["optimizer.top_k", "a whole number", "'8'"]),
        (SMALL + "[optimizer]\ntop_k = 8.0", ["optimizer.top_k", "a whole number"]),
        (SMALL + "[optimizer]\nmomentum = 1.5", ["optimizer.momentum", "between 0 and 0.9999"]),
        (SMALL + "[optimizer]\nmomentum = nan", ["optimizer.momentum", "finite"]),
        (SMALL + "[rounds]\nsequences = 0", ["rounds.sequences", "got 0"]),
        (SMALL + "[rounds]\nslot_min_seconds = 99", ["slot_min_seconds (99) exceeds"]),
        (SMALL + "[rounds]\nlocal_steps = 0", ["rounds.local_steps", "got 0"]),
        (SMALL + "[rounds]\nlocal_steps = 64", ["rounds", "exceeds sequences (32)"]),
        (SMALL + "[rounds]\nlocal_rate = 0.5", ["rounds", "local_rate needs local_steps"]),
        (SMALL + "[rounds]\nlocal_steps = 4\n[audits]", ["above 1 does not work with [audits]"]),
        (SMALL + "[rounds]\nlocal_steps = 2\n[committees]", ["does not work with [committees]"]),
        (
            SMALL + "policy = 'private'\nmax_epsilon = 3.0\n[rounds]\nlocal_steps = 2",
            ["does not work with data.max_epsilon"],
        ),
        (SMALL + "[schedule]\nwarmup_rounds = 9999", ["schedule", "exceed total_rounds"]),
        (SMALL + "[admission]\npolicy = 'closed'", ["admission.policy", "'open', 'invite'"]),
        (SMALL + "heldout_fraction = 0.9", ["data.heldout_fraction", "0.5"]),
        (SMALL + 'mirrors = ["x"]', ["data.mirrors"]),
        (SMALL + "include = []", ["data.include", "1 to 100 items"]),
        (SMALL + "include = '*.txt'", ["data.include", "a list"]),
        (SMALL.replace("64", "true"), ["data.sequence_length", "a whole number"]),
        (SMALL.replace("64", "1"), ["data.sequence_length", "got 1"]),
        ("data = 3\n" + SMALL.partition("[data]")[0], ["data", "expected a table"]),
        (SMALL + "[model.x]\ny = 2020-01-01", ["model.x.y", "unexpected"]),
        (SMALL.replace('"small"', "'" + "x" * 65 + "'"), ["name", "1 to 64 characters"]),
        (SMALL.replace('"small"', "''"), ["name", "1 to 64 characters, has 0"]),
        ("name = x", ["not TOML", "line 1"]),
        (b"\xff", ["is not text in UTF-8"]),
        (SMALL.encode("utf-16"), ["text in UTF-16, and must be in UTF-8"]),
        (SMALL.encode("utf-16-le"), ["UTF-16"]),
        (SMALL.encode("utf-16-be"), ["UTF-16"]),
        (SMALL.encode("utf-32"), ["UTF-32"]),
        (SMALL.encode() + b"\0", ["is not TOML"]),
        (b"a=" + b"9" * 10_000, ["too many digits"]),
        (b"a=" + b"[" * 10_000, ["is not TOML|nested too deeply"]),
        (b"#" * ((1 << 20) + 1), ["larger than 1 MB"]),
    ],
)
def test_every_mistake_is_named(tmp_path: Path, text: str | bytes, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    assert caught.value.code == ExitCode.MANIFEST
    assert str(tmp_path / "run.toml") in caught.value.problem
    for word in words:
        assert any(one in caught.value.problem for one in word.split("|")), caught.value.problem


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbf" + SMALL.encode()) == read(tmp_path, SMALL)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UserError) as caught:
            read_manifest_file(path)
        assert caught.value.code == ExitCode.MANIFEST


@given(
    st.lists(
        st.sampled_from([SMALL, "[data]", "name", "=", "\n", "1", "'a'", "[rounds]", "[", "{}"])
        | st.text(max_size=5)
    ).map(" ".join)
)
def test_any_file_is_a_run_or_the_one_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    with contextlib.suppress(UserError):
        assert isinstance(read(tmp_path_factory.mktemp("m"), text), ManifestFile)


# --- the files that come with the program --------------------------------------------------------


def parameters(model: dict[str, Any]) -> int:
    """Return the number of parameters of a Llama without biases, tied embeddings or shared heads."""
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    attention = 4 * hidden * hidden
    feed_forward = 3 * hidden * model["intermediate_size"]
    embeddings = 2 * model.get("vocab_size", 256) * hidden
    return layers * (attention + feed_forward + 2 * hidden) + hidden + embeddings


def test_the_example_is_what_it_states(checkout: Path) -> None:
    file = shipped("example.toml", checkout)
    assert parameters(file.model) == 857_216
    assert file.rounds.sequences == 32
    complete_model(file.model, vocabulary=256, sequence_length=128)


def test_the_large_example_is_what_it_states(checkout: Path) -> None:
    file = shipped("llama-1.2b.toml", checkout)
    assert parameters(file.model) == pytest.approx(1.2046e9, rel=1e-3)
    assert file.optimizer.top_k == 7
    assert file.rounds.sequences * file.data.sequence_length == 1 << 22
    complete_model(file.model, vocabulary=32_000, sequence_length=2048)
    # As in the report's table 1.
    assert file.schedule == ScheduleSpec(
        peak=4e-4, warmup_rounds=400, total_rounds=25_000, final=0.1, shape="cosine"
    )
    assert file.schedule.total_rounds << 22 == pytest.approx(105e9, rel=0.01)
    assert file.optimizer.weight_decay == 0.1


def test_the_other_large_example_differs_in_what_it_states(checkout: Path) -> None:
    one, other = (shipped(f"llama-1.2b{name}.toml", checkout) for name in ("", "-psyche"))
    assert (other.optimizer.top_k, other.optimizer.momentum) == (4, 0.995)
    assert other.optimizer.preconditioner == "none"
    same = {name: getattr(one, name) for name in ("name", "optimizer", "given_keys")}
    assert replace(other, **same) == one
    rates = {rate_warning(file.schedule, round(1.2046e9), "sign") for file in (one, other)}
    assert rates == {None}


@pytest.mark.parametrize(
    ("parameters", "rate", "words"),
    [
        (139_584, 8e-3, None),
        (918_656, 6e-3, None),
        (10_000_000, 2e-3, None),
        (10_000_000, 5e-2, "is above"),
        (1_204_000_000, 1e-2, "about 0.0004"),
        (1_204_000_000, 1e-5, "is below"),
        (10**12, 4e-4, None),
    ],
)
def test_rates_far_from_what_was_found_are_reported(
    parameters: int, rate: float, words: str | None
) -> None:
    for step in ("sign", "scaled"):
        warning = rate_warning(ScheduleSpec(peak=rate), parameters, step)
        assert (warning is None) == (words is None)
        assert words is None or words in (warning or "")


def test_rates_fall_with_the_size_and_are_no_higher_where_steps_are_scaled() -> None:
    sizes = [1, 10**5, 10**6, 10**7, 10**8, 10**9, 10**12]
    for step in ("sign", "scaled"):
        rates = [default_rate(size, step) for size in sizes]
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] == 4e-4
    assert all(default_rate(size, "scaled") <= default_rate(size, "sign") for size in sizes)


# --- the model's configuration -------------------------------------------------------------------


def test_what_follows_from_the_data_is_filled_in() -> None:
    complete = complete_model(LLAMA, vocabulary=300, sequence_length=64)
    assert complete == LLAMA | {"vocab_size": 300, "max_position_embeddings": 64}
    larger = LLAMA | {"vocab_size": 320, "max_position_embeddings": 128}
    assert complete_model(larger, vocabulary=300, sequence_length=64) == larger


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": None}, "'model_type' is missing"),
        ({"hiden_size": 64}, "did you mean 'hidden_size'?"),
        ({"hidden_size": "128"}, "model.hidden_size: expected a whole number"),
        ({"hidden_size": 0}, "model.hidden_size"),
        ({"hidden_size": True}, "model.hidden_size"),
        ({"hidden_size": 130}, "130 is not a multiple of num_attention_heads (4)"),
        ({"num_key_value_heads": 3}, "4 is not a multiple of num_key_value_heads (3)"),
        ({"tie_word_embeddings": 1}, "expected true or false"),
        ({"rms_norm_eps": "small"}, "expected a number"),
        ({"vocab_size": 255}, "255 is too small: the tokenizer has 256 tokens"),
        ({"max_position_embeddings": 63}, "63 is less than data.sequence_length (64)"),
    ],
)
def test_a_wrong_configuration_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(StructureError) as caught:
        complete_model(LLAMA | changes, vocabulary=256, sequence_length=64)
    assert words in str(caught.value)


def test_other_models_have_other_keys() -> None:
    config = {"model_type": "gpt_neox", "rotary_pct": 0.25, "rope_scaling": None}
    assert complete_model(config, vocabulary=256, sequence_length=64)["rotary_pct"] == 0.25
    gpt2 = {"model_type": "gpt2", "n_positions": 32}
    with pytest.raises(StructureError, match="32 is less than"):
        complete_model(gpt2, vocabulary=256, sequence_length=64)


def test_a_checkpoints_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA | {"torch_dtype": "bfloat16", "_name_or_path": "x"}))
    config = complete_model(read_checkpoint_config(tmp_path), vocabulary=256, sequence_length=64)
    assert config == LLAMA | {"vocab_size": 256, "max_position_embeddings": 64}
    file.write_text(json.dumps(LLAMA | {"something_new": 1}))
    with pytest.raises(StructureError, match="llama has no key 'something_new'"):
        complete_model(read_checkpoint_config(tmp_path), vocabulary=256, sequence_length=64)
    for content in (b"[]", b"{", b"\xff", b" " * ((1 << 20) + 1)):
        file.write_bytes(content)
        with pytest.raises(StructureError, match="not a model's configuration"):
            read_checkpoint_config(tmp_path)
    file.unlink()
    with pytest.raises(StructureError, match="cannot be read"):
        read_checkpoint_config(tmp_path)
