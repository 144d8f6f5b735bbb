"""A GGUF file holds the model: read back by the package gguf and, where it can, by transformers."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.errors import ExitCode
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models import gguf_export
from distro_node.node.trainer.models.adapters import merged_model
from distro_node.node.trainer.models.export import export_gguf
from distro_node.node.trainer.models.gguf_vocabulary import vocabulary
from distro_node.node.trainer.models.initial_parameters import Lora
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.training.error_messages import explain_trainer
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.gguf_formats import GgufType
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from trainer.gguf_examples import (
    EXAMPLES,
    SAMPLES,
    TEXT,
    TOKENIZERS,
    TOKENS,
    byte_level,
    byte_tokenizer,
    example_model,
    isolated,
    sentencepiece,
    write_example,
)
from trainer.small_models import SMALL_MODELS
from trainer.support import make_session, refused
from transformers import AutoModelForCausalLM, PreTrainedModel

if os.environ.get("CI") != "true":
    pytest.importorskip("gguf")
import gguf

# transformers' names by llama.cpp's of the same layer.
_LAYER = {
    **{f"attn_{each}": f"self_attn.{each}_proj" for each in ("q", "k", "v", "qkv")},
    **{f"attn_{each}_norm": f"self_attn.{each}_norm" for each in ("q", "k")},
    **{f"ffn_{each}": f"mlp.{each}_proj" for each in ("gate", "up", "down")},
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_YARN = SMALL_MODELS["qwen2"]["rope_scaling"]
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def read_back(path: Path, model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Return the tensors of a file by transformers' names, put back in its layout: the reverse of the
    conversion, written without it."""
    config: Any = model.config
    gemma = config.model_type.startswith("gemma")
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        stem, suffix = tensor.name.rsplit(".", 1)
        if stem.startswith("rope_"):
            continue
        if stem in _TOP:
            name = _TOP[stem]
        else:
            _, layer, part = stem.split(".")
            spelled = _LAYER.get(part)
            if part == "ffn_norm":
                several = config.model_type in ("gemma2", "gemma3_text")
                spelled = "pre_feedforward_layernorm" if several else "post_attention_layernorm"
            if part == "ffn_up" and config.model_type == "phi3":
                spelled = "mlp.gate_up_proj"
            name = f"model.layers.{layer}.{spelled}"
        if gemma and name.endswith("norm"):
            values = values - 1
        if config.model_type in ("llama", "mistral") and stem.endswith(("attn_q", "attn_k")):
            heads = config.num_attention_heads if "attn_q" in stem else config.num_key_value_heads
            values = values.copy()
            for head in np.split(values, heads):
                # Numbers 2i and 2i + 1 turn together there, i and i + n/2 here.
                head[:] = np.concatenate([head[0::2], head[1::2]])
        found[f"{name}.{suffix}"] = values
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_parameter_comes_back(tmp_path: Path, name: str) -> None:
    model = example_model(name)
    write_example(model, tmp_path / "m.gguf", GgufType.F32)
    # 1 + weight rounds a weight.
    assert_holds(tmp_path / "m.gguf", model, 1e-6 if name.startswith("gemma") else 0)


def assert_holds(path: Path, model: PreTrainedModel, off: float) -> None:
    """Compare a file with a model; numbers may differ by this share of a tensor's largest one."""
    found = read_back(path, model)
    for key, parameter in model.named_parameters():
        meant = parameter.detach().numpy()
        difference = np.abs(found.pop(key) - meant).max()
        assert difference <= off * max(1, np.abs(meant).max()), key
    assert not found


@pytest.mark.parametrize("kind", GgufType)
def test_matrices_have_the_type_and_vectors_are_whole(tmp_path: Path, kind: GgufType) -> None:
    model = example_model("qwen2")
    write_example(model, tmp_path / "m.gguf", kind)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert types["blk.0.attn_q.weight"] == kind.name
    assert types["blk.0.attn_q.bias"] == types["output_norm.weight"] == "F32"
    # Its rows of 48 are not whole blocks of 32.
    assert types["blk.0.ffn_down.weight"] == ("F16" if kind == GgufType.Q8_0 else kind.name)
    bounds = {"f32": 0, "f16": 2**-11, "bf16": 2**-8, "q8_0": 1 / 250}
    assert_holds(tmp_path / "m.gguf", model, bounds[kind])


# transformers' reader leaves biases, scaled positions and the attention's scale at its defaults.
_READ_BY_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": False, "rope_scaling": None},
    "mistral": {"sliding_window": None},
    "qwen2": {"rope_scaling": None},
    "qwen3": {"head_dim": 128},
    "phi3": {"rope_scaling": None},
    "gemma2": {"head_dim": 256, "query_pre_attn_scalar": 256},
    "gemma3": {"head_dim": 256, "query_pre_attn_scalar": 256, "rope_local_base_freq": 10_000.0},
}


@pytest.mark.parametrize("name", _READ_BY_TRANSFORMERS)
def test_transformers_computes_the_same_from_the_file(tmp_path: Path, name: str) -> None:
    model: Any = example_model(name, **_READ_BY_TRANSFORMERS[name])
    write_example(model, tmp_path / "m.gguf", GgufType.F32)
    # transformers' own types of its results do not fit.
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype="float32")
    tokens = torch.tensor([TOKENS if "gemma" not in name else TOKENS[:8]])
    with torch.no_grad():
        difference = (read(tokens).logits - model(tokens).logits).abs().max()
    assert float(difference) < 1e-5


_ROPE, _HEADS = "rope.scaling", "attention.head_count"
_STATED: dict[str, dict[str, Any]] = {
    "llama": {"context_length": 64, "rope.freq_base": 500_000.0, _HEADS: 4, f"{_HEADS}_kv": 2}
    | {f"{_ROPE}.type": None},
    "mistral": {"context_length": 8},
    "qwen2": {f"{_ROPE}.type": "yarn", f"{_ROPE}.factor": 4.0, f"{_ROPE}.attn_factor": None}
    | {f"{_ROPE}.original_context_length": 16},
    "gemma3": {"rope.freq_base": 500_000.0, "rope.freq_base_swa": 1000.0}
    | {"attention.sliding_window": 8},
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "phi3, short": {"context_length": 512},
    "phi3, partly turned": {"rope.dimension_count": 4},
}


@pytest.mark.parametrize("name", _STATED)
def test_rotary_settings_and_sizes_are_stated(tmp_path: Path, name: str) -> None:
    write_example(example_model(name), tmp_path / "m.gguf", GgufType.F32)
    read = gguf.GGUFReader(tmp_path / "m.gguf").fields
    found = {key.split(".", 1)[1]: field.contents() for key, field in read.items()}
    assert {key: found.get(key) for key in _STATED[name]} == _STATED[name]


def test_large_tensors_are_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = example_model("llama")
    write_example(model, tmp_path / "whole.gguf", GgufType.Q8_0)
    monkeypatch.setattr(gguf_export, "_PIECE", 100)
    write_example(model, tmp_path / "pieces.gguf", GgufType.Q8_0)
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "pieces.gguf").read_bytes()


def test_a_weight_beyond_float16_is_not_written_as_infinity(tmp_path: Path) -> None:
    model = example_model("llama")
    with torch.no_grad():
        model.get_parameter("lm_head.weight")[3, 4] = 1e5
    with pytest.raises(TrainerFailed, match="--quantise bf16"):
        write_example(model, tmp_path / "m.gguf", GgufType.F16)
    assert not (tmp_path / "m.gguf").exists()
    write_example(model, tmp_path / "m.gguf", GgufType.BF16)


def test_a_swarms_name_does_not_choose_the_tokenizer(tmp_path: Path) -> None:
    """llama.cpp takes any model with Phi-3 in its name for one with Phi-3's special tokens."""
    tokens = gguf_export.TextTokens(
        {"eos_token_id": [1, 2, 3, 4], "bos_token_id": 5, "pad_token_id": None},
        gguf_export.TokenizerSettings(chat_template="{{ messages }}"),
        adds_start=True,
    )
    definition = byte_tokenizer().to_str().encode()
    gguf_export.write_gguf(
        *(example_model("llama"), definition, tokens, tmp_path / "m.gguf", GgufType.F32),
        name="Our PHI-3 and phi3",
        description="",
    )
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["general.name"].contents() == "Our PHI 3 and phi 3"
    ends = [fields[f"tokenizer.ggml.{key}_token_id"].contents() for key in ("eos", "eot", "eom")]
    assert ends == [1, 2, 3]
    assert fields["tokenizer.ggml.bos_token_id"].contents() == 5
    assert fields["tokenizer.ggml.add_bos_token"].contents() is True
    assert fields["tokenizer.chat_template"].contents() == "{{ messages }}"


def test_adapters_are_merged(tmp_path: Path) -> None:
    session = make_session(tmp_path / "blobs", lora=Lora(rank=4, alpha=8.0))
    with torch.no_grad():
        for parameter in session.parameters:
            parameter.add_(0.01)
    store = BlobStore(tmp_path / "blobs")
    export_gguf(session, store, tmp_path / "out", GgufType.F32, "An example")
    assert isinstance(session.model, PreTrainedModel)
    whole = merged_model(session.manifest, session.model, session.parameters)
    assert_holds(tmp_path / "out" / "model-f32.gguf", whole, 0)


@pytest.mark.parametrize("name", ["olmo2", "mixtral"])
def test_another_family_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    session = make_session(tmp_path / "blobs", config=SMALL_MODELS[name])
    words = f"'{name}'.* supported model types are gemma, .*, qwen3$"
    with refused("not_convertible", words):
        export_gguf(session, BlobStore(tmp_path / "blobs"), tmp_path / "out", GgufType.F32, "")
    assert explain_trainer(TrainerFailed("not_convertible", "")).code == ExitCode.NO_GGUF


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("gemma2", {"layer_types": ["full_attention"] * 2}, "layer_types"),
        ("gemma2", {"query_pre_attn_scalar": 8}, "query_pre_attn_scalar"),
        ("gemma2", {"attn_logit_softcapping": None}, "attn_logit_softcapping"),
        ("gemma", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("llama", {"hidden_act": "gelu"}, "activation"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("qwen3", {"rope_scaling": SMALL_MODELS["llama"]["rope_scaling"]}, "llama3"),
        ("qwen3", {"attention_bias": True}, "bias"),
        ("qwen2", {"rope_scaling": _YARN | {"beta_fast": 16.0}}, "beta_fast"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(
    tmp_path: Path, name: str, change: dict[str, Any], word: str
) -> None:
    model = new_model(model_config(EXAMPLES[name] | change), torch.device("cpu"))
    assert isinstance(model, PreTrainedModel)
    with refused("not_convertible", word):
        write_example(model, tmp_path / "m.gguf", GgufType.F32)
    assert not (tmp_path / "m.gguf").exists()


def score_merged(text: str, scores: dict[str, float]) -> list[str]:
    """Cut a text as SentencePiece does: merge the neighbours with the best score, leftmost first."""
    parts = list(text)
    while True:
        found = [
            (-scores[pair], i)
            for i, pair in enumerate(map("".join, pairwise(parts)))
            if pair in scores
        ]
        if not found:
            return parts
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@pytest.mark.parametrize("first", [True, False, None])
def test_scores_cut_texts_as_merges_do(first: bool | None) -> None:
    tokenizer = sentencepiece(first)
    found = vocabulary(tokenizer.to_str().encode(), tokenizer.get_vocab_size())
    assert (found.model, found.space_first) == ("llama", first is not False)
    assert found.kinds[:3] == [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2]
    assert found.tokens[3 + 0x41] == "<0x41>"
    assert found.kinds[3 + 0x41] == gguf.TokenType.BYTE
    scores = {
        token: score
        for token, score, kind in zip(found.tokens, found.scores, found.kinds, strict=True)
        if kind == gguf.TokenType.NORMAL
    }
    for text in [*SAMPLES, TEXT]:
        if not text or text.startswith(" ") or not {*text.replace(" ", "▁")} <= {*scores}:
            continue
        spaced = (" " if found.space_first else "") + text
        cut = score_merged(spaced.replace(" ", "▁"), scores)
        assert cut == tokenizer.encode(text, add_special_tokens=False).tokens, text


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_has_its_variant(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    size = tokenizer.get_vocab_size()
    found = vocabulary(tokenizer.to_str().encode(), size + 2)
    expected = {"bytes": "gpt-2"}.get(name, "default" if name[0] in "su" else name)
    assert found.split == (name if name in ("smollm", "smaug-bpe") else expected)
    assert found.tokens[-2:] == [f"[PAD{size}]", f"[PAD{size + 1}]"]
    assert found.never_written() is not None
    if found.model == "gpt2" and name != "bytes":
        kinds = dict(zip(found.tokens, found.kinds, strict=True))
        assert kinds["<|user|>"] == gguf.TokenType.CONTROL
        assert kinds["<tool>"] == gguf.TokenType.USER_DEFINED
    assert bool(found.scores) is (found.model != "gpt2")


def _trained_with_fallback() -> Tokenizer:
    """Return BPE with byte fallback whose merges list one pair a piece."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence(steps)
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    made.train_from_iterator([TEXT], trainer)
    return made


def _lowercased() -> Tokenizer:
    made = byte_level(use_regex=True)
    made.normalizer = normalizers.Lowercase()
    return made


def _words() -> Tokenizer:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def _with_added(**flags: bool) -> Tokenizer:
    made = sentencepiece(True)
    made.add_special_tokens([AddedToken("<|user|>", normalized=False, **flags)])
    return made


def _spaced_first(make: Callable[[], Tokenizer]) -> Tokenizer:
    """Return a tokenizer that puts a space before a text, but not after a special token within it."""
    made = make()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return made


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (_words, "'WordPiece'"),
        (_lowercased, "Lowercase"),
        (_trained_with_fallback, "order of its pieces"),
        (lambda: byte_level(isolated(r"\p{L}+|.")), "expressions"),
        (lambda: byte_level(pre_tokenizers.WhitespaceSplit()), "WhitespaceSplit"),
        (lambda: _with_added(lstrip=True), r"'<\|user\|>' has lstrip"),
        (lambda: _with_added(rstrip=True), r"'<\|user\|>' has rstrip"),
        (lambda: _with_added(single_word=True), r"'<\|user\|>' has single_word"),
        (lambda: _spaced_first(lambda: sentencepiece(None)), "prepend_scheme 'first'"),
        (lambda: _spaced_first(TOKENIZERS["unigram"]), "prepend_scheme 'first'"),
    ],
)
def test_other_tokenizers_are_refused_in_one_line(make: Any, word: str) -> None:
    tokenizer = make()
    with refused("not_convertible", f"(?s){word}.*supported are byte-level BPE"):
        vocabulary(tokenizer.to_str().encode(), tokenizer.get_vocab_size())


# llama.cpp's name of an architecture, where it is not just the capitalised one.
_CALLED = {"mistral": "LLAMA", "gemma3_text": "GEMMA3", "phi": "PHI2", "gpt_neox": "GPTNEOX"}
_NOT_THERE = {"bert", "roberta", "olmo3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}


@pytest.mark.parametrize("name", sorted({*SMALL_MODELS} - _NOT_THERE))
def test_a_converter_has_a_name_for_each_tensor_of_an_export(name: str) -> None:
    """By the maps of the package gguf."""
    architecture = getattr(gguf.MODEL_ARCH, _CALLED.get(name, name.upper()))
    names = gguf.get_tensor_name_map(architecture, 2)
    model = new_model(model_config(SMALL_MODELS[name]), torch.device("meta"))
    for tensor, _ in model.named_parameters():
        assert names.get_name(tensor, try_suffixes=(".weight", ".bias")) is not None, tensor
