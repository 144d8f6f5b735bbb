"""A whole job: text in files, four nodes that train a Llama on it, a model that opens elsewhere.

    python benchmarks/job.py --work DIR [--json FILE] [--plot FILE.png] [--minutes 60] [--rounds N]
        [--nodes 4] [--hidden 256] [--layers 8] [--vocabulary 8192] [--sequence 256]
        [--sequences 32] [--rate RATE] [--adamw RATE…] [--muon RATE…]
        [--libraries NAME…] [--prose FILE…]

Requires pip install -e '.[train,create]'. The script writes a Parquet file of documentation strings
of libraries, or of the text that --prose names (such as wikitext-2), and a .jsonl.zst of those of
the standard library with its help topics; a byte-level BPE is trained on both.

`distro-node create` makes a swarm from them, and four nodes on loopback, with a thread each, train
it for as many rounds as fit into the minutes by the measurements of `create --dry-run`. Node 1's
newest model generates text at five points of the run (`distro-node generate`), `distro-node export`
writes the last one, and transformers opens it and measures its held-out loss, which must equal the
program's own to four digits; otherwise the exit code is 1.

For comparison one process with AdamW and one with Muon, one thread each, side by side after the
swarm, train the same model from the same initial parameters on the samples that the swarm's records
count, round by round, at the given rates, of which the best is taken. The swarm's own rate is
`create`'s default unless --rate gives another.

Everything is stored in --work: the same command resumes where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import trio
from defaults import OPTIMIZERS
from distro_node.node.create.rates import default_rate
from distro_node.node.demo.processes import interrupted_by_signals
from distro_node.node.results.saved_state import StoredSwarm, made_again, read_swarm
from distro_node.node.settings import NEWEST
from distro_node.node.storage.data_dir import DataDir
from distro_node.protocol.wire.manifest import Manifest, ScheduleSpec, SwarmId, decode_manifest
from distro_node.protocol.wire.swarm_id import swarm_from_text
from job_dense import DenseRun, train_dense
from job_swarm import LocalSwarm, SwarmFailed, pace, traffic
from job_text import (
    LIBRARIES,
    library_documents,
    make_tokenizer,
    prose_documents,
    read_texts,
    standard_documents,
    write_lines,
    write_parquet,
)

# A node evaluates this many held-out samples during the run.
NODE_SAMPLES = 128
MEASUREMENTS = 20
# A round's time besides computing: gossip, fetching, agreement; some of it overlaps with computing.
ROUND_SECONDS = 1.0
LEAST_ROUNDS = 10
# An all-reduce in bfloat16, as the DisTrO report counts it.
DENSE_BYTES = 2

_MANIFEST = """\
name = "job"
seed = 1
fault_model = "byzantine"

[model]
model_type = "llama"
vocab_size = {vocabulary}
hidden_size = {hidden}
intermediate_size = {inner}
num_hidden_layers = {layers}
num_attention_heads = {heads}
num_key_value_heads = {heads}
max_position_embeddings = {sequence}
tie_word_embeddings = false

[data]
tokenizer = "tokenizer.json"
sequence_length = {sequence}
heldout_fraction = 0.02
deduplicate = true

[[data.source]]
name = "{prose}"
paths = ["text/prose.parquet"]

[[data.source]]
name = "standard library"
paths = ["text/standard.jsonl.zst"]

[schedule]
peak = {peak}
warmup_rounds = {warmup}
total_rounds = {rounds}
decay_rounds = {decay}

[rounds]
sequences = {sequences}
start_members = {nodes}
snapshot_interval = {snapshots}
lease_min_seconds = 60.0
"""


def manifest_text(options: argparse.Namespace, rounds: int, peak: float) -> str:
    """Return the founder's file."""
    return _MANIFEST.format(
        vocabulary=options.vocabulary,
        hidden=options.hidden,
        # 8/3, as in Llama, in whole blocks of the codec.
        inner=64 * round(options.hidden * 8 / 3 / 64),
        layers=options.layers,
        heads=options.hidden // 32,
        sequence=options.sequence,
        prose="prose" if options.prose else "libraries",
        peak=peak,
        warmup=max(1, rounds // 20),
        rounds=rounds,
        decay=rounds // 2,
        sequences=options.sequences,
        nodes=options.nodes,
        snapshots=max(2, rounds // 10),
    )


def fitting_rounds(
    forecast: dict[str, Any], minutes: float, nodes: int, cores: int, sequences: int
) -> int:
    """Return how many rounds fit into the minutes, by a dry run's measurements on one thread."""
    work = sequences * forecast["sequence_seconds"] + nodes * forecast["update_seconds"]
    return max(LEAST_ROUNDS, int(60 * minutes / (work / min(nodes, cores) + ROUND_SECONDS)))


class Job:
    """One job, and the parts of it that are done."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._work: Path = options.work.absolute()
        self._work.mkdir(parents=True, exist_ok=True)
        self._keep_to_settings()
        self._swarm = LocalSwarm(self._work, options.nodes)

    def _keep_to_settings(self) -> None:
        named = ("nodes", "hidden", "layers", "vocabulary", "sequence", "sequences", "rate")
        asked = {key: getattr(self._options, key) for key in named}
        asked |= {"minutes": self._options.minutes, "rounds": self._options.rounds}
        asked |= {
            key: [str(v) for v in getattr(self._options, key)] for key in ("libraries", "prose")
        }
        file = self._work / "settings.json"
        if not file.exists():
            if any(self._work.iterdir()):
                sys.exit(f"{self._work} holds something else: name an empty or a new directory")
            file.write_text(json.dumps(asked) + "\n")
        elif json.loads(file.read_text()) != asked:
            sys.exit(f"{self._work} was made with other options ({file.read_text().strip()})")
        self.settings = asked

    def run(self) -> dict[str, Any]:
        """Do what is missing and return the result."""
        self._write_text()
        with interrupted_by_signals(), self._swarm.processes() as processes:
            if self._swarm.made is None:
                forecast = self._swarm.forecast(processes)
                rounds = self._options.rounds or fitting_rounds(
                    forecast,
                    self._options.minutes,
                    self._options.nodes,
                    os.cpu_count() or 1,
                    self._options.sequences,
                )
                self._describe(forecast["parameters"], rounds)
                self._swarm.create(processes)
        manifest = self._manifest()
        rounds = manifest.schedule.total_rounds
        every = max(1, rounds // MEASUREMENTS)
        print(f"{manifest.elements:,} parameters, {rounds} rounds", flush=True)
        with interrupted_by_signals(), self._swarm.processes() as processes:
            self._swarm.run(processes, rounds, every)
            model = self._work / "model"
            if not model.exists():
                self._swarm.export(processes, model)
        known = self._known()
        ended = self._measured(known)
        dense = self._dense(known, every)
        return self._result(known, ended, dense)

    def _write_text(self) -> None:
        folder, options = self._work / "text", self._options
        folder.mkdir(exist_ok=True)
        tokenizer = self._work / "tokenizer.json"
        if not tokenizer.exists():
            prose, standard = folder / "prose.parquet", folder / "standard.jsonl.zst"
            documents = (
                prose_documents(options.prose)
                if options.prose
                else library_documents(options.libraries)
            )
            rows, lines = (
                write_parquet(prose, documents),
                write_lines(standard, standard_documents()),
            )
            print(f"{rows:,} documents in {prose.name}, {lines:,} in {standard.name}", flush=True)
            make_tokenizer(read_texts(prose, standard), options.vocabulary, tokenizer)
        # The dry run needs a file, with any rate and length.
        if not self._swarm.file.exists():
            self._swarm.file.write_text(manifest_text(options, LEAST_ROUNDS, 1e-3))

    def _describe(self, parameters: int, rounds: int) -> None:
        peak = self._options.rate or default_rate(parameters, OPTIMIZERS["default"].step)
        self._swarm.file.write_text(manifest_text(self._options, rounds, peak))

    def _swarm_id(self) -> SwarmId:
        made = self._swarm.made
        assert made is not None
        return swarm_from_text(made["swarm"])

    def _manifest(self) -> Manifest:
        swarm = self._swarm_id()
        return decode_manifest(self._swarm.data(1).swarm(swarm).manifest.read_bytes(), swarm)

    def _known(self) -> StoredSwarm:
        return trio.run(read_swarm, self._swarm.data(1), self._swarm_id())

    def _measured(self, known: StoredSwarm) -> dict[str, float]:
        """Return the loss of the swarm's last state over all held-out samples: the program's, and
        that of its export with transformers alone."""
        file = self._work / "ended.json"
        if not file.exists():
            samples = known.manifest.data.samples_in(known.manifest.data.heldout)
            losses = {
                "program": trio.run(_program_loss, known, samples),
                "transformers": exported_loss(known, self._work / "model"),
            }
            file.write_text(json.dumps(losses) + "\n")
        return json.loads(file.read_text())

    def _dense(self, known: StoredSwarm, every: int) -> dict[str, list[dict[str, Any]]]:
        """Return the results of AdamW and Muon, by rate, each in a process of its own."""
        schedule = known.manifest.schedule
        runs = [
            self._run(way, rate, schedule, every)
            for way in ("adamw", "muon")
            for rate in getattr(self._options, way)
        ]
        at_once = min(len(runs), os.cpu_count() or 1)
        with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
            jobs = [(self._swarm.data(1), self._swarm_id(), run) for run in runs]
            done = pool.map(_train_dense, jobs)
            found: dict[str, list[dict[str, Any]]] = {}
            for one in done:
                found.setdefault(one["way"], []).append(one)
        return found

    def _run(self, way: str, rate: float, schedule: ScheduleSpec, every: int) -> DenseRun:
        return DenseRun(
            way=way,
            schedule=replace(schedule, peak=rate),
            rounds=schedule.total_rounds,
            every=every,
            measured=NODE_SAMPLES,
            file=self._work / f"{way}-{rate:g}.json",
        )

    def _result(
        self, known: StoredSwarm, ended: dict[str, float], dense: dict[str, list[dict[str, Any]]]
    ) -> dict[str, Any]:
        manifest, sessions = known.manifest, self._swarm.sessions()
        rounds, seconds = pace(sessions)
        per_round = manifest.rounds.sequences * manifest.data.sequence_length
        history = self._swarm.histories()[0]
        tokens = sum(
            entry.tokens
            for round_ in range(1, manifest.schedule.total_rounds + 1)
            for entry in known.ledger[round_].record.updates
        )
        swarm = {
            "rate": manifest.schedule.peak,
            "tokens": tokens,
            "tokens_per_second": rounds * per_round / seconds if seconds else None,
            "loss": ended["program"],
            "curve": [[r, loss] for r, loss in sorted(history.values("heldout").items())],
        }
        ways = {"swarm": swarm}
        for way, tried in dense.items():
            best = min(tried, key=lambda run: run["loss"])
            ways[way] = {
                **{key: best[key] for key in ("rate", "tokens", "loss", "curve")},
                "tokens_per_second": best["tokens"] / best["seconds"],
                "tried": {f"{run['rate']:g}": run["loss"] for run in tried},
            }
        for way in ways.values():
            way["perplexity"] = math.exp(min(way["loss"], 50.0))
        sizes = [
            facts
            for each in self._swarm.histories()
            for facts in each.values("update_bytes").values()
        ]
        received = [*history.values("received_bytes").values()]
        return {
            "settings": self.settings | {"schedule": asdict(manifest.schedule)},
            "parameters": manifest.elements,
            "vocabulary": manifest.data.vocabulary,
            "training_tokens": sum(shard.tokens for shard in manifest.data.shards),
            "heldout_tokens": manifest.data.heldout.tokens,
            "rounds": manifest.schedule.total_rounds,
            "sessions": len(sessions),
            "seconds": seconds,
            "ways": ways,
            "members": traffic(sessions, self._options.nodes),
            "update_bytes": statistics.fmean(sizes),
            "received_bytes_per_round": statistics.fmean(received),
            "dense_bytes_per_round": DENSE_BYTES * manifest.elements * (self._options.nodes - 1),
            "samples": self._swarm.samples(),
            "export": {
                "program_perplexity": math.exp(ended["program"]),
                "transformers_perplexity": math.exp(ended["transformers"]),
                "same_to_four_digits": same_digits(
                    math.exp(ended["program"]), math.exp(ended["transformers"])
                ),
            },
        }


def _train_dense(job: tuple[DataDir, SwarmId, DenseRun]) -> dict[str, Any]:
    data, swarm, run = job
    if run.file.exists():
        return json.loads(run.file.read_text())
    return train_dense(trio.run(read_swarm, data, swarm), run)


async def _program_loss(known: StoredSwarm, samples: int) -> float:
    async with made_again(known, NEWEST, threads=1) as state:
        last = known.manifest.last_round
        if state.round != last:
            sys.exit(f"the state at hand is that of round {state.round}, not of {last}")
        return await state.trainer.evaluate(samples)


def exported_loss(known: StoredSwarm, directory: Path) -> float:
    """Return an exported model's nats per token over all held-out tokens, with transformers alone:
    samples of `sequence_length` tokens, each of which has the next token as its target."""
    import numpy as np
    import torch
    from distro_node.node.trainer.tasks.data import Corpus, read_tokens
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    data = known.manifest.data
    corpus = Corpus(data, known.store)
    total, count = 0.0, 0
    with torch.no_grad():
        for numbers in np.array_split(
            range(corpus.heldout_samples), -(-corpus.heldout_samples // 8)
        ):
            ids = torch.from_numpy(read_tokens(data, corpus.heldout(numbers.tolist())).ids)
            logits = model(input_ids=ids[:, :-1]).logits.flatten(0, 1)
            targets = ids[:, 1:].reshape(-1)
            total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            count += targets.numel()
    return total / count


def same_digits(one: float, other: float, digits: int = 4) -> bool:
    """Whether two numbers differ by at most half a unit of the last of `digits` digits."""
    return abs(one - other) <= 0.5 * 10 ** (math.floor(math.log10(abs(one))) + 1 - digits)


def print_result(result: dict[str, Any]) -> None:
    """Print tables, and the model's text."""
    print(
        f"\n{result['parameters']:,} parameters, {result['rounds']} rounds, "
        f"{result['training_tokens']:,} tokens in an epoch, {result['heldout_tokens']:,} held out"
    )
    print(f"{'way':8} {'rate':>8} {'tokens':>12} {'tokens/s':>10} {'loss':>8} {'perplexity':>11}")
    for name, way in result["ways"].items():
        print(
            f"{name:8} {way['rate']:8g} {way['tokens']:12,} {way['tokens_per_second'] or 0:10,.0f} "
            f"{way['loss']:8.4f} {way['perplexity']:11.3f}"
        )
    for number, member in enumerate(result["members"], 1):
        print(f"node-{number}: {member['sent']:,} bytes sent, {member['received']:,} received")
    times = result["dense_bytes_per_round"] / result["received_bytes_per_round"]
    print(
        f"a round: {result['received_bytes_per_round']:,.0f} bytes of updates received, "
        f"{times:,.0f} times less than an all-reduce in bfloat16"
    )
    for sample in result["samples"]:
        print(f"\nafter round {sample['round']}:")
        for text in sample["texts"].values():
            print(f"  {json.dumps(text)}")
    made = result["export"]
    print(
        f"\nexport: perplexity {made['program_perplexity']:.5g} here, "
        f"{made['transformers_perplexity']:.5g} in transformers"
    )


def plot(path: Path, result: dict[str, Any]) -> None:
    """Plot held-out loss against tokens, and against the bytes that a member receives."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_tokens, by_bytes) = pyplot.subplots(1, 2, figsize=(13, 5), sharey=True)
    tokens = result["settings"]["sequences"] * result["settings"]["sequence"]
    labels = {
        "swarm": f"{result['settings']['nodes']} nodes",
        "adamw": "AdamW, one process",
        "muon": "Muon, one process",
    }
    for name, way in result["ways"].items():
        rounds, losses = zip(*way["curve"], strict=True)
        key = "received_bytes_per_round" if name == "swarm" else "dense_bytes_per_round"
        label = f"{labels[name]}: perplexity {way['perplexity']:.1f}"
        by_tokens.plot([r * tokens for r in rounds], losses, label=label)
        late = [(r * result[key], loss) for r, loss in way["curve"] if r]
        by_bytes.plot(*zip(*late, strict=True))
    by_tokens.set(xlabel="tokens", ylabel="held-out loss (nats a token)")
    by_bytes.set(
        xlabel="bytes of updates received by a member; of dense gradients, if these were averaged",
        xscale="log",
    )
    by_tokens.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(description="A whole job: from files of text to a model.")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--minutes", type=float, default=60.0, help="for the swarm")
    parser.add_argument("--rounds", type=int, help="so many, however long they take")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--sequence", type=int, default=256, help="tokens in a sequence")
    parser.add_argument("--sequences", type=int, default=32, help="in a round, of all nodes")
    parser.add_argument("--rate", type=float, help="the swarm's peak learning rate")
    parser.add_argument("--adamw", type=float, nargs="+", default=[1e-3], metavar="RATE")
    parser.add_argument("--muon", type=float, nargs="+", default=[2e-3], metavar="RATE")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), metavar="NAME")
    parser.add_argument("--prose", type=Path, nargs="+", default=[], metavar="FILE")
    return parser.parse_args(arguments)


def main() -> None:
    """Do the job, report, and return by the exit code whether the export is what was trained."""
    options = parse()
    try:
        result = Job(options).run()
    except SwarmFailed as failure:
        sys.exit(f"error: {failure}")
    print_result(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        plot(options.plot, result)
    if not result["export"]["same_to_four_digits"]:
        sys.exit("error: the export has another perplexity in transformers")


if __name__ == "__main__":
    main()
