"""Models and tokenizers that can be written as GGUF, one for each way in which llama.cpp computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from distro_node.node.trainer.models.gguf_export import TextTokens, write_gguf
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.training.gguf_formats import GgufType
from distro_node.node.training.tokenizer_settings import TokenizerSettings
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from trainer.small_models import SMALL_MODELS
from transformers import PreTrainedModel

_WINDOWS = {
    "num_hidden_layers": 6,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
}
_LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
_YARN: dict[str, Any] = SMALL_MODELS["qwen2"]["rope_scaling"]

EXAMPLES: dict[str, dict[str, Any]] = {
    **{
        name: SMALL_MODELS[name]
        for name in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2")
    },
    "gemma3": SMALL_MODELS["gemma3_text"] | _WINDOWS,
    "gemma3, linear": SMALL_MODELS["gemma3_text"] | _WINDOWS | _LINEAR,
    "llama, tied": SMALL_MODELS["llama"] | {"tie_word_embeddings": True, "mlp_bias": True},
    "llama, yarn": SMALL_MODELS["llama"] | {"rope_scaling": _YARN},
    "qwen2, yarn's factor": SMALL_MODELS["qwen2"]
    | {"rope_scaling": _YARN | {"attention_factor": 1.5}},
    "qwen3, linear": SMALL_MODELS["qwen3"] | _LINEAR,
    # llama.cpp makes its context at least 256 long, and so takes the factors for long texts here.
    "phi3": SMALL_MODELS["phi3"],
    "phi3, short": SMALL_MODELS["phi3"]
    | {"original_max_position_embeddings": 512, "max_position_embeddings": 1024},
    "phi3, partly turned": {
        key: value for key, value in SMALL_MODELS["phi3"].items() if key != "rope_scaling"
    }
    | {"partial_rotary_factor": 0.5},
}
TOKENS = [(7 * i * i + 3 * i + 65) % 256 for i in range(40)]


def seen_tokens(name: str) -> list[int]:
    """Return the tokens for a comparison of logits, within the window of a family that has none in
    llama.cpp."""
    return TOKENS[:8] if name == "mistral" else TOKENS


def example_model(name: str, **changes: Any) -> PreTrainedModel:
    """Return a model of random weights, norms among them. A changed key of None is left out."""
    torch.manual_seed(1)
    config = {key: value for key, value in (EXAMPLES[name] | changes).items() if value is not None}
    model = new_model(model_config(config), torch.device("cpu")).eval()
    assert isinstance(model, PreTrainedModel)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("norm.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.15)
    return model


def write_example(
    model: PreTrainedModel, path: Path, kind: GgufType, tokenizer: Tokenizer | None = None
) -> None:
    """Write a model as GGUF; by default with the tokenizer of bytes."""
    tokenizer = tokenizer or byte_tokenizer()
    ids = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    roles = TextTokens(ids, TokenizerSettings(), adds_start=False)
    write_gguf(
        *(model, tokenizer.to_str().encode(), roles, path, kind), name="A", description="An example"
    )


TEXT = (
    """The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it? HELLO Hello hello!
    def main(argument: int) -> None:
        return argument + 100  # two  spaces, \ttabs

Größe naïve café — „Zitat“ … 東京 привет мир 🙂👍🏽 ﬁ x² ½ end.
"""
    + "words of a text about gradients, momentum, swarms, updates and rounds are agreed upon " * 3
)

SAMPLES = [
    *TEXT.splitlines(),
    *(
        "a",
        " a",
        "  a",
        "a ",
        "a\n\nb",
        "\n",
        "\t\tx",
        "don't DON'T we'll WE'LL",
        "1 12 123 1234 12345",
    ),
    *("ünïcödé", "日本語テキスト", "🙂", "x=y+1;", "foo_bar-baz", "...", "?!?!", "A  B   C"),
]


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose 256 tokens are the bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def byte_level(*steps: Any, use_regex: bool = False, ignore_merges: bool = False) -> Tokenizer:
    """Return byte-level BPE, trained on `TEXT`, with special tokens and one that is not special."""
    made = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps, last]) if steps else last
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    made.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return made


def isolated(pattern: str) -> Any:
    """Return the step that splits a text by an expression."""
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def sentencepiece(first: bool | None) -> Tokenizer:
    """Return BPE by the scores of pieces, as transformers converts SentencePiece's; with a space before
    a text (`first`), without, or (None) with spaces treated by the splitter, as newer files have it."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    learned.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=320, show_progress=False, special_tokens=[])
    )
    order = sorted(learned.get_vocab().items(), key=lambda each: each[1])
    special = ["<unk>", "<s>", "</s>"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *(piece for piece, _ in order)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece, _ in order
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    made = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if first is None:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    else:
        steps = [normalizers.Prepend("▁")] if first else []
        made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    made.add_special_tokens(special)
    return made


def unigram() -> Tokenizer:
    """Return a unigram model, trained on `TEXT`."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    return made


_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n]*|"
)
_GPT4 += r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+SUFFIX|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*SUFFIX|"
    r"\p{N}NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": byte_tokenizer,
    "gpt-2": lambda: byte_level(use_regex=True),
    "smollm": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "qwen2": lambda: byte_level(isolated(_GPT4.replace("NUMBERS", ""))),
    "llama-bpe": lambda: byte_level(
        isolated(_GPT4.replace("NUMBERS", "{1,3}")), ignore_merges=True
    ),
    "smaug-bpe": lambda: byte_level(isolated(_GPT4.replace("NUMBERS", "{1,3}"))),
    "tekken": lambda: byte_level(
        isolated(_CASES.replace("SUFFIX", "").replace("NUMBERS", "")), ignore_merges=True
    ),
    "gpt-4o": lambda: byte_level(
        isolated(_CASES.replace("SUFFIX", _SUFFIX).replace("NUMBERS", "{1,3}"))
    ),
    "sentencepiece": lambda: sentencepiece(True),
    "sentencepiece, no space": lambda: sentencepiece(False),
    "sentencepiece, metaspace": lambda: sentencepiece(None),
    "unigram": unigram,
}
