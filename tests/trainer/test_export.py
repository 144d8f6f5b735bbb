"""An export opens in transformers unchanged, and its texts end where the tokenizer defines it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.create.checkpoint import tokenizer_warning
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.export import export, settings_files
from distro_node.node.trainer.models.read_export import compare_export
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.tasks import text_generation
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.tokenizer_settings import (
    TokenizerSettings,
    decode_settings,
    read_settings,
)
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from trainer.small_models import SMALL_MODELS
from trainer.support import CPU, TINY_LLAMA, make_manifest, make_session, refused, write_text
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)

END = "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{% endfor %}"
)


def bpe(*special: str) -> Tokenizer:
    """Return a custom tokenizer: special tokens, followed by 256 bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(special) + 1,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["once upon a time"], trainer)
    return tokenizer


def session_with(
    root: Path,
    tokenizer: Tokenizer,
    settings: TokenizerSettings | None = None,
    **model: Any,
) -> TrainingSession:
    vocabulary = tokenizer.get_vocab_size()
    config = TINY_LLAMA | {"vocab_size": vocabulary, "tie_word_embeddings": False} | model
    manifest, chunks = make_manifest(root, config)
    store = BlobStore(root)
    data = dataclasses.replace(
        manifest.data,
        tokenizer=store.put(tokenizer.to_str().encode()),
        tokenizer_settings=None if settings is None else store.put(settings.encode()),
    )
    session = TrainingSession(dataclasses.replace(manifest, data=data), store, CPU)
    session.load(chunks)
    return session


def always_generates(session: TrainingSession, token: int | None) -> None:
    """Make this token the model's likeliest one for any input."""
    assert token is not None
    named = dict(session.model.named_parameters())
    with torch.no_grad():
        named["lm_head.weight"].zero_()
        named["lm_head.weight"][token] = 1.0
        # A head of ones and a state of ones: no input has an effect.
        named["model.norm.weight"].fill_(1.0)
        for name, parameter in named.items():
            if "embed" in name:
                parameter.fill_(1.0)
            elif "o_proj" in name or "down_proj" in name:
                parameter.zero_()


@pytest.mark.parametrize("named", ["usual", "settings", "model"])
def test_a_text_ends_at_the_end_token_of_ones_own_tokenizer(tmp_path: Path, named: str) -> None:
    """Llama's own end token is number 2, which is an ordinary character in other tokenizers."""
    spelled = END if named == "usual" else "<fin>"
    tokenizer = bpe("<a>", "<b>", "<c>", spelled)
    end = tokenizer.token_to_id(spelled)
    assert end == 3
    settings = TokenizerSettings(eos_token=spelled) if named == "settings" else None
    said = {"eos_token_id": end} if named == "model" else {}
    session = session_with(tmp_path / "blobs", tokenizer, settings, **said)
    always_generates(session, end)
    before = session.model.config.eos_token_id
    export(session, BlobStore(tmp_path / "blobs"), tmp_path / "out")
    assert session.model.config.eos_token_id == before

    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == end
    opened = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (opened.eos_token, opened.eos_token_id) == (spelled, end)
    assert opened.pad_token_id is not None
    # transformers' own types of its results do not fit its `generate`.
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    batch = opened(["once", "once upon a time"], return_tensors="pt", padding=True)
    assert batch["attention_mask"].sum() < batch["attention_mask"].numel()
    text = model.generate(**opened("once", return_tensors="pt"), max_new_tokens=20)
    assert text[0].tolist()[-1] == end
    assert len(text[0]) == len(opened("once")["input_ids"]) + 1
    # The command's own text generation stops there, too.
    store = BlobStore(tmp_path / "blobs")
    assert list(write_text(session, store, "once", 0, 0.0, 20)) == []


@pytest.mark.parametrize(
    ("model", "own", "ends"),
    [
        ({}, "<im_end>", [1, 0]),
        ({}, END, 0),
        ({"eos_token_id": [2, 1]}, "<im_end>", [2, 1, 0]),
        # A list of another tokenizer's tokens.
        ({"eos_token_id": [2, 3]}, "<im_end>", [1, 0]),
    ],
)
def test_a_text_ends_where_documents_and_the_model_s_own_texts_do(
    tmp_path: Path, model: dict[str, Any], own: str, ends: int | list[int]
) -> None:
    tokenizer = bpe(END, "<im_end>", "<eot>")
    session = session_with(tmp_path, tokenizer, TokenizerSettings(eos_token=own), **model)
    data = dataclasses.replace(session.manifest.data, end_token=0)
    session.manifest = dataclasses.replace(session.manifest, data=data)
    store = BlobStore(tmp_path)
    assert settings_files(session, store).ids["eos_token_id"] == ends
    for end in [ends] if isinstance(ends, int) else ends:
        always_generates(session, end)
        assert list(write_text(session, store, "once", 0, 0.0, 5)) == []


def test_a_tokenizer_without_an_end_token_names_none(tmp_path: Path) -> None:
    session = make_session(tmp_path / "blobs")
    export(session, BlobStore(tmp_path / "blobs"), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text()).get("eos_token_id") is None
    opened = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert opened.eos_token is None
    assert opened.pad_token_id == 0


def test_a_tokenizer_is_read_from_its_file_in_every_family(tmp_path: Path) -> None:
    """AutoTokenizer of transformers 5 makes composed characters of others for this family."""
    tokenizer = bpe("<s>", END)
    session = session_with(tmp_path / "blobs", tokenizer, model_type="qwen2")
    export(session, BlobStore(tmp_path / "blobs"), tmp_path / "out")
    text = "e\u0301 12"
    opened = PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    assert opened(text)["input_ids"] == tokenizer.encode(text).ids
    assert "PreTrainedTokenizerFast" in (tokenizer_warning("qwen2", opened_file(tmp_path)) or "")
    assert tokenizer_warning("llama", opened_file(tmp_path)) is None
    # Qwen2's own.
    made = Qwen2Tokenizer(vocab={"<|endoftext|>": 0, "a": 1}, merges=[])
    assert tokenizer_warning("qwen2", made.backend_tokenizer.to_str().encode()) is None


def opened_file(root: Path) -> bytes:
    return (root / "out" / "tokenizer.json").read_bytes()


def test_what_a_converter_asks_for_is_written(tmp_path: Path) -> None:
    """llama.cpp's takes GPT-2's context length from `n_ctx` alone."""
    session = make_session(tmp_path / "blobs", config=SMALL_MODELS["gpt2"])
    export(session, BlobStore(tmp_path / "blobs"), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["n_ctx"] == 64


def test_all_that_readers_need_is_written(tmp_path: Path) -> None:
    settings = TokenizerSettings(eos_token=END, bos_token="<a>", chat_template=TEMPLATE)
    scaling = {"rope_type": "linear", "factor": 4.0}
    model = {"eos_token_id": [1, 0], "rope_theta": 500_000.0, "rope_scaling": scaling}
    session = session_with(tmp_path / "blobs", bpe("<a>", END), settings, **model)
    export(session, BlobStore(tmp_path / "blobs"), tmp_path / "out")
    opened = AutoTokenizer.from_pretrained(tmp_path / "out")
    said = [{"role": "user", "content": "hello"}]
    assert opened.apply_chat_template(said, tokenize=False) == "user: hello"
    assert (opened.bos_token, opened.eos_token) == ("<a>", END)
    # Not the swarm's sequence length, which is 32.
    assert opened.model_max_length == 64
    # It can be the start of a swarm.
    assert read_settings(tmp_path / "out") == dataclasses.replace(settings, pad_token=END)

    written = json.loads((tmp_path / "out" / "config.json").read_text())
    # Models that end messages and texts differently keep both.
    assert written["eos_token_id"] == [1, 0]
    # The names that transformers 4 and converters read, beside those that transformers 5 writes.
    assert written["rope_parameters"] == {"rope_theta": 500_000.0} | scaling
    assert (written["rope_theta"], written["rope_scaling"]) == (500_000.0, scaling)
    assert (written["dtype"], written["torch_dtype"]) == ("float32", "float32")
    assert written["architectures"] == ["LlamaForCausalLM"]
    # Defaults, which differ between releases.
    assert (written["head_dim"], written["rms_norm_eps"]) == (16, 1e-6)


def test_settings_that_cannot_be_meant(tmp_path: Path) -> None:
    session, store = session_with(tmp_path, bpe(END)), BlobStore(tmp_path)
    for blob, words in (
        (b"{", "JSON"),
        (b'{"eos_token": 5}', "eos_token"),
        (b'{"eos_token": "<nowhere>"}', "no token '<nowhere>'"),
        (b'{"auto_map": "x"}', "auto_map"),
        (b"[" * 100_000, "JSON"),
    ):
        data = dataclasses.replace(session.manifest.data, tokenizer_settings=store.put(blob))
        session.manifest = dataclasses.replace(session.manifest, data=data)
        with refused("bad_data", words):
            export(session, store, tmp_path / "out")


def test_settings_are_one_spelling() -> None:
    assert b"mask" not in TokenizerSettings(eos_token="</s>").encode()
    settings = TokenizerSettings(mask_token="[MASK]", chat_template="{{ x }}\n")
    assert decode_settings(settings.encode()) == settings


def test_it_writes_what_the_model_generates_character_by_character(tmp_path: Path) -> None:
    tokenizer = bpe(END)
    session, store = session_with(tmp_path, tokenizer), BlobStore(tmp_path)
    always_generates(session, tokenizer.token_to_id("a"))
    assert list(write_text(session, store, "once", 0, 0.0, 5)) == ["a"] * 5
    # No further than the model's longest context.
    long = "x" * 60
    used = len(tokenizer.encode(long).ids)
    assert len(list(write_text(session, store, long, 0, 0.0, 1000))) == 64 - used
    with pytest.raises(TrainerFailed, match="64 tokens"):
        write_text(session, store, "x" * 64, 0, 0.0, 5)
    # An empty prompt begins like a text in training: after the end of another one.
    assert list(write_text(session, store, "", 0, 0.0, 2)) == ["a", "a"]


@pytest.mark.parametrize(
    ("drawn", "pieces"),
    [
        # An ordinary token after the first byte of a character.
        ([0x0A, 0xE2, "▁the", "▁a"], ["\n", "", "\ufffd the", " a"]),
        ([0xC3, 0xA9, 0xF0, "a", "</s>"], ["", "é", "", "\ufffda"]),
        # The end within a character.
        ([0x0A, 0xE2, "</s>"], ["\n", ""]),
        ([0x0A, 0xE2, 0x82], ["\n", "", ""]),
    ],
)
def test_bytes_that_make_no_character_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[int | str], pieces: list[str]
) -> None:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {
        piece: number for number, piece in enumerate(["</s>", *byte_tokens, "▁the", "▁a", "a"])
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.decoder = decoders.Sequence(
        [
            *(decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()),
            decoders.Strip(" ", 1, 0),
        ]
    )
    session = session_with(tmp_path, tokenizer, TokenizerSettings(eos_token="</s>"))
    named = (f"<0x{each:02X}>" if isinstance(each, int) else each for each in drawn)
    tokens = map(tokenizer.token_to_id, named)
    # No model draws the wanted tokens by itself.
    monkeypatch.setattr(text_generation, "_draw", lambda *_: next(tokens))
    assert list(write_text(session, BlobStore(tmp_path), "the", 0, 0.0, len(drawn))) == pieces


def test_a_seed_writes_the_same_again_and_a_cache_changes_nothing(tmp_path: Path) -> None:
    session, store = make_session(tmp_path), BlobStore(tmp_path)
    first, again, other = (
        "".join(write_text(session, store, "swarm ", seed, 1.0, 30)) for seed in (1, 1, 2)
    )
    assert first == again != other
    # The likeliest token at each step is the one computed from the whole text; tokens are bytes.
    written = "".join(write_text(session, store, "round ", 0, 0.0, 8))
    tokenizer = Tokenizer.from_str((store.get(session.manifest.data.tokenizer) or b"").decode())
    ids = tokenizer.encode("round ").ids
    for _ in range(8):
        with torch.no_grad():
            logits = session.model(input_ids=torch.tensor([ids])).logits
        ids.append(int(logits[0, -1].argmax()))
    assert tokenizer.decode(ids[6:]) == written


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingSession, BlobStore, Path]:
    """Return a session of a swarm with a chat template, and what it exports."""
    root = tmp_path_factory.mktemp("exported")
    settings = TokenizerSettings(eos_token=END, chat_template=TEMPLATE)
    session = session_with(root / "blobs", bpe(END, "<a>"), settings)
    store = BlobStore(root / "blobs")
    export(session, store, root / "out")
    return session, store, root / "out"


@pytest.fixture
def again(
    exported: tuple[TrainingSession, BlobStore, Path], tmp_path: Path
) -> tuple[TrainingSession, BlobStore, Path]:
    """Return the same with a copy of the files, which a test may change."""
    session, store, out = exported
    shutil.copytree(out, tmp_path / "out")
    return session, store, tmp_path / "out"


def test_an_export_differs_in_nothing(exported) -> None:
    found = compare_export(*exported)
    assert (found["differing"], found["unchecked"]) == ([], [])


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *(("config", "eos_token_id", 7), ("config", "dtype", "bfloat16")),
        *(("config", "architectures", ["MistralForCausalLM"]), ("config", "rms_norm_eps", 0.5)),
        *(("generation_config", "temperature", 9.0), ("generation_config", "eos_token_id", 7)),
        *(("tokenizer_config", "add_bos_token", True), ("tokenizer_config", "chat_template", "x")),
    ],
)
def test_a_changed_setting_is_named(again, name: str, key: str, value: object) -> None:
    session, store, out = again
    path = out / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert compare_export(session, store, out)["differing"] == [f"{key} in {name}.json"]


@pytest.mark.parametrize(
    "name",
    ["tokenizer.json", "chat_template.jinja", "tokenizer_config.json", "generation_config.json"],
)
def test_a_changed_or_missing_file_is_named(again, name: str) -> None:
    session, store, out = again
    if "config" not in name:
        (out / name).write_bytes((out / name).read_bytes() + b" ")
        assert compare_export(session, store, out)["differing"] == [name]
    (out / name).unlink()
    with refused("bad_model", f"{name} cannot be read"):
        compare_export(session, store, out)


def test_files_that_are_not_compared_are_listed(again) -> None:
    session, store, out = again
    (out / ".gitattributes").write_text("")
    (out / "added_tokens.json").write_text("{}")
    (out / "more").mkdir()
    (out / "more" / "modeling.py").write_text("")
    (out / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
    listed = ["added_tokens.json", "model.safetensors.index.json", "more/modeling.py"]
    assert compare_export(session, store, out)["unchecked"] == listed


def test_an_adapter_does_not_hide_changed_weights(again) -> None:
    """With peft transformers loads an adapter's file over the weights, whatever it holds."""
    session, store, out = again
    genuine = load_file(out / "model.safetensors")
    changed = {name: 3 * tensor for name, tensor in genuine.items()}
    save_file(changed, out / "model.safetensors", metadata={"format": "pt"})
    assert compare_export(session, store, out)["fingerprint"] != fingerprint(session.parameters)
    adapter = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "target_modules": "none"}
    (out / "adapter_config.json").write_text(json.dumps(adapter))
    hidden = {f"base_model.model.{name}": tensor for name, tensor in genuine.items()}
    save_file(hidden, out / "adapter_model.safetensors", metadata={"format": "pt"})
    with refused("bad_model", "adapter_config.json is beside the weights"):
        compare_export(session, store, out)


def test_without_the_swarm_s_tokenizer_nothing_of_it_is_certified(again) -> None:
    session, store, out = again
    poor = BlobStore(out.parent / "poor")
    poor.put(store.get(session.manifest.data.tokenizer) or b"")
    found = compare_export(session, poor, out)
    assert found["differing"] == []
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json")
    assert found["unchecked"] == [*names, "generation_config.json"]


def test_a_start_token_of_the_founder_s_choice_is_the_swarm_s(tmp_path: Path) -> None:
    session = session_with(tmp_path / "blobs", bpe(END, "<s>"), TokenizerSettings(bos_token="<s>"))
    manifest = session.manifest
    session.manifest = dataclasses.replace(
        manifest, data=dataclasses.replace(manifest.data, start_token=1)
    )
    store = BlobStore(tmp_path / "blobs")
    export(session, store, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() != store.get(manifest.data.tokenizer)
    found = compare_export(session, store, tmp_path / "out")
    assert (found["differing"], found["unchecked"]) == ([], [])
