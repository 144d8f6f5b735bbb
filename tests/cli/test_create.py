"""`create`: its results, and its messages when file, texts, key or disk are wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from cli.schemas import conforms
from distro_node.crypto.identity import Identity, peer_text
from distro_node.crypto.keystore import create_identity, load_identity
from distro_node.node.create import manifest_draft, new_swarm
from distro_node.node.create.manifest_file import read_manifest_file
from distro_node.node.create.tokens import ByteTokenizer
from distro_node.node.errors import ExitCode
from distro_node.node.storage.blob_files import DiskFull
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.training.answers import InitialModel
from distro_node.node.training.errors import TrainerDied, TrainerFailed
from distro_node.node.training.tokenizer_settings import decode_settings
from distro_node.protocol.wire.blobs import BlobList, decode_blob_list
from distro_node.protocol.wire.manifest import AuditsSpec, Manifest, ParameterSpec, decode_manifest
from distro_node.protocol.wire.swarm_id import parse_invite, swarm_from_text
from distro_node.protocol.wire.work_specs import CommitteesSpec
from trainer.support import CPU, TINY_LLAMA, write_checkpoint
from trainer.test_chat import CHATML

RUN = """
name = "a run"
seed = 7
[model]
model_type = "llama"
hidden_size = 8
num_attention_heads = 2
[data]
sequence_length = 16
paths = ["texts"]
[optimizer]
top_k = 4
"""
PEER = peer_text(Identity.from_seed(bytes(32)).peer)
ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"


@pytest.fixture
def initialised(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the trainer: collect its requests and make up parameters for them."""
    asked: list[dict[str, Any]] = []

    async def initialise_model(
        config: dict[str, Any],
        seed: int,
        checkpoint: Path | None,
        blobs: Path,
        device: str,
        lora: dict[str, Any] | None,
        describe: Callable[[InitialModel], Manifest],
        started: Callable[[], None],
    ) -> InitialModel:
        started()
        asked.append({"config": config, "seed": seed, "checkpoint": checkpoint, "device": device})
        if lora is not None:
            asked[-1]["lora"] = lora
        chunk = json.dumps([config, seed]).encode().ljust(400)
        listed = BlobList("snapshot", 400, (BlobStore(blobs).put(chunk),))
        table = (ParameterSpec(name="weight", shape=(25, 4)),)
        initial = InitialModel(table, listed.encode(), 400)
        describe(initial)
        return initial

    monkeypatch.setattr(new_swarm, "initialise_model", initialise_model)
    return asked


@pytest.fixture
def run(home: Path) -> Path:
    """Return a founder's file with texts beside it."""
    texts = home / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"text number {number}: " + "words and words\n" * 20)
    file = home / "run.toml"
    file.write_text(RUN)
    return file


def manifest_in(data: DataDir) -> Manifest:
    (swarm,) = data.known_swarms()
    return decode_manifest(data.swarm(swarm).manifest.read_bytes(), swarm)


def test_a_founder_gets_a_swarm(command, initialised, run: Path, home: Path) -> None:
    data = DataDir(home / "data")
    result = command("create", run, "--data-dir", data.root, "--bootstrap", ADDRESS)
    assert (result.code, result.complaints) == (0, [])
    manifest = manifest_in(data)
    invite = parse_invite(re.findall(r"distro:\S+", result.out)[0])
    assert (invite.swarm, invite.bootstrap) == (manifest.swarm, (ADDRESS,))
    shown = re.search(r"^swarm-id +(\S+)$", result.out, re.M)
    assert shown is not None
    assert swarm_from_text(shown[1]) == manifest.swarm
    assert re.search(r"^ +distro-node join 'distro:", result.out, re.M)
    assert manifest.name == "a run"
    assert manifest.seed == 7
    assert manifest.optimizer.top_k == 4
    assert manifest.model["vocab_size"] == 256
    assert manifest.founder == load_identity(data.identity, None).peer
    assert initialised == [
        {"config": manifest.model, "seed": 7, "checkpoint": None, "device": "cpu"}
    ]


def test_all_that_the_manifest_names_is_stored(command, initialised, run: Path, home: Path) -> None:
    data = DataDir(home / "data")
    command("create", run, "--data-dir", data.root)
    manifest = manifest_in(data)
    store = BlobStore(data.blobs)
    assert store.get(manifest.swarm) == manifest.encode()  # type: ignore[arg-type]  # also a blob
    assert b"ByteLevel" in (store.get(manifest.data.tokenizer) or b"")
    text = b""
    for shard in (*manifest.data.shards, manifest.data.heldout):
        blobs = decode_blob_list(store.get(shard.blob) or b"", "shard", shard.tokens)
        text += b"".join(store.get(chunk) or b"?" for chunk in blobs.chunks)
    files = [path.read_bytes() for path in (home / "texts").iterdir()]
    assert len(text) == sum(len(file) for file in files)
    assert all(file in text for file in files)
    initial = decode_blob_list(store.get(manifest.initial) or b"", "snapshot", 400)
    assert all(store.has(chunk) for chunk in initial.chunks)
    leftovers = [path for path in data.root.rglob("*") if path.name.startswith(".")]
    assert leftovers == []


def test_the_same_inputs_make_the_same_swarm(command, initialised, run: Path, home: Path) -> None:
    def create(*options: str | Path) -> dict[str, Any]:
        return json.loads(command("create", run, "--json", "--data-dir", home, *options).out)

    first = create()
    assert create() == first
    assert create("--data", home / "texts") == first
    (home / "texts" / "1.txt").unlink()
    assert create()["swarm"] != first["swarm"]
    assert first["parameters"] == 100
    assert first["samples"] > 100
    assert Path(first["manifest"]).is_file()
    assert len(DataDir(home).known_swarms()) == 2


def test_the_example_can_be_used_as_it_is(command, initialised, run: Path, home: Path) -> None:
    example = command("create", "--example")
    assert example.code == 0
    file = home / "example.toml"
    file.write_text(example.out)
    assert read_manifest_file(file).name == "example"
    result = command("create", file, "--data", home / "texts", "--data-dir", home / "data")
    assert (result.code, result.complaints) == (0, [])
    # Nothing is written to it, so it must not look as if.
    taken = command("create", "--example", home / "new.toml")
    taken.refused_with(ExitCode.USAGE, "--example takes no MANIFEST")
    assert "--example > " in taken.err
    assert not (home / "new.toml").exists()


def test_an_invitation_is_the_founders_to_give(command, initialised, run: Path, home: Path) -> None:
    run.write_text(RUN + '[admission]\npolicy = "invite"\n')
    # A link without a ticket admits no peer, so it must not be offered for distribution.
    said = command("create", run, "--data-dir", home / "a", "--bootstrap", ADDRESS).out
    assert re.search(rf"distro-node invite 'distro:swarm-\S+' PEER --data-dir {home / 'a'}\n", said)
    assert "give the link to everyone" not in said
    manifest = manifest_in(DataDir(home / "a"))
    assert manifest.admission.issuer == manifest.founder
    run.write_text(RUN + f'[admission]\npolicy = "invite"\nissuer = "{PEER}"\n')
    command("create", run, "--data-dir", home / "b")
    assert manifest_in(DataDir(home / "b")).admission.issuer == Identity.from_seed(bytes(32)).peer


def test_of_several_swarms_one_has_to_be_named(command, initialised, run: Path, home: Path) -> None:
    command("create", run, "--data-dir", home / "data")
    run.write_text(run.read_text() + '[admission]\npolicy = "invite"\n')
    command("create", run, "--data-dir", home / "data")
    result = command("generate", "x", "--data-dir", home / "data")
    result.refused_with(ExitCode.USAGE, "2 swarms are stored")
    assert "--swarm" in result.err


def test_a_checkpoint_is_tuned_on_conversations(
    command, initialised, run: Path, home: Path
) -> None:
    base = home / "base"
    base.mkdir()
    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    library.save(str(base / "tokenizer.json"))
    told = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (base / "tokenizer_config.json").write_text(json.dumps(told))
    config = {"model_type": "llama", "hidden_size": 8, "vocab_size": 258}
    (base / "config.json").write_text(json.dumps(config))
    talks = [
        [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"Yes, {n}."}]
        for n in range(20)
    ]
    pyarrow.parquet.write_table(pyarrow.table({"messages": talks}), home / "talks.parquet")
    text = re.sub(r"\[model\].*\[data\]", '[model]\ncheckpoint = "base"\n[data]', RUN, flags=re.S)
    text = text.replace("seed = 7", 'seed = 7\ntask = "sft"').replace("length = 16", "length = 96")
    run.write_text(text.replace('"texts"', '"talks.parquet"'))
    result = command("create", run, "--data-dir", home / "data")
    assert (result.code, result.complaints) == (0, [])
    assert "% of the tokens are the assistant's and are learned" in result.out
    manifest = manifest_in(DataDir(home / "data"))
    assert manifest.task == "sft"
    data = manifest.data
    assert (data.marked, data.attention, data.token_bytes) == (True, "document", 2)
    settings = BlobStore(DataDir(home / "data").blobs).get(data.tokenizer_settings or b"")  # type: ignore[arg-type]
    assert decode_settings(settings or b"").chat_template == CHATML
    run.write_text(run.read_text().replace('"sft"', '"poetry"'))
    refused = command("create", run, "--data-dir", home / "data")
    refused.refused_with(ExitCode.NO_TASK, "'poetry', which is not installed")


def test_a_checkpoint_brings_its_configuration(command, initialised, run: Path, home: Path) -> None:
    (home / "base").mkdir()
    config = {"model_type": "llama", "hidden_size": 8, "vocab_size": 300, "rope_theta": 5e5}
    (home / "base" / "config.json").write_text(json.dumps(config))
    text = re.sub(r"\[model\].*\[data\]", '[model]\ncheckpoint = "base"\n[data]', RUN, flags=re.S)
    run.write_text(text)
    assert command("create", run, "--data-dir", home / "data").code == 0
    assert initialised[0]["checkpoint"] == home / "base"
    assert initialised[0]["config"] == config | {"max_position_embeddings": 16}


def lora_run(run: Path, table: str) -> Path:
    """Rewrite the founder's file for adapters on a checkpoint beside it."""
    model = f'[model]\ncheckpoint = "base"\n{table}\n[data]'
    run.write_text(re.sub(r"\[model\].*\[data\]", model, RUN, flags=re.S))
    return run


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("[model.lora]", {"rank": 8, "alpha": 16.0, "targets": []}),
        (
            '[model.lora]\nrank = 4\nalpha = 4\ntargets = ["q_proj"]',
            {"rank": 4, "alpha": 4.0, "targets": ["q_proj"]},
        ),
    ],
)
def test_adapters_are_asked_for(
    command, initialised, run: Path, home: Path, table: str, wanted: dict[str, Any]
) -> None:
    (home / "base").mkdir()
    config = {"model_type": "llama", "hidden_size": 8, "vocab_size": 300}
    (home / "base" / "config.json").write_text(json.dumps(config))
    assert command("create", lora_run(run, table), "--data-dir", home / "data").code == 0
    assert initialised[0]["lora"] == wanted


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[model.lora]\nrank = 0", "model.lora.rank: must be between 1 and 4096, got 0"),
        ("[model.lora]\nranks = 4", "model.lora: unknown key 'ranks'; did you mean 'rank'?"),
        ("[model.lora]\nalpha = 0.0", "model.lora.alpha"),
        ("lora = 3", "model.lora: expected a table"),
        ("[model.lora]\ndropout = 0.1", "model.lora: unknown key 'dropout'"),
    ],
)
def test_adapters_that_cannot_be_are_reported(
    command, initialised, run: Path, home: Path, table: str, words: str
) -> None:
    result = command("create", lora_run(run, table), "--data-dir", home / "data")
    result.refused_with(ExitCode.MANIFEST, words)
    assert initialised == []


def test_adapters_need_a_checkpoint(command, initialised, run: Path, home: Path) -> None:
    run.write_text(RUN.replace("[data]", "[model.lora]\n[data]"))
    result = command("create", run, "--data-dir", home / "data")
    result.refused_with(ExitCode.MANIFEST, "model.lora: needs model.checkpoint")


def test_a_founder_learns_what_was_read_and_what_it_will_cost(
    command, initialised, run: Path, home: Path
) -> None:
    texts = home / "texts"
    (texts / "picture.jpg").write_bytes(b"\xff\xd8")
    (texts / "rows.jsonl").write_text('{"text": "a row"}\n{"text": ""}\n{"text": 1}\n')
    run.write_text(RUN.replace("paths", "max_bad = 1\npaths"))
    result = command("create", run, "--data-dir", home / "data")
    assert (result.code, result.complaints) == (0, [])
    for words in (
        "41 files read, 41 documents",
        "a document starts with no token of its own (bytes have none)",
        "not read: 1 with an unknown ending (picture.jpg)",
        "left out: 1 row or file without text",
        "rows.jsonl, line 3: holds 1 in the column 'text', not text",
        "a round with 32 members:",
        "an epoch: ",
        "too little data for this run: it repeats after about ",
        "create.json",
    ):
        assert words in result.out
    report = json.loads((home / "data" / "logs" / "create.json").read_text())
    assert report["sources"][0]["bad_rows"][0]["line"] == 3
    assert not (home / "data" / "create").exists()
    facts = json.loads(command("create", run, "--data-dir", home / "data", "--json").out)
    conforms("create", facts)
    forecast = facts["forecast"]
    assert forecast["rounds_an_epoch"] == facts["samples"] / 32
    assert forecast["epochs"] == pytest.approx(1000 * 32 / facts["samples"])
    # 100 parameters in blocks of 25 × 4 with 4 coefficients.
    assert forecast["update_bytes_received"]["4"] == 3 * forecast["update_bytes"] > 0


def test_a_founder_learns_what_documents_start_with(
    command, initialised, run: Path, home: Path
) -> None:
    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.add_special_tokens(["<bos>", "<eos>"])
    library.save(str(home / "tokenizer.json"))
    text = RUN.replace("[data]", '[data]\ntokenizer = "tokenizer.json"').replace("llama", "gemma2")
    run.write_text(text)
    made = command("create", run, "--data-dir", home / "data")
    assert (
        "a document starts with no token of its own (the tokenizer adds none) and ends with <eos>"
    ) in made.out
    warning = "Warning: models of the family 'gemma2' need a start token"
    assert warning in made.out
    run.write_text(text.replace("paths", 'document_start = "bos"\npaths'))
    made = command("create", run, "--data-dir", home / "data")
    assert "a document starts with <bos> (set by document_start)" in made.out
    assert warning not in made.out
    facts = json.loads(command("create", run, "--data-dir", home / "data", "--json").out)
    assert facts["document_start"] == "<bos>"
    conforms("create", facts)


def test_a_rate_that_nobody_chose_is_taken_and_reported(
    command, initialised, run: Path, home: Path
) -> None:
    run.write_text(RUN)
    out = command("create", run, "--data-dir", home / "data").out
    assert "the learning rate peaks at 0.005" in out
    assert "best one in benchmarks" not in out


def test_a_rate_far_from_what_benchmarks_found_is_reported(
    command, initialised, run: Path, home: Path
) -> None:
    for rate, words in ((0.5, "is above"), (1e-5, "is below"), (4e-3, None)):
        run.write_text(RUN + f"[schedule]\npeak = {rate}\n")
        out = command("create", run, "--data-dir", home / "data").out
        assert f"the learning rate peaks at {rate:g}" in out
        assert ("best one in benchmarks" in out) == (words is not None)
        assert words is None or words in out


def test_missing_audits_are_reported_where_strangers_may_join(
    command, initialised, run: Path, home: Path
) -> None:
    for table, checks, told in (
        ("", None, True),
        ("[admission]\npolicy = 'invite'\n", None, False),
        ("[optimizer]\npreconditioner = 'rms'\n", None, False),
        ("[audits]\ninterval = 7\n", AuditsSpec(interval=7), False),
    ):
        text = re.sub(r"\[optimizer\]\n(\w.*\n)*", "", RUN)
        run.write_text(text + table)
        data = DataDir(home / f"data {len(table)}")
        out = command("create", run, "--data-dir", data.root).out
        assert ("no work is audited" in out) == told
        assert manifest_in(data).audits == checks
    run.write_text(text + "[optimizer]\npreconditioner = 'rms'\n[audits]\n")
    result = command("create", run, "--data-dir", home / "data")
    assert result.code == ExitCode.MANIFEST
    assert "preconditioner" in result.err


def test_committees_aggregate_if_the_founder_chooses_so(
    command, initialised, run: Path, home: Path
) -> None:
    run.write_text(
        re.sub(r"\[optimizer\]\n(\w.*\n)*", "", RUN) + "[committees]\nrotation_steps = 2\n"
    )
    data = DataDir(home / "data")
    out = command("create", run, "--data-dir", data.root).out
    manifest = manifest_in(data)
    assert manifest.committees == CommitteesSpec(rotation_steps=2)
    assert (manifest.optimizer.top_k, manifest.optimizer.outlier_filter) == (64, False)
    assert "a step with 32 members:" in out
    assert "of sign votes and aggregates" in out
    assert "[committees] is for members" in out
    told = json.loads(command("create", run, "--data-dir", home / "data", "--json").out)
    conforms("create", told)
    forecast = told["forecast"]
    assert forecast["rounds_an_epoch"] == 2 * told["samples"] / 32
    # A byte, and half of 100 bits.
    assert (forecast["update_bytes"], forecast["rounds_a_step"]) == (1 + 7, 2)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ("[optimizer]\nmomentum = 0.9\n[committees]\n", "optimizer.momentum: with [committees]"),
        (
            "[optimizer]\noutlier_filter = true\n[committees]\n",
            "[committees] does not work with optimizer.outlier_filter",
        ),
        ("[schedule]\ntotal_rounds = 999\n[committees]\n", "total_rounds (999) is odd"),
        (
            "[rounds]\noverlap = true\n[committees]\n",
            "[committees] does not work with rounds.overlap",
        ),
        ("[audits]\n[committees]\n", "[committees] does not work with [audits]"),
        ("[committees]\nmin_members = 1\n", "min_members"),
    ],
)
def test_what_does_not_go_with_committees_is_reported(
    command, initialised, run: Path, home: Path, tables: str, words: str
) -> None:
    run.write_text(re.sub(r"\[optimizer\]\n(\w.*\n)*", "", RUN) + tables)
    result = command("create", run, "--data-dir", home / "data")
    assert result.code == ExitCode.MANIFEST
    assert words in result.err
    assert not (home / "data" / "swarms").exists() or not DataDir(home / "data").known_swarms()


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (
            "[optimizer]\npreconditioner = 'muon'\n[audits]\n",
            "audits need preconditioner 'orthogonal'",
        ),
        ("[audits]\n[committees]\n", "[committees] does not work with [audits]"),
        ("[rounds]\nstart_members = 9\n[admission]\nmax_members = 8\n", "would never begin"),
    ],
)
def test_what_does_not_go_together_is_reported_before_a_text_is_read(
    command, initialised, run: Path, home: Path, monkeypatch, tables: str, words: str
) -> None:
    """Reading may take hours, so these are reported first, even where the texts would be refused as
    well."""
    run.write_text(re.sub(r"\[optimizer\]\n(\w.*\n)*", "", RUN) + tables)
    monkeypatch.setattr(
        manifest_draft, "read_corpus", lambda *_: pytest.fail("the texts were read")
    )
    for options in ([], ["--dry-run"]):
        result = command("create", run, "--data-dir", home / "data", *options)
        result.refused_with(ExitCode.MANIFEST, words)
    assert len(initialised) == 2


def test_what_ends_a_document_is_in_the_manifest(
    command, initialised, run: Path, home: Path
) -> None:
    plain = RUN.replace("paths", 'document_end = "#"\nattention = "document"\npaths')
    run.write_text(plain)
    assert command("create", run, "--data-dir", home / "data").code == 0
    manifest = manifest_in(DataDir(home / "data"))
    assert (manifest.data.end_token, manifest.data.attention) == (ord("#"), "document")
    assert manifest.data.sources is None


def test_sources_with_weights(command, initialised, run: Path, home: Path) -> None:
    (home / "small.jsonl").write_text('{"text": "a small source of text"}\n' * 30)
    sources = """
[[data.source]]
name = "texts"
paths = ["texts"]
weight = 0.75
[[data.source]]
paths = ["small.jsonl"]
weight = 0.25
"""
    run.write_text(
        RUN.replace('paths = ["texts"]', "").replace("[optimizer]", sources + "[optimizer]")
    )
    facts = json.loads(command("create", run, "--data-dir", home / "data", "--json").out)
    texts, small = facts["sources"]
    assert (texts["name"], small["name"]) == ("texts", "small.jsonl")
    assert texts["share"] == pytest.approx(0.75, rel=0.01)
    assert small["times"] > 5
    # Names of files stay private.
    told = manifest_in(DataDir(home / "data")).data.sources
    assert told is not None
    assert [source.name for source in told] == ["texts", "2"]
    for source, said in zip(told, (texts, small), strict=True):
        assert (source.documents, source.tokens) == (said["documents"], said["tokens"])
        assert source.share == said["share"]
    result = command("create", run, "--data-dir", home / "data", "--data", home / "texts")
    result.refused_with(ExitCode.MANIFEST, "--data cannot be given as well")


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("top_k", "top_kk", "did you mean 'top_k'?"),
        ("[optimizer]", "[optimiser]", "did you mean 'optimizer'?"),
        ("= 16", '= "16"', "data.sequence_length: expected a whole number"),
        ("[optimizer]", "[rounds]\nsequences = 0\n[optimizer]", "rounds.sequences"),
        ("hidden_size", "hiden_size", "did you mean 'hidden_size'?"),
        ("hidden_size = 8", "hidden_size = 8\nvocab_size = 100", "100 is too small"),
        ("hidden_size = 8", "hidden_size = 8\nmax_position_embeddings = 8", "8 is less than"),
        ("hidden_size = 8", "hidden_size = 9", "not a multiple"),
        ("hidden_size = 8", 'hidden_size = 8\ncheckpoint = "x"', "model.checkpoint"),
        ("[optimizer]", '[admission]\nissuer = "me"\n[optimizer]', "admission.issuer"),
        ("[optimizer]", f'[admission]\nissuer = "{PEER}"\n[optimizer]', "policy = 'invite'"),
        ("paths", 'tokenizer = "no.json"\npaths', "no.json"),
        ("paths", 'tokenizer = "endless.json"\npaths', "names no token that ends a document"),
        ("paths", 'tokenizer = "endless.json"\ndocument_end = "</s>"\npaths', " tokens of "),
        ("paths", 'attention = "document"\npaths', "needs a document_end that is one token"),
        ("paths", 'template = "{"\npaths', "data: template"),
        ("paths", 'format = "parket"\npaths', "data.format"),
        ("paths", 'source = [{paths = ["a"]}]\npaths', "'paths' must be set in each"),
        ("name = ", "name = = ", "not TOML"),
    ],
)
def test_a_wrong_file_is_reported_before_anything_is_made(
    command, initialised, run: Path, home: Path, old: str, new: str, words: str
) -> None:
    run.write_text(RUN.replace(old, new))
    (home / "endless.json").write_bytes(ByteTokenizer().definition)
    result = command("create", run, "--data-dir", home / "data")
    result.refused_with(ExitCode.MANIFEST, words)
    assert initialised == []
    assert DataDir(home / "data").known_swarms() == []


def test_a_file_that_is_not_there(command, initialised, home: Path) -> None:
    command("create", home / "no.toml").refused_with(ExitCode.MANIFEST, "no.toml")
    command("create").refused_with(ExitCode.USAGE, "no manifest file is given")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "nowhere"], "nowhere"),
        (["--data", "short.txt"], "shorter than one sequence"),
        (["--data", "nothing"], "no training text"),
        (["--data", "pictures"], "2 with an unknown ending (a.jpg, b.jpg)"),
        (["--data", "none.txt"], "is not text"),
        (["--data", "cut.txt.gz"], "cut.txt.gz: is cut short"),
        (["--data", "broken.parquet"], "broken.parquet: is not a valid Parquet file"),
        (["--data", "other.parquet"], "no column 'text' (it has: body)"),
        (["--data", "numbers.parquet"], "holds int64 in the column 'text', not text"),
        (["--data", "mixed.jsonl"], "line 2: the row holds 1 in the column 'text', not text"),
        (
            ["--data", "large.bin"],
            "token 1 is 300 (read as uint16), but the tokenizer has 256 tokens",
        ),
        (["--data", "hf://nobody"], "hf://nobody: is not a data set"),
    ],
)
def test_missing_texts_are_reported(
    command, initialised, run: Path, home: Path, options: list[str], words: str
) -> None:
    (home / "short.txt").write_text("short")
    (home / "nothing").mkdir()
    (home / "pictures").mkdir()
    for name in ("a", "b"):
        (home / "pictures" / f"{name}.jpg").write_bytes(b"\xff\xd8")
    (home / "none.txt").write_bytes(bytes(100))
    (home / "cut.txt.gz").write_bytes(gzip.compress(b"text " * 1000)[:30])
    (home / "broken.parquet").write_bytes(b"PAR1")
    for name, column in (("other", {"body": ["a"]}), ("numbers", {"text": [1]})):
        pyarrow.parquet.write_table(pyarrow.table(column), home / f"{name}.parquet")
    (home / "mixed.jsonl").write_text('{"text": "a"}\n{"text": 1}\n')
    (home / "large.bin").write_bytes(bytes([1, 0, 44, 1]))
    options = [
        option if option.startswith(("--", "hf:")) else str(home / option) for option in options
    ]
    result = command("create", run, "--data-dir", home / "data", *options)
    result.refused_with(ExitCode.DATA_MISSING, words)
    data = DataDir(home / "data")
    assert data.known_swarms() == []
    # Of the initial model, which is there before the texts are read, nothing stays.
    assert list(data.blobs.glob("*")) == []


def test_a_file_without_paths_needs_them(command, initialised, run: Path, home: Path) -> None:
    run.write_text(RUN.replace('paths = ["texts"]', ""))
    result = command("create", run, "--data-dir", home / "data")
    result.refused_with(ExitCode.DATA_MISSING, "no path was given")
    assert "--data" in result.err


def test_the_data_directory_may_be_in_use(command, initialised, run: Path, home: Path) -> None:
    data = DataDir(home / "data")
    data.create()
    with data.lock():
        result = command("create", run, "--data-dir", data.root)
    result.refused_with(ExitCode.DATA_DIR_LOCKED, str(os.getpid()))


def test_the_key_must_be_usable(command, initialised, run: Path, home: Path, monkeypatch) -> None:
    data = DataDir(home / "data")
    data.create()
    create_identity(data.identity, "secret")
    before = data.identity.read_bytes()
    create = ["create", run, "--data-dir", data.root]
    command(*create).refused_with(ExitCode.WRONG_PASSPHRASE)
    monkeypatch.setenv("DISTRO_NODE_PASSPHRASE", "guess")
    command(*create).refused_with(ExitCode.WRONG_PASSPHRASE)
    monkeypatch.setenv("DISTRO_NODE_PASSPHRASE", "secret")
    assert command(*create).code == 0
    assert data.identity.read_bytes() == before
    data.identity.write_bytes(before[:-20])
    command(*create).refused_with(ExitCode.KEYSTORE, "damaged")
    assert data.identity.read_bytes() == before[:-20]


def test_a_bootstrap_address_must_be_one(command, initialised, run: Path, home: Path) -> None:
    result = command("create", run, "--data-dir", home / "data", "--bootstrap", "example.org")
    result.refused_with(ExitCode.BAD_ADDRESS, "example.org")
    assert initialised == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TrainerFailed("bad_model", "no such model"), ExitCode.MANIFEST),
        (TrainerFailed("bad_snapshot", "not a checkpoint"), ExitCode.MANIFEST),
        (TrainerFailed("out_of_memory", "too large"), ExitCode.MODEL_TOO_LARGE),
        (TrainerFailed("no_device", "no cpu"), ExitCode.NO_DEVICE),
        (TrainerFailed("disk_full", "no room"), ExitCode.DISK_FULL),
        (TrainerDied("killed"), ExitCode.TRAINER),
    ],
)
def test_what_the_trainer_reports_is_passed_on(
    command, run: Path, home: Path, monkeypatch, error: Exception, code: ExitCode
) -> None:
    async def initialise_model(*_: object) -> InitialModel:
        raise error

    monkeypatch.setattr(new_swarm, "initialise_model", initialise_model)
    command("create", run, "--data-dir", home / "data").refused_with(code)
    assert DataDir(home / "data").known_swarms() == []


def test_a_bug_of_the_trainer_is_a_bug(command, run: Path, home: Path, monkeypatch) -> None:
    async def initialise_model(*_: object) -> InitialModel:
        raise TrainerFailed("internal", "KeyError")

    monkeypatch.setattr(new_swarm, "initialise_model", initialise_model)
    monkeypatch.setattr("tempfile.tempdir", str(home))
    assert command("create", run, "--data-dir", home / "data").code == ExitCode.BUG


def test_a_full_disk_is_reported(command, initialised, run: Path, home: Path, monkeypatch) -> None:
    def put(_store: BlobStore, data: bytes) -> None:
        raise DiskFull(28, f"no room for {len(data)} bytes")

    monkeypatch.setattr(BlobStore, "put", put)
    result = command("create", run, "--data-dir", home / "data")
    result.refused_with(ExitCode.DISK_FULL, "disk is full")


@pytest.mark.e2e
@pytest.mark.slow
def test_a_dry_run_makes_nothing_and_measures(command, run: Path, home: Path) -> None:
    model = "hidden_size = 8\nintermediate_size = 16\nnum_hidden_layers = 1"
    run.write_text(RUN.replace("hidden_size = 8", model))
    data = DataDir(home / "data")
    options = ("create", run, "--data-dir", data.root)
    dry = json.loads(command(*options, "--dry-run", "--json").out)
    assert data.known_swarms() == []
    assert not data.identity.exists()
    assert list(data.blobs.iterdir()) == []
    assert dry["forecast"]["sequence_seconds"] > 0
    conforms("create", dry)
    made = json.loads(command(*options, "--json").out)
    for name in ("samples", "tokens", "heldout_tokens", "documents", "parameters"):
        assert dry[name] == made[name]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_dry_run_measures_with_committees(command, run: Path, home: Path) -> None:
    """And it reports them in words."""
    text = RUN.replace(
        "hidden_size = 8", "hidden_size = 8\nintermediate_size = 16\nnum_hidden_layers = 1"
    )
    run.write_text(re.sub(r"\[optimizer\]\n(\w.*\n)*", "", text) + "[committees]\n")
    result = command("create", run, "--data-dir", home / "data", "--dry-run")
    assert (result.code, result.complaints) == (0, [])
    assert "a round on this machine alone:" in result.out


@pytest.mark.e2e
@pytest.mark.slow
def test_a_real_trainer_makes_a_real_model(run: Path, home: Path) -> None:
    run.write_text(
        RUN.replace(
            "hidden_size = 8", "hidden_size = 8\nintermediate_size = 16\nnum_hidden_layers = 1"
        )
    )
    script = f"""
import sys
from distro_node.node.cli import main
try:
    main(["create", {str(run)!r}, "--data-dir", {str(home)!r}, "--json"])
finally:
    print([name for name in ("torch", "transformers", "libp2p") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    facts, heavy = done.stdout.splitlines()
    # Two embeddings of 256 × 8, attention 4 × 8 × 8, feed-forward 3 × 8 × 16, three norms of 8.
    assert json.loads(facts)["parameters"] == 2 * 256 * 8 + 4 * 64 + 3 * 128 + 3 * 8
    assert heavy == "[]"
    manifest = manifest_in(DataDir(home))
    initial = BlobStore(DataDir(home).blobs).get(manifest.initial)
    decode_blob_list(initial or b"", "snapshot", manifest.elements * 4)


@pytest.mark.e2e
@pytest.mark.slow
def test_real_adapters_are_made_beside_a_real_base(command, run: Path, home: Path) -> None:
    """And a dry run reports what will be transferred."""
    config = TINY_LLAMA | {"tie_word_embeddings": False}
    write_checkpoint(home / "base", config)
    weights = sum(p.numel() for p in new_model(model_config(config), CPU).parameters())
    options = ("create", lora_run(run, "[model.lora]\nrank = 4"), "--data-dir", home / "data")
    dry = command(*options, "--dry-run")
    assert (dry.code, dry.complaints) == (0, [])
    assert f"and {weights:,} frozen ones" in dry.out
    fitting = json.loads(command("fit", run, "--json").out)
    assert f"{fitting['parameters']:,} parameters in adapters, and {weights:,} frozen" in dry.out
    assert fitting["frozen_parameters"] == weights
    assert re.search(
        r"a member fetches .* of model: .* of base model, once, and .* of adapters", dry.out
    )
    assert re.search(r"an update has \d.*times less than a gradient of the whole model", dry.out)
    assert command(*options).code == 0
    manifest = manifest_in(DataDir(home / "data"))
    assert manifest.adapter is not None
    assert manifest.frozen_elements == weights
    assert manifest.elements == 4 * (4 * (32 + 32) + 3 * (32 + 48))
    store = BlobStore(DataDir(home / "data").blobs)
    base = decode_blob_list(store.get(manifest.adapter.base) or b"", "snapshot", 4 * weights)
    assert all(store.has(chunk) for chunk in base.chunks)
    table = '[model.lora]\nrank = 4\ntargets = ["q_proj", "nowhere"]'
    result = command("create", lora_run(run, table), "--data-dir", home / "data")
    result.refused_with(ExitCode.MANIFEST, "no linear layer called 'nowhere'; it has down_proj")
