"""Accuracy of classifiers that members train at few bytes, beside AdamW of plain torch on all samples.

Images: the 1,797 digits of scikit-learn, 8 × 8 pixels, for a vision transformer and a ResNet. Text: the
names of countries, languages, scripts and currencies that Babel has in eight languages, for BERT on
bytes; the class is the language. Every tenth sample is held out. Members are sessions of the program's
own trainer; the peer is a loop over the library's model, from the same initial weights, with the same
samples in every round. BERT's learning rates were chosen with another seed (`--tune`); those of the
images are first guesses.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from distro_node.crypto.identity import PeerId
from distro_node.node.create.classification import ClassifierHead, complete_image_classifier
from distro_node.node.create.defaults import default_optimizer
from distro_node.node.create.labelled_texts import LabelledTokenizer
from distro_node.node.create.manifest_file import DataTable, FoundersFile, OptimizerTable
from distro_node.node.create.model_config import complete_model
from distro_node.node.create.tokens import ByteTokenizer
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.trainer.models.model import auto_class, model_config
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.task_names import (
    IMAGE_CLASSIFICATION,
    NO_TOKENIZER,
    TEXT_CLASSIFICATION,
    ImageClassSettings,
    TextClassSettings,
)
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from distro_node.protocol.wire.manifest import DataSpec, Manifest, ScheduleSpec, ShardSpec
from distro_node.protocol.wire.structure import to_plain

CPU = torch.device("cpu")
LANGUAGES = ("de", "es", "fr", "it", "nl", "pl", "pt", "sv")
TEXT_LENGTH = 24
_HELD_OUT_EVERY = 10
_TUNING_SEED = 100
_RATES = {"members": (4e-3, 8e-3), "adamw": (1e-3, 3e-3)}
_BRIGHTEST = 16

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Study:
    """A model and its data."""

    task: str
    settings: TextClassSettings | ImageClassSettings
    model: dict[str, Any]
    rows: np.ndarray
    """The samples as the program stores them: uint8 (count, length), the class first."""
    inputs: Callable[[np.ndarray], dict[str, torch.Tensor]]
    """The model's inputs for rows, written without the program."""
    rates: dict[str, float]
    """By method: the peak learning rate."""


def main() -> None:
    """Run the studies and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", nargs="+", default=[*STUDIES], choices=[*STUDIES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=12, help="samples of a member's a round")
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--tune", action="store_true", help="try other rates with another seed")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs, summary = [], []
    for name in arguments.studies:
        study = STUDIES[name]()
        for seed in [_TUNING_SEED] if arguments.tune else arguments.seeds:
            for method in _RATES:
                rates = _RATES[method] if arguments.tune else (study.rates[method],)
                for rate in rates:
                    started = time.process_time()
                    found = METHODS[method](study, seed, rate, arguments)
                    found |= {"seconds": round(time.process_time() - started, 1)}
                    run = {"study": name, "method": method, "seed": seed, "rate": rate} | found
                    runs.append(run)
                    print(json.dumps(run), flush=True)
        if not arguments.tune:
            summary.append(summarise(name, runs))
            print(json.dumps(summary[-1]), flush=True)
        if arguments.json is not None:
            options = {key: value for key, value in vars(arguments).items() if key != "json"}
            said = {"options": options, "torch": torch.__version__, "summary": summary}
            arguments.json.write_text(json.dumps(said | {"runs": runs}, indent=1) + "\n")


def summarise(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over the seeds, with standard errors, and their distance."""
    of = {
        method: [run for run in runs if run["study"] == name and run["method"] == method]
        for method in _RATES
    }
    line: dict[str, Any] = {"study": name}
    for method, found in of.items():
        for key in ("accuracy", "loss"):
            mean, error = _mean([run[key] for run in found])
            line |= {f"{method}_{key}": mean, f"{method}_{key}_error": error}
    pairs = zip(of["members"], of["adamw"], strict=True)
    mean, error = _mean([one["accuracy"] - other["accuracy"] for one, other in pairs])
    fewer = of["adamw"][0]["bytes_a_round"] / of["members"][0]["bytes_a_round"]
    held = of["members"][0]["held_out"]
    share = line["adamw_accuracy"]
    return line | {
        "difference": mean,
        "difference_error": error,
        # Of one run, because of the number of held-out samples.
        "sampling_error": math.sqrt(share * (1 - share) / held),
        "times_fewer_bytes": round(fewer, 1),
    }


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return round(statistics.fmean(values), 5), round(error, 5)


def train_members(study: Study, seed: int, rate: float, arguments: Any) -> dict[str, Any]:
    """Train with the program: each member computes its samples and sends an update."""
    training, heldout = _split(study.rows)
    with TemporaryDirectory() as folder:
        store = BlobStore(Path(folder))
        manifest, chunks = _manifest(study, seed, rate, arguments, store, training, heldout)
        members = []
        for _ in range(arguments.members):
            member = TrainingSession(manifest, store, CPU)
            member.load(chunks)
            members.append(member)
        sent = 0
        for round_, samples in _rounds(seed, len(training), arguments):
            shares = np.split(samples, arguments.members)
            bodies = [
                member.train(round_, share.tolist()).body
                for member, share in zip(members, shares, strict=True)
            ]
            sent += len(bodies[0])
            step = learning_rate(manifest.schedule, round_)
            prints = {member.apply(round_, bodies, step, True) for member in members}
            if len(prints) > 1:
                sys.exit(f"the members disagree after round {round_}")
        found = members[0].computation.accuracy(len(heldout))
        assert found is not None
        return {
            "accuracy": found[0],
            "loss": members[0].computation.evaluate(len(heldout)),
            "held_out": len(heldout),
            "bytes_a_round": sent / arguments.rounds,
            "parameters": manifest.elements,
        }


def train_adamw(study: Study, seed: int, rate: float, arguments: Any) -> dict[str, Any]:
    """Train the library's model with AdamW on the mean gradient of all samples of a round."""
    training, heldout = _split(study.rows)
    config = model_config(study.model)
    torch.manual_seed(seed)
    model = auto_class(config).from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = _schedule(rate, arguments)
    model.train()
    for round_, samples in _rounds(seed, len(training), arguments):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(schedule, round_)
        rows = training[samples]
        labels = torch.from_numpy(rows[:, 0].astype(np.int64))
        loss = torch.nn.functional.cross_entropy(model(**study.inputs(rows)).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    labels = torch.from_numpy(heldout[:, 0].astype(np.int64))
    with torch.no_grad():
        logits = model(**study.inputs(heldout)).logits
    return {
        "accuracy": float((logits.argmax(1) == labels).float().mean()),
        "loss": float(torch.nn.functional.cross_entropy(logits, labels)),
        "held_out": len(heldout),
        "bytes_a_round": 4.0 * sum(each.numel() for each in model.parameters()),
        "parameters": sum(each.numel() for each in model.parameters()),
    }


METHODS = {"members": train_members, "adamw": train_adamw}


def _rounds(seed: int, count: int, arguments: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each round with its samples: each sample once in an epoch."""
    size, order = arguments.members * arguments.sequences, np.zeros(0, np.int64)
    generator = np.random.default_rng(seed)
    for round_ in range(1, arguments.rounds + 1):
        while len(order) < size:
            order = np.concatenate([order, generator.permutation(count)])
        yield round_, order[:size]
        order = order[size:]


def _split(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    held = np.arange(len(rows)) % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
    return rows[~held], rows[held]


def _schedule(rate: float, arguments: Any) -> ScheduleSpec:
    rounds = arguments.rounds
    return ScheduleSpec(
        peak=rate, warmup_rounds=rounds // 15, total_rounds=rounds, shape="linear", final=0.0
    )


def _manifest(
    study: Study,
    seed: int,
    rate: float,
    arguments: Any,
    store: BlobStore,
    training: np.ndarray,
    heldout: np.ndarray,
) -> tuple[Manifest, Sequence[Any]]:
    made = initialise(study.model, seed, None, store, CPU)
    images = study.task == IMAGE_CLASSIFICATION
    # The optimizer as `create` chooses it, but for `top_k`.
    file = FoundersFile(
        name="x",
        model={},
        data=DataTable(),
        optimizer=OptimizerTable(top_k=arguments.top_k),
        given_keys=frozenset({"optimizer.top_k"}),
    )
    optimizer = default_optimizer(file, Path("x"), made.table)
    manifest = Manifest(
        name="classes",
        task=study.task,
        task_settings=to_plain(study.settings, named=True),
        seed=seed,
        model=study.model,
        parameters=made.table,
        initial=store.put(made.blobs.encode()),
        data=DataSpec(
            sequence_length=study.rows.shape[1],
            token_bytes=1,
            vocabulary=256,
            shards=(_shard(store, training),),
            heldout=_shard(store, heldout),
            tokenizer=store.put(NO_TOKENIZER if images else ByteTokenizer().definition),
        ),
        optimizer=replace(optimizer, update_weight="equal"),
        schedule=_schedule(rate, arguments),
        founder=PeerId(bytes(32)),
    )
    return manifest, made.blobs.chunks


def _shard(store: BlobStore, rows: np.ndarray) -> ShardSpec:
    data = rows.tobytes() + b"\0"
    chunks = tuple(
        store.put(data[start : start + CHUNK_BYTES]) for start in range(0, len(data), CHUNK_BYTES)
    )
    blobs = BlobList(kind="shard", size=len(data), chunks=chunks)
    return ShardSpec(blob=store.put(blobs.encode()), tokens=len(data))


@cache
def _digits(enlarged: int) -> np.ndarray:
    """Return rows of a class and an image, each pixel `enlarged` × `enlarged` times."""
    try:
        # Used only by benchmarks: a type checker need not have it.
        from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
    except ImportError:
        sys.exit("the digits come with scikit-learn: pip install -e '.[benchmark]'")

    found: Any = load_digits()
    pixels = np.round(found.images * (255 / _BRIGHTEST)).astype(np.uint8)
    pixels = pixels.repeat(enlarged, 1).repeat(enlarged, 2).reshape(len(pixels), -1)
    return np.concatenate([found.target.astype(np.uint8)[:, None], pixels], axis=1)


def _image_study(model: dict[str, Any], enlarged: int, rates: dict[str, float]) -> Study:
    size = 8 * enlarged
    settings = ImageClassSettings(size=size, channels=1, classes=tuple("0123456789"))

    def inputs(rows: np.ndarray) -> dict[str, torch.Tensor]:
        pixels = torch.from_numpy(rows[:, 1:]).float().view(-1, 1, size, size)
        return {"pixel_values": pixels / 127.5 - 1}

    config = complete_image_classifier(model, settings)
    return Study(IMAGE_CLASSIFICATION, settings, config, _digits(enlarged), inputs, rates)


def vision_transformer() -> Study:
    """A vision transformer on digits."""
    model = {
        "model_type": "vit",
        "patch_size": 2,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return _image_study(model, 1, {"members": 8e-3, "adamw": 3e-3})


def resnet() -> Study:
    """A ResNet on digits of 32 × 32 pixels. The peer has its own batch normalisation, as is usual."""
    model = {
        "model_type": "resnet",
        "embedding_size": 64,
        "hidden_sizes": [64, 128],
        "depths": [1, 1],
        "layer_type": "basic",
    }
    return _image_study(model, 4, {"members": 8e-3, "adamw": 3e-3})


def languages() -> Study:
    """BERT on names, whose language it names."""
    try:
        from babel import Locale
    except ImportError:
        sys.exit("the names come with Babel: pip install -e '.[benchmark]'")
    settings = TextClassSettings(classes=LANGUAGES, pad_token=0)
    tokenizer = LabelledTokenizer(ByteTokenizer(), (), (), TEXT_LENGTH, settings.pad_token)
    texts = []
    for number, language in enumerate(LANGUAGES):
        locale = Locale(language)
        tables = (locale.territories, locale.languages, locale.scripts, locale.currencies)
        names = {str(name) for table in tables for name in table.values()}
        texts += [f"{number}\n{name}".encode() for name in sorted(names)]
    rows = np.stack([tokenizer.fitted(row) for row in tokenizer.encode(texts)]).astype(np.uint8)
    # The same order in every run; held out are samples of every class.
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    model = {
        "model_type": "bert",
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    head = ClassifierHead(len(LANGUAGES), settings.pad_token)
    config = complete_model(head.complete(model), vocabulary=256, sequence_length=TEXT_LENGTH)

    def inputs(found: np.ndarray) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(found[:, 1:].astype(np.int64))
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    rates = {"members": 8e-3, "adamw": 3e-3}
    return Study(TEXT_CLASSIFICATION, settings, config, rows, inputs, rates)


STUDIES: dict[str, Callable[[], Study]] = {
    "vit": vision_transformer,
    "resnet": resnet,
    "bert": languages,
}


if __name__ == "__main__":
    main()
