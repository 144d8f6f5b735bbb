"""The demo's plan: its swarm, its training text, and the rounds after which the demo causes events.

With the same Python installation and the same numbers of nodes and rounds, the swarm is the same except
for the founder's key.
"""

from __future__ import annotations

import ast
import os
import sysconfig
import warnings
from dataclasses import dataclass
from pathlib import Path

from ..errors import ExitCode, UserError

# With at least 9 rounds, a third, a half and two thirds of them are different rounds, and there are
# rounds between and after them.
MIN_ROUNDS = 9
MIN_NODES = 2

# Size of the text. All rounds together read each part of it about twice, and a node fetches and checks
# it in a moment.
TEXT_BYTES = 1_000_000
# If fewer bytes are found, this Python's library is packed into an archive or comes without docstrings.
_MIN_TEXT_BYTES = 300_000
# Folders that are left out: those in lib/python3.x that are not part of the library, and the tests,
# which are half of the library.
_NOT_TEXT = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "idle_test"}

# Number of tokens: enough that most words are one or two of them, so that the model writes words after a
# few rounds, and few enough that the embeddings are a third of the model.
_VOCABULARY = 2048
_END_TOKEN = "<|end|>"

# Number of sequences of 128 tokens that all rounds of the demo read together. A demo with fewer rounds
# has longer ones, so that it learns as much, and a newcomer's start (PyTorch takes ten seconds to load)
# takes about the same fraction of the demo.
_TOTAL_SEQUENCES = 60 * 64


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """The demo's parts and the rounds of its events."""

    nodes: int
    """Number of nodes that start at the beginning; one more joins later."""
    rounds: int
    victim: int
    """The number of the node that is killed; the founder has number 1."""

    def __post_init__(self) -> None:
        if self.nodes < MIN_NODES or self.rounds < MIN_ROUNDS:
            raise ValueError(f"at least {MIN_NODES} nodes and {MIN_ROUNDS} rounds")
        if not 1 <= self.victim <= self.nodes:
            raise UserError(
                ExitCode.USAGE,
                f"there is no node {self.victim} to kill",
                f"give a number from 1 to {self.nodes} with --victim",
            )

    @property
    def kill_round(self) -> int:
        """The round after which a node is killed."""
        return self.rounds // 3

    @property
    def join_round(self) -> int:
        """The round after which the newcomer starts."""
        return self.rounds // 2

    @property
    def bootstrap_round(self) -> int:
        """The round after which the bootstrap peer is killed."""
        return 2 * self.rounds // 3

    @property
    def newcomer(self) -> int:
        """The number of the node that joins later."""
        return self.nodes + 1


def manifest_text(plan: DemoPlan) -> str:
    """Return the text of the founder's file."""
    return _MANIFEST.format(
        nodes=plan.nodes,
        rounds=plan.rounds,
        sequences=max(plan.nodes, _TOTAL_SEQUENCES // plan.rounds),
        warmup=max(1, plan.rounds // 12),
        decay=plan.rounds // 2,
        snapshots=max(2, plan.rounds // 6),
    )


def collect_text(to: Path) -> int:
    """Write what this Python's standard library says about itself to `to`, at most `TEXT_BYTES`: the
    paragraphs of its docstrings, a file for each module; return the number of bytes.

    A small model learns the words of English prose sooner than those of source code.

    Raises `UserError` with `ExitCode.DATA_MISSING` if this Python comes without source files.
    """
    library = Path(sysconfig.get_path("stdlib"))
    written = 0
    for path in _sources(library):
        prose = _prose(path.read_bytes()).encode()
        if not prose:
            continue
        if written + len(prose) > TEXT_BYTES:
            break
        target = to / path.relative_to(library).with_suffix(".txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(prose)
        written += len(prose)
    if written < _MIN_TEXT_BYTES:
        raise UserError(
            ExitCode.DATA_MISSING,
            "the demo trains on the docstrings of Python's standard library, whose sources are not in "
            f"{library}",
            "use a Python that was installed with its library's source files",
        )
    return written


def write_tokenizer(text: Path, to: Path) -> None:
    """Train a small BPE tokenizer on the files below `text` and write it to `to`, as a tokenizer.json.

    Compared to single bytes as tokens, the model reads three times as much text in the same time, and
    the text that it writes at the end consists of words.
    """
    # Imported here, because `--help` does not need it.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    files = sorted(path for path in text.rglob("*") if path.is_file())
    made.train_from_iterator(
        (path.read_text(encoding="utf-8", errors="replace") for path in files), trainer
    )
    made.save(str(to))


def _sources(library: Path) -> list[Path]:
    """Return the library's source files: modules first, then packages, each sorted by name."""
    found = []
    for folder, folders, names in os.walk(library):
        folders[:] = sorted(set(folders) - _NOT_TEXT)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    return sorted(found, key=lambda path: (len(path.relative_to(library).parts), path))


def _prose(source: bytes) -> str:
    """Return the paragraphs of a module's docstrings that end with a full stop, each in one line."""
    try:
        with warnings.catch_warnings():
            # About escape sequences in old modules.
            warnings.simplefilter("ignore")
            module = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) for node in ast.walk(module) if isinstance(node, documented)]
    paragraphs = [part for text in texts if text for part in text.split("\n\n")]
    return "".join(" ".join(each.split()) + "\n" for each in paragraphs if each.endswith("."))


_MANIFEST = """\
# The swarm of `distro-node demo`: a language model of 0.9 million parameters.
# `distro-node create --example` prints a commented file like this.

name = "demo"
seed = 1
fault_model = "byzantine"

[model]
model_type = "llama"
hidden_size = 128
intermediate_size = 344
num_hidden_layers = 3
num_attention_heads = 4
max_position_embeddings = 128
tie_word_embeddings = true

[data]
tokenizer = "tokenizer.json"
document_end = "<|end|>"
sequence_length = 128
include = ["*.txt"]

[schedule]
peak = 8e-3
warmup_rounds = {warmup}
total_rounds = {rounds}
decay_rounds = {decay}

[rounds]
sequences = {sequences}
start_members = {nodes}
snapshot_interval = {snapshots}
collect_min_seconds = 1.0
slot_min_seconds = 1.0
lease_min_seconds = 5.0

[admission]
policy = "open"
"""
