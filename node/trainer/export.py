"""The model as a Hugging Face checkpoint that `from_pretrained` loads, tokenizer included."""

from __future__ import annotations

import json
from pathlib import Path

from ..storage.blob_store import BlobStore
from .errors import TrainerFailed
from .session import TrainingSession


def export(session: TrainingSession, store: BlobStore, directory: Path) -> None:
    """Write weights (safetensors), config.json and the tokenizer's files into `directory`.

    Raises `TrainerFailed` with the kind `bad_data` if the tokenizer's blob is missing, and what a
    full disk raises.
    """
    data = session.manifest.data
    tokenizer = store.get(data.tokenizer)
    if tokenizer is None:
        raise TrainerFailed("bad_data", "the tokenizer's blob is missing")
    directory.mkdir(parents=True, exist_ok=True)
    session.model.save_pretrained(directory, safe_serialization=True)
    (directory / "tokenizer.json").write_bytes(tokenizer)
    # Without this AutoTokenizer would guess a class from the model's type.
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": data.sequence_length,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
