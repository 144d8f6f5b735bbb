"""The figures in the documents that come from results files: where each stands, and what it is made of.

    python benchmarks/figures.py [--check]

A figure is a piece of a document with a number in it, and the number as the newest results file of a
benchmark has it (`results/DATE-NAME.json`). Without an option all numbers are written anew (`make docs`
does it); with `--check` those that differ are named, and the exit status is 1. A test checks the same,
so a new results file cannot come in beside old figures. A sentence that is reworded is said anew here.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

from distro_node.protocol.codec.sheet_tree import way_bytes
from document_figures import CHECKOUT, Figure, WholeTable, results, rewritten, table
from left import everything
from llamas import llama


def codec() -> Iterator[Figure]:
    """Bits and bytes of an update."""
    measured = results("codec")
    large, models = measured["large_1.2b"], measured["models"]
    seven = large["7"]
    parameters = sum(spec.elements for spec in llama("1.2B"))
    megabytes, bits = seven["bytes"] / 1e6, seven["bits_per_coefficient"]
    demo = measured["formats_1.2b"]["DeMo (int64 index + float32)"]["bytes"]
    # What its last run sent of 4,096 parameters: 64 values with 14 bits each.
    templar_bits = 64 * 14
    yield Figure(
        "README.md",
        "about {:.0f} MB for a model of {:.1f} billion parameters instead of the {:.1f} GB",
        (megabytes, parameters / 1e9, 4 * parameters / 1e9),
    )
    yield Figure(
        "README.md",
        "with 7 of 4,096 coefficients {:.1f} bits for each, where DeMo's own code spends {:.0f}",
        (bits, 8 * demo / large[str(measured["k"])]["coefficients"]),
    )
    yield Figure(
        "README.md",
        "{:d} bits for 4,096 parameters, which is about {:.0f} times an update of ours",
        (templar_bits, templar_bits / (7 * bits)),
    )
    yield Figure(
        "docs/operations.md",
        "`top_k = 7` an update has {:.1f} MB, and 32 members make {:.0f} MB of download a round",
        (megabytes, 31 * megabytes),
    )
    yield Figure(
        "docs/operations.md",
        "Thirty-two members that pull {:.1f} MB from each other need {:.0f} MB of *upload* each",
        (megabytes, 31 * megabytes),
    )
    yield Figure(
        "docs/operations.md",
        "for the swarm above {:.1f} GB a round",
        (32 * 31 * megabytes / 1e3,),
    )
    yield Figure(
        "docs/scaling.md",
        "every member downloads *n* times {:.1f} MB a round, {:.1f} GB at 1,000 members",
        (megabytes, megabytes),
    )
    yield Figure("docs/optimizer.md", "its position and its sign, about {:.0f} bits", (bits,))
    yield Figure(
        "node/create/manifests/llama-1.2b.toml",
        "which {:.2f} million coefficients travel, {:.1f} MB at {:.1f} bits each",
        (seven["coefficients"] / 1e6, megabytes, bits),
    )
    yield Figure(
        "docs/codec.md",
        "{:.2f} bits a coefficient in a model of 1.2 billion parameters at k = 7 and {:.2f} at k = 8",
        (seven["uniform_bound"], large["8"]["uniform_bound"]),
    )
    larger, small = models["larger"], models["demo"]
    yield Figure(
        "docs/codec.md",
        "model with {:.1f} million parameters, k = {:d}: **{:.2f} bits a coefficient**, sign included, "
        "where the uniform bound of that layout is {:.2f}",
        (
            larger["parameters"] / 1e6,
            measured["k"],
            larger["bits_per_coefficient"]["ours"],
            larger["uniform_bound"],
        ),
    )
    yield Figure(
        "docs/codec.md",
        "that fill no whole group: {:.2f} of {:.2f}.",
        (small["bits_per_coefficient"]["ours"], small["uniform_bound"]),
    )
    yield Figure(
        "docs/codec.md",
        "A 1.2B update of {:.2f} million coefficients (k = 7) has {:.2f} MB, {:.2f} bits a coefficient. "
        "It takes {:.2f} s to encode and {:.2f} s to decode on one core, so all 31 updates of a round "
        "with 32 members take {:.1f} s, and {:.0f} MB of memory for that while",
        (
            seven["coefficients"] / 1e6,
            megabytes,
            bits,
            seven["encode_seconds"],
            seven["decode_seconds"],
            seven["decode_seconds_32_members"],
            seven["decode_peak_bytes"] / 1e6,
        ),
    )
    yield Figure(
        "docs/codec.md",
        "| none (the uniform bound) | {:.2f} | {:.2f} |",
        (larger["uniform_bound"], small["uniform_bound"]),
    )
    for preconditioner, before, row in (
        (
            "orthogonal",
            "0.25",
            "| strips, as if each row and column had been seen a quarter of a time before (format 2)",
        ),
        ("orthogonal", "1", "| the same, once before"),
        ("orthogonal", "4", "| the same, 4 times"),
        ("orthogonal", "16", "| the same, 16 times"),
        ("rms", "0.25", "| behind `rms`: strips, a quarter of a time"),
    ):
        yield Figure(
            "docs/codec.md",
            row + " | {:.2f} | {:.2f} |",
            tuple(model["ideal_strips"][preconditioner][before] for model in (larger, small)),
        )


def speaking() -> Iterator[Figure]:
    """What it costs to speak for a section."""
    measured = results("speaking")
    seconds, memory = measured["seconds"], measured["megabytes"]
    spoken, plain = measured["panels"], measured["everybody"]
    yield Figure(
        "docs/codec.md",
        "Of a model with {:.1f} billion parameters and {:.0f} members, each of which tells the sign of "
        "one coefficient in {:.0f}, a member receives {:.1f} MB of sheets and tallies in a step, where "
        "{:.0f} coefficients of everybody are {:.1f} MB",
        (
            measured["parameters"] / 1e9,
            measured["members"],
            measured["one_of"],
            spoken["received_bytes"] / 1e6,
            measured["k"],
            plain["received_bytes"] / 1e6,
        ),
    )
    yield Figure(
        "docs/codec.md",
        "It sends each part of its sheet to three speakers, {:.1f} MB in all",
        (3 * spoken["sheet_bytes"] / 1e6,),
    )
    others = measured["members"] - 1
    yield Figure(
        "docs/codec.md",
        "holds {:.2f} GB between steps, and takes {:.2f} GB more and {:.1f} s while it speaks; to read "
        "all tallies takes everybody {:.1f} s, where {:.0f} updates take {:.1f} s",
        (
            memory["begin a term"] / 1e3,
            memory["say a tally"] / 1e3,
            seconds["say a tally"],
            seconds["read all tallies"],
            others,
            others * seconds["read one update"],
        ),
    )


def simulator() -> Iterator[Figure]:
    """Agreement's own time, messages and bytes, and what a soak found."""
    scale = results("scale")
    yield table(
        "docs/scaling.md",
        "| % of bytes | processor, s |",
        9,
        [
            (
                f"| {row['members']:,} | {{:.1f}} | {{:.1f}} | {{:.2f}} | {{:.2f}} | {{:.2f}} | "
                f"{{:.1f}} | {{:.3f}} | {{:{three_digits(row['processor'])}}} |",
                (
                    1e3 * row["one_way"],
                    1e3 * row["decide"],
                    row["decide_delays"],
                    row["messages"],
                    row["said_bytes"] / 1e3,
                    row["gossip_bytes"] / 1e3,
                    100 * row["share"],
                    row["processor"],
                ),
            )
            for row in scale
        ],
    )
    shares = {row["members"]: 100 * row["share"] for row in scale}
    yield Figure("docs/scaling.md", "{:.2f} % at 32 members, where", (shares[32],))
    delays = {row["members"]: row["decide_delays"] for row in scale}
    yield Figure(
        "docs/scaling.md",
        "{:.1f} to {:.1f} one-way delays up to 256 members and {:.1f} in the one round of 1,000",
        (
            min(delays.values()),
            max(value for members, value in delays.items() if members <= 256),
            delays[1000],
        ),
    )
    yield table(
        "docs/scaling.md",
        "| in one-way delays | in delays to a quorum |",
        6,
        [
            (
                f"| {row['members']:,} | {{:.1f}} | {{:.1f}} | {{:.1f}} | {{:.2f}} | {{:.2f}} |",
                (
                    1e3 * row["one_way"],
                    1e3 * row["to_quorum"],
                    1e3 * row["decide"],
                    row["decide"] / row["one_way"],
                    row["decide"] / row["to_quorum"],
                ),
            )
            for row in results("floor")
            if row["members"] in delays
        ],
    )
    to_quorum = [
        delays[row["members"]] * row["one_way"] / row["to_quorum"]
        for row in results("floor")
        if row["members"] in delays and row["members"] <= 256
    ]
    yield Figure(
        "docs/scaling.md",
        "at {:.1f} to {:.1f} delays to a quorum",
        (min(to_quorum), max(to_quorum)),
    )
    lan, homes = results("pace")
    for words, swarm, spec in (
        ("4 members on a LAN, 0.4 s a step", lan, "{:.2f} | {:.2f} | {:.2f} | {:.2f}"),
        ("no relay), 20 s a step", homes, "{:.1f} | {:.1f} | {:.1f} | {:.1f}"),
    ):
        times = tuple(swarm[name] for name in ("round", "collect", "slot", "lease"))
        yield Figure("docs/scaling.md", f"{words} | {spec} |", times)
    soak = results("simulate")
    words = "{:,d} runs decided {:,d} rounds; violations: {:d}"
    counts = (soak["seeds"], soak["rounds_decided"], soak["violations"])
    yield Figure("docs/protocol.md", words, counts)
    voted = results("simulate-votes")
    words = "in the fast one {:,d} seeds decided {:,d} rounds; violations: {:d}"
    counts = (voted["seeds"], voted["rounds_decided"], voted["violations"])
    yield Figure("docs/protocol.md", words, counts)
    words = "in {:d} of them a cut or many dead left liars a third"
    yield Figure("docs/protocol.md", words, (voted["liars_outnumbered_the_others"],))
    mended = results("simulate-one-look")
    words = "of a sequence, {:,d} seeds decided {:,d} rounds; violations: {:d}"
    counts = (mended["seeds"], mended["rounds_decided"], mended["violations"])
    yield Figure("docs/protocol.md", words, counts)
    whole = results("simulate-whole")
    words = (
        "in the whole one {:,d} runs with {:,d} processes decided {:,d} rounds; violations: {:d}"
    )
    counts = tuple(
        whole[key] for key in ("seeds", "processes_started", "rounds_decided", "violations")
    )
    yield Figure("docs/protocol.md", words, counts)


def audit() -> Iterator[Figure]:
    """What liars do to honest updates."""
    measured = results("audit")

    def left_out(data: str, kind: str, liars: int, which: str = "honest_left_out") -> float:
        (row,) = (
            row
            for row in measured["liars"]
            if (row["data"], row["kind"], row["liars"]) == (data, kind, liars)
        )
        return 100 * row[which]

    rows = [
        ("in training, a crowd", "trained", "crowd", "honest_left_out"),
        ("in training, four are chosen", "trained", "chosen", "honest_left_out"),
        ("toy data, a crowd", "toy 70%", "crowd", "honest_left_out"),
        (
            "toy data, a crowd, if all were asked at once",
            *("toy 70%", "crowd", "honest_left_out_one_pass"),
        ),
        ("toy data, four are chosen", "toy 70%", "chosen", "honest_left_out"),
    ]
    yield table(
        "docs/optimizer.md",
        "| honest updates left out, by liars of ten | 1 | 2 | 3 | 4 |",
        5,
        [
            (
                _line((name, *["{:.1f} %"] * 4)),
                tuple(left_out(data, kind, liars, which) for liars in (1, 2, 3, 4)),
            )
            for name, data, kind, which in rows
        ],
    )
    yield Figure(
        "docs/optimizer.md",
        "Without a liar it is {:.1f} % in training.",
        (left_out("trained", "none", 0),),
    )
    yield Figure(
        "docs/threats.md",
        "three liars of ten have {:.1f} % of honest updates left out in a small model's training",
        (left_out("trained", "chosen", 3),),
    )
    (half,) = (g for g in measured["ground"] if g["members"] == 32 and g["lies"] < 0.6)
    yield Figure(
        "docs/optimizer.md",
        "no sample of 32 members' updates showed fewer than {:.1f} % lies in {:,d} tries, and of 2⁴⁰ "
        "tries none shows fewer than {:.1f} %",
        (100 * half["least_seen"], half["tries"], 100 * half["least_of_a_trillion"]),
    )


def optimizer() -> Iterator[Figure]:
    """Milliseconds of a round's optimizer work."""
    small, middle, large = (results("optimizer")[size] for size in ("10M", "134M", "1.2B"))
    yield Figure(
        "docs/optimizer.md",
        "| milliseconds, one core | {:.1f}M parameters | {:.0f}M | {:.1f}B, shared part |",
        (small["parameters"] / 1e6, middle["parameters"] / 1e6, large["parameters"] / 1e9),
    )
    for row, name in {
        "| precondition the gradient (`orthogonal`)": "precondition",
        "| fold it into the transformed momentum": "accumulate",
        "| take the strongest": "take",
        "| encode": "encode",
        "| decode 32 updates": "decode",
        "| audit 32 updates": "audit",
        "| **apply 32 updates**": "apply",
        "| fingerprint": "fingerprint",
        "| DeMo's way: momentum, extraction": "DeMo extract",
        "| **DeMo's way: mean of 32, transform, sign, step**": "DeMo apply",
        "| AdamW, fused": "AdamW",
    }.items():
        # At 1.2B there is no room for what a member keeps to itself.
        sizes = [size["milliseconds"] for size in (small, middle, large)]
        values = [milliseconds[name] for milliseconds in sizes if name in milliseconds]
        cells = [f"{{:,.{0 if value >= 99.95 else 1}f}}" for value in values]
        yield Figure("docs/optimizer.md", f"{row} | {' | '.join(cells)} |", tuple(values))
    floors = [size["ours"] / size["floor"] for size in (small, middle, large)]
    yield Figure(
        "docs/optimizer.md",
        "takes {:.0f} to {:.0f} times as long as the memory would need",
        (min(floors), max(floors)),
    )
    yield Figure(
        "docs/optimizer.md",
        "| what both do, ours / DeMo's way | {:.2f} | {:.2f} |",
        tuple(size["ours_same"] / size["demo"] for size in (small, middle)),
    )
    yield Figure(
        "docs/optimizer.md",
        "| **the shared step, ours / DeMo's way** | {:.2f} | {:.2f} | {:.2f} |",
        tuple(
            size["milliseconds"]["apply"] / size["milliseconds"]["DeMo apply"]
            for size in (small, middle, large)
        ),
    )


def overlap() -> Iterator[Figure]:
    """What overlap saves on shaped lines."""
    cells = "{:.2f} s | {:.2f} s | {:.2f} s |"
    yield Figure(
        "docs/optimizer.md",
        f"| 4 Mbit/s | in turn | {cells} {{:.1f}} % | | | overlap | {cells} **{{:.1f}} %** | "
        f"| 0.2 Mbit/s, which is too slow to keep up | in turn | {cells} {{:.1f}} % | "
        f"| | overlap | {cells} {{:.1f}} % |",
        tuple(
            100 * run[name] if name == "trainer_waits" else run[name]
            for line in ("4 Mbit/s", "0.2 Mbit/s")
            for run in (results("overlap")[line]["in turn"], results("overlap")[line]["overlap"])
            for name in ("compute_seconds", "line_seconds", "measured_seconds", "trainer_waits")
        ),
    )


def precision() -> Iterator[Figure]:
    """What learning loses where members keep their state in fewer bits."""
    losses: dict[str, dict[int, float]] = {}
    for run in results("precision")["runs"]:
        kept = run["settings"].get("state", {}).get("precision", "float32")
        losses.setdefault(kept, {})[run["settings"]["seed"]] = run["heldout_loss"]
    exact = losses["float32"]
    numbers: list[float] = []
    for kept in ("bfloat16", "int8"):
        shares = [100 * (loss / exact[seed] - 1) for seed, loss in losses[kept].items()]
        error = statistics.stdev(shares) / len(shares) ** 0.5
        numbers += [statistics.fmean(shares), error, len(shares)]
    yield Figure(
        "docs/optimizer.md",
        "the held-out loss is {:+.2f} ± {:.2f} % apart from float32's with bfloat16 ({:d} seeds) and "
        "{:+.2f} ± {:.2f} % with 8 bits ({:d} seeds)",
        tuple(numbers),
    )


def memory() -> Iterator[Figure]:
    """What the 1.2B preset takes on a card."""
    fitting = [row["device_bytes"] / 1e9 for row in results("memory")["preset"] if row["fits"]]
    yield Figure(
        "docs/operations.md",
        "takes {:.1f} GB of a GPU's memory at one sequence at once",
        (min(fitting),),
    )


def learning() -> Iterator[Figure]:
    """What the order of samples and the rounding of the basis cost."""
    order, basis = results("order")["percent_and_error"], results("basis")
    yield Figure(
        "docs/optimizer.md",
        "In the lanes of a small corpus {:+.2f} ± {:.2f} % of the held-out loss; chunk by chunk, with "
        "1,024 samples a chunk, {:+.2f} ± {:.2f} %",
        (*order["lanes"], *order["chunks"]),
    )
    whole, floats = basis["losses"]["integer"], basis["losses"]["float"]
    yield Figure(
        "docs/optimizer.md",
        "a mean held-out loss of {:.3f} nats a byte with the integer basis (scatter {:.3f}) and {:.3f} "
        "with the float one ({:.3f}). Seed by seed the integer basis is {:.2f} % worse, with a standard "
        "error of {:.2f} %: a cost above about {:.1f} % would have shown",
        (
            statistics.fmean(whole),
            statistics.stdev(whole),
            statistics.fmean(floats),
            statistics.stdev(floats),
            basis["difference"]["mean_percent"],
            basis["difference"]["standard_error_percent"],
            basis["difference"]["mean_percent"] + 2 * basis["difference"]["standard_error_percent"],
        ),
    )


ADAMW = "AdamW, dense"
DEMO = "DeMo / Psyche: k 8, β 0.999, not preconditioned"
OURS = "ours: k 8, β 0.95, orthogonal"
OURS_32, OURS_LARGE = "ours with k 32", "ours with k 6"
MUON = "Muon, dense"

# Parameters and members.
LARGE, SMALL = (918_656, 8), (139_584, 8)


def losses(
    name: str,
    setting: tuple[int, int],
    *,
    rate: float | None = None,
    corpus: str = "stdlib",
    file: str = "convergence",
) -> dict[int, float]:
    """The held-out losses of a variant in `convergence.py`, by seed."""
    return {
        run["settings"]["seed"]: run["heldout_loss"]
        for run in results(file)["runs"]
        if run["name"] == name
        and (run["settings"]["parameters"], run["settings"]["workers"]) == setting
        and run["settings"]["corpus"].startswith(corpus)
        and rate in (None, run["settings"]["rate"])
    }


def curve(name: str, setting: tuple[int, int], rounds: int) -> float:
    """The held-out loss of a variant after so many rounds, with seed 0."""
    (run,) = (
        run
        for run in results("convergence")["runs"]
        if run["name"] == name
        and (run["settings"]["parameters"], run["settings"]["workers"]) == setting
        and run["settings"]["seed"] == 0
    )
    return dict(run["curve"])[rounds]


def best(name: str, setting: tuple[int, int]) -> list[float]:
    """The losses, a seed each, of a variant at the learning rate with the lowest mean."""
    runs = results("convergence")["runs"]
    rates = {run["settings"]["rate"] for run in runs if run["name"] == name}
    swept = [list(losses(name, setting, rate=rate).values()) for rate in sorted(rates)]
    return min(filter(None, swept), key=statistics.fmean)


def reduction(name: str, setting: tuple[int, int]) -> float:
    """How many times fewer bytes a variant's members receive than with dense averaging."""
    return statistics.fmean(
        run["reduction"]
        for run in results("convergence")["runs"]
        if run["name"] == name
        and (run["settings"]["parameters"], run["settings"]["workers"]) == setting
    )


def with_error(values: Iterable[float]) -> tuple[float, float]:
    """Mean and standard error."""
    values = list(values)
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def cost(
    name: str,
    trouble: str,
    *,
    beside: str | None = None,
    rate: float,
    file: str = "convergence",
) -> list[float]:
    """What a trouble adds to the loss in the small setting, in per cent, seed by seed."""
    clean = losses(beside or name, SMALL, rate=rate, file=file)
    troubled = losses(f"{name} [{trouble}]", SMALL, rate=rate, file=file)
    return [100 * (loss / clean[seed] - 1) for seed, loss in sorted(troubled.items())]


def convergence() -> Iterator[Figure]:
    """Losses of whole runs, beside dense averaging and in trouble."""
    ours_large = with_error(losses(OURS_LARGE, LARGE).values())
    adamw_large = with_error(best(ADAMW, LARGE))
    fewer_large = reduction(OURS_LARGE, LARGE)
    large, small = (
        {name: statistics.fmean(best(name, setting)) for name in (OURS, OURS_32, ADAMW, MUON, DEMO)}
        for setting in (LARGE, SMALL)
    )
    yield Figure(
        "README.md",
        "The default before came to {:.2f} at {:.0f} times fewer bytes on another text, AdamW with full "
        "gradients to {:.2f}, Muon to {:.2f}, and the setting of DeMo and Psyche to {:.2f}",
        (
            large[OURS],
            reduction(OURS, LARGE),
            large[ADAMW],
            large[MUON],
            large[DEMO],
        ),
    )
    yield table(
        "docs/optimizer.md",
        "| | 0.14M parameters, 1 sequence each, 200 rounds | 0.92M, 2 sequences each, 400 rounds "
        "| times fewer bytes (0.92M) |",
        4,
        [
            (
                "| **Muon, dense** | {:.3f} ± {:.3f} (4e-3, three seeds) "
                "| {:.3f} (2e-3, one seed) | 1 |",
                (*with_error(best(MUON, SMALL)), large[MUON]),
            ),
            (
                "| AdamW, dense | {:.3f} ± {:.3f} (2e-3, three seeds) "
                "| {:.3f} ± {:.3f} (1e-3, two seeds) | 1 |",
                (*with_error(best(ADAMW, SMALL)), *adamw_large),
            ),
            (
                "| ours, k = 32 | {:.3f} ± {:.3f} (8e-3, three seeds) "
                "| {:.3f} (only 6e-3, one seed) | {:.0f} |",
                (*with_error(best(OURS_32, SMALL)), large[OURS_32], reduction(OURS_32, LARGE)),
            ),
            (
                "| ours, k = 8 | {:.3f} ± {:.3f} (8e-3, three seeds) "
                "| {:.3f} (6e-3, the highest tried, one seed) | {:.0f} |",
                (*with_error(best(OURS, SMALL)), large[OURS], reduction(OURS, LARGE)),
            ),
            (
                "| ours, k = 6 |  | {:.3f} ± {:.3f} (only 4e-3, three seeds) | {:.0f} |",
                (*ours_large, fewer_large),
            ),
            (
                "| DeMo and Psyche, k = 8, β = 0.999 | {:.3f} (4e-3, the highest tried, one seed) "
                "| {:.3f} (only 4e-3, one seed) | {:.0f} |",
                (small[DEMO], large[DEMO], reduction(DEMO, LARGE)),
            ),
        ],
    )
    yield Figure(
        "docs/optimizer.md",
        "So ours at k = 8 is {:.0f} % above the best dense training in the small setting and {:.0f} % "
        "in the larger one, and four times as many coefficients leave {:.0f} % and {:.0f} %",
        tuple(
            100 * (setting[name] / setting[MUON] - 1)
            for name in (OURS, OURS_32)
            for setting in (small, large)
        ),
    )
    yield Figure(
        "docs/optimizer.md",
        "400 rounds, k = 6: {:.3f} ± {:.3f} (three seeds) at {:.0f} times fewer; AdamW, the best of its "
        "settings below, {:.3f} ± {:.3f} (two seeds)",
        (*ours_large, fewer_large, *adamw_large),
    )
    yield Figure(
        "docs/optimizer.md",
        "4 members {:.3f} ± {:.3f} beside {:.3f} ± {:.3f} (three seeds), 8 members {:.3f} ± {:.3f} "
        "beside {:.3f} (three seeds and one seed, each at its best rate), 32 members {:.3f} ± {:.3f} "
        "beside {:.3f} ± {:.3f} (three seeds; AdamW {:.3f}, one)",
        (
            *with_error(losses(OURS, (139_584, 4)).values()),
            *with_error(losses(DEMO, (139_584, 4)).values()),
            *with_error(best(OURS, SMALL)),
            *best(DEMO, SMALL),
            *with_error(losses(OURS, (139_584, 32)).values()),
            *with_error(losses(DEMO, (139_584, 32)).values()),
            *losses(ADAMW, (139_584, 32)).values(),
        ),
    )
    three = [loss for seed, loss in losses(OURS, SMALL, rate=4e-3).items() if seed < 3]
    adamw = list(losses(ADAMW, SMALL, rate=2e-3).values())
    yield Figure(
        "docs/optimizer.md",
        "k = 8, {:.0f} times fewer, 200 rounds, 8 members: {:.3f} ± {:.3f} at 8e-3 beside "
        "{:.3f} ± {:.3f} at 2e-3, three seeds",
        (reduction(OURS, SMALL), *with_error(best(OURS, SMALL)), *with_error(best(ADAMW, SMALL))),
    )
    audited = with_error(cost(OURS, "flipped 0.25", rate=4e-3))
    unaudited = cost("ours without the audit", "flipped 0.25", beside=OURS, rate=4e-3)
    late = cost(OURS, "overlap", rate=4e-3)
    yield Figure(
        "docs/optimizer.md",
        "0.14M: {:+.1f} ± {:.1f} % (five seeds, from {:.1f} to {:.1f} %)",
        (*with_error(late), min(late), max(late)),
    )
    yield Figure(
        "docs/optimizer.md", "It cost {:.1f} ± {:.1f} % of the held-out loss", with_error(late)
    )
    yield Figure(
        "docs/optimizer.md",
        "0.14M: {:+.1f} ± {:.1f} % (three seeds); without the audit {:+.1f} %",
        (*audited, *unaudited),
    )
    again, fewer = (
        [with_error(cost(name, trouble, rate=rate)) for name, rate in ((OURS, 4e-3), (ADAMW, 2e-3))]
        for trouble in ("absent 0.5, again", "absent 0.5")
    )
    yield Figure(
        "docs/optimizer.md",
        "as the program does): {:+.1f} ± {:.1f} %; as many rounds, so half of the tokens: "
        "{:+.1f} ± {:.1f} %, where AdamW pays {:+.1f} ± {:.1f} %",
        (*again[0], *fewer[0], *fewer[1]),
    )
    yield table(
        "docs/research.md",
        "| | ours | AdamW, dense |",
        3,
        [
            (
                "| without trouble | {:.3f} ± {:.3f} | {:.3f} ± {:.3f} |",
                (*with_error(three), *with_error(adamw)),
            ),
            (
                "| a quarter of the members send the opposite, no audit (one seed) | {:+.1f} % | |",
                tuple(unaudited),
            ),
            ("| the same with the audit | {:+.1f} ± {:.1f} % | |", audited),
            (
                "| half of the members away in every round, the same tokens (twice the rounds) "
                "| {:+.1f} ± {:.1f} % | {:+.1f} ± {:.1f} % |",
                (*again[0], *again[1]),
            ),
            (
                "| half of the members away, the same rounds (half of the tokens) "
                "| {:+.1f} ± {:.1f} % | {:+.1f} ± {:.1f} % |",
                (*fewer[0], *fewer[1]),
            ),
            (
                "| half of the updates miss their round and return (one seed) | {:+.1f} % | |",
                tuple(cost(OURS, "late 0.5", rate=4e-3)),
            ),
            (
                "| gradients on parameters one round old (five seeds) | {:+.1f} ± {:.1f} % | |",
                with_error(late),
            ),
        ],
    )
    yield Figure(
        "docs/research.md",
        "8e-3 has {:.3f} ± {:.3f} (three seeds), and dense Muon has {:.3f} ± {:.3f}",
        (*with_error(best(OURS, SMALL)), *with_error(best(MUON, SMALL))),
    )
    yield Figure(
        "docs/research.md",
        "is {:.0f} % above dense Muon's in the small setting and {:.0f} % in the larger one",
        tuple(100 * (setting[OURS] / setting[MUON] - 1) for setting in (small, large)),
    )
    yield Figure(
        "docs/research.md",
        "32 members, after 60 rounds: {:.3f} against {:.3f}",
        tuple(curve(name, (139_584, 32), 60) for name in (f"{OURS}, damped", OURS)),
    )
    yield Figure(
        "docs/optimizer.md",
        "where that has {:.3f}, it had {:.3f} with 0.99, {:.3f} with 0.999, and {:.3f} with a decay of "
        "0.1",
        tuple(
            losses(f"{ADAMW}{change}", SMALL, rate=4e-3)[0]
            for change in ("", ", β₂ 0.99", ", β₂ 0.999", ", decay 0.1")
        ),
    )
    wiki = [
        *losses(OURS, SMALL, corpus="wikitext").values(),
        *losses(ADAMW, SMALL, corpus="wikitext").values(),
    ]
    yield Figure(
        "docs/optimizer.md",
        "wikitext-2, ours had {:.3f} and AdamW {:.3f} (0.14 million parameters, 8 members, 200 rounds, "
        "one seed, one learning rate each): {:+.1f} %",
        (*wiki, 100 * (wiki[0] / wiki[1] - 1)),
    )


# What a row of `strangers.py` says, in this order: heading, field, format.
STRANGERS = (
    ("there", "connected", "{:d}"),
    ("memory, MiB", "memory_mib", "{:.1f}"),
    ("left 5 s later", "left_mib", "{:.1f}"),
    ("handles", "handles", "{:d}"),
    ("of a core", "processor", "{:.2f}"),
    ("KiB/s received, each", "received_kib_each", "{:.1f}"),
    ("sent, each", "sent_kib_each", "{:.1f}"),
    ("data grown, KiB", "grown_kib", "{:.0f}"),
    ("MiB written", "disk_mib", "{:.1f}"),
    ("rounds a minute", "rounds_per_minute", "{:.0f}"),
    ("longest echo, ms", "echo_longest_ms", "{:.0f}"),
    ("echoes lost", "echoes_lost", "{:d}"),
)


def strangers() -> Iterator[Figure | WholeTable]:
    """What hostile peers cost a node."""
    measured = results("strangers")
    headings = ("attack", "peers", *(heading for heading, _, _ in STRANGERS))
    rows = []
    for name, costs in measured["costs"].items():
        for peers, cost in costs.items():
            # Rows of before a column was measured stay until they are measured anew.
            cells = [
                form.format(cost[field]) if field in cost else "–" for _, field, form in STRANGERS
            ]
            rows.append(_line((name, peers, *cells)))
    yield WholeTable("docs/threats.md", _line(headings), tuple(rows))
    one, fifty = measured["rounds"]["1"], measured["rounds"]["50"]
    yield Figure(
        "docs/threats.md",
        "finished {:.0f} rounds a minute in peace and {:.0f} with fifty hostile peers",
        (fifty["calm_per_minute"], fifty["attacked_per_minute"]),
    )
    yield Figure(
        "docs/threats.md",
        "With one, which only gossips, it was {:.0f} and {:.0f}.",
        (one["calm_per_minute"], one["attacked_per_minute"]),
    )
    yield Figure(
        "docs/threats.md",
        "{:.0f} programs wanted to run on the {:d} cores when it began",
        (measured["load"][0], measured["cores"]),
    )


def fuzzing() -> Iterator[Figure]:
    """What hostile inputs did."""
    measured = results("fuzz")
    targets = measured["targets"].values()
    yield Figure(
        "docs/threats.md",
        "{:d} targets have had {:,d} inputs each",
        (len(targets), measured["inputs"]),
    )
    yield Figure(
        "docs/threats.md",
        "the slowest input took {:.1f} ms of processor",
        (max(target["slowest_ms"] for target in targets),),
    )


def decoding() -> Iterator[Figure]:
    """What another decoder would save."""
    measured = results("decoding")
    entry, whole = measured["entry"], measured["entry_taken_in_ms"]
    other = entry["msgspec_and_one_spelling_ms"]
    shown = measured["strictness"].values()
    yield Figure(
        "docs/dependencies.md",
        "an entry of the chain ({:d} members) in {:.2f} ms with the check for one spelling, where we "
        "take {:.2f} ms; taking the entry in takes {:.1f} ms, nearly all of it for signatures. For "
        "that {:.0f} % all",
        (
            measured["members"],
            other,
            entry["ours_ms"],
            whole,
            100 * (entry["ours_ms"] - other) / whole,
        ),
    )
    yield Figure(
        "docs/dependencies.md",
        "By itself it accepts {:d} of the {:d} byte strings that",
        (sum(each["msgspec"] == "accepted" for each in shown), len(shown)),
    )


def creating() -> Iterator[Figure]:
    """How fast text becomes tokens."""
    measured = results("create")
    speeds = (measured["tokens_per_second"], measured["tokens_per_processor_second"])
    yield Figure(
        "docs/data.md",
        "`create` made {:.2f} times as many tokens a second as the `tokenizers` library alone, and "
        "{:.2f} times as many a second of a processor",
        tuple(speed["ours"] / speed["library"] for speed in speeds),
    )
    kinds = results("create-memory")["kinds"]
    yield Figure(
        "docs/data.md",
        "With two workers it held {:.0f} MB at most for one text of {:.0f} MB, and {:.0f} to {:.0f} MB "
        "for {:.0f} MB of other kinds",
        (
            kinds["text"]["peak_bytes"] / 1e6,
            kinds["text"]["megabytes"],
            min(kind["peak_bytes"] for name, kind in kinds.items() if name != "text") / 1e6,
            max(kind["peak_bytes"] for name, kind in kinds.items() if name != "text") / 1e6,
            kinds["jsonl-long"]["megabytes"],
        ),
    )


def page() -> Iterator[Figure]:
    """What visitors of the page cost."""
    alone, one, fifty = results("page-observe")["observe"]
    large = results("page")
    visited = large["visits"][-1]
    assert (alone["visitors"], one["visitors"]) == (0, 1)
    assert fifty["visitors"] == visited["visitors"]
    yield Figure(
        "docs/dashboard.md",
        "{:d} visitors at once made an observer of a small swarm take {:.1f} % of a core, where "
        "following alone took {:.1f} %",
        (fifty["visitors"], 100 * fifty["of_a_core"], 100 * alone["of_a_core"]),
    )
    yield Figure(
        "docs/dashboard.md",
        "with {:d} members and {:,d} rounds the page by itself took {:.1f} % for as many",
        (
            large["taken_in"]["members"],
            large["taken_in"]["rounds"],
            100 * visited["of_a_core"],
        ),
    )


def _with_fewer_bytes(document: str, measured: Any, loss: str, names: dict[str, str]) -> WholeTable:
    """What each of these variants came to beside dense AdamW (`runs.summed_up`); errors where it was
    measured with several seeds."""
    rows = []
    for name, words in names.items():
        way = measured["ways"][name]
        found = f"{way['loss']:.4f}", f"{way['percent']:+.1f}"
        if len(way["losses"]) > 1:
            found = f"{found[0]} ± {way['error']:.4f}", f"{found[1]} ± {way['percent_error']:.1f}"
        rows.append(
            f"| {words} | {way['top_k'] or ''} | {way['rate']:g} | {way['reduction']:,.0f} | "
            f"{found[0]} | {found[1]} % |"
        )
    heading = f"| | k | rate | times fewer bytes | {loss} | beside dense |"
    return WholeTable(document, heading, tuple(rows))


TUNED_WAYS = {}
for _trains, _dense, _words in (
    ("full", "dense", "all weights"),
    ("lora", "lora-dense", "adapters"),
):
    TUNED_WAYS[_dense] = f"{_words}, dense AdamW"
    for _suffix, _kind in (("", "signs"), ("-now", "the default now")):
        for _target in (1000, 3000, 10_000):
            TUNED_WAYS[f"{_trains}-{_target}{_suffix}"] = f"{_words}, {_kind}"


def finetuning() -> Iterator[Figure | WholeTable]:
    """What fewer bytes cost in fine-tuning, in few rounds and in many."""
    document, measured, now = "docs/finetuning.md", results("finetune"), results("finetune-now")
    if measured["ways"]["dense"]["losses"] != now["ways"]["dense"]["losses"]:
        sys.exit("what was tuned with the default now is not comparable with the rest")
    measured["ways"] |= now["ways"]
    yield _with_fewer_bytes(document, measured, "held-out nats a byte", TUNED_WAYS)
    yield Figure(
        document,
        "A byte-level Llama with {:,d} parameters, trained on source code for {:,d} rounds, is tuned on "
        "prose for {:,d} rounds by {:d} members; before, it has {:.3f} nats a byte there",
        (
            measured["parameters"],
            measured["settings"]["base_steps"],
            measured["settings"]["steps"],
            measured["settings"]["workers"],
            measured["base"],
        ),
    )
    yield Figure(
        document,
        "With the default now, tuning all weights costs {:+.1f} % at 1,000 times fewer bytes than dense "
        "AdamW sends, {:+.1f} % at 3,000 times and {:+.1f} % at 10,000 times fewer",
        tuple(measured["ways"][f"full-{target}-now"]["percent"] for target in (1000, 3000, 10_000)),
    )
    longer = results("finetune-long")
    names = {name: words for name, words in TUNED_WAYS.items() if name in longer["ways"]}
    loss = f"the same after {longer['settings']['steps']:,} rounds"
    yield _with_fewer_bytes(document, longer, loss, names)


def frontier() -> Iterator[Figure | WholeTable]:
    """Where the loss between dense Muon and the program goes."""
    document, measured = "docs/research.md", results("frontier")
    settings = measured["settings"]
    yield Figure(
        document,
        "at {:,d} parameters, {:d} members with {:d} sequences each and {:d} rounds, with one seed",
        (
            measured["parameters"],
            settings["workers"],
            settings["sequences"],
            settings["steps"],
        ),
    )
    rows = []
    for name, way in measured["ways"].items():
        apart = [
            f"{way[key]['percent']:+.1f} %" if key in way else ""
            for key in ("above_muon", "beside")
        ]
        cells = f"{way['rate']:g} | {way['loss']:.3f} | {' | '.join(apart)}"
        rows.append(f"| {name} | {cells} | {way['reduction']:,.0f} |")
    yield WholeTable(
        document,
        "| way | rate | nats a byte | beside dense Muon | for this choice | times fewer bytes |",
        tuple(rows),
    )


def smoothing() -> Iterator[Figure | WholeTable]:
    """What it brings to smooth a gradient before it is made orthogonal."""
    document, program = "docs/research.md", "their signs only: the program"
    rows = []
    for name, way in results("smoothing")["ways"].items():
        apart = f"{way['beside']['percent']:+.1f} %" if name != program else ""
        cells = f"{way['rate']:g} | {way['loss']:.3f} | {apart}"
        rows.append(f"| {'the program' if name == program else name} | {cells} |")
    yield WholeTable(
        document, "| change to the program | rate | nats a byte | beside the program |", tuple(rows)
    )
    ways = results("smoothing-seeds")["ways"]
    smoothed = ways["gradient smoothed, 0.5"]
    yield Figure(
        document,
        "dense Muon {:.3f} ± {:.3f}, the program {:.3f} ± {:.3f}, with a smoothed gradient "
        "{:.3f} ± {:.3f}: {:.1f} ± {:.1f} % beside the program, {:+.1f} % above dense Muon instead of "
        "{:+.1f} %",
        (
            *(
                value
                for name in ("dense Muon", program, "gradient smoothed, 0.5")
                for value in (ways[name]["loss"], ways[name]["error"])
            ),
            smoothed["beside"]["percent"],
            smoothed["beside"]["error"],
            smoothed["above_muon"]["percent"],
            ways[program]["above_muon"]["percent"],
        ),
    )
    larger = results("smoothing-0.9M")
    (rate,) = {way["rate"] for way in larger["ways"].values()}
    yield Figure(
        document,
        "With {:,d} parameters, one seed and one rate ({:g}), it is {:.3f} instead of {:.3f}, {:.1f} %",
        (
            larger["parameters"],
            rate,
            larger["ways"]["gradient smoothed, 0.5"]["loss"],
            larger["ways"][program]["loss"],
            larger["ways"]["gradient smoothed, 0.5"]["beside"]["percent"],
        ),
    )


NOW = "and smoothed by 0.7: the default now"


def scaled() -> Iterator[Figure | WholeTable]:
    """What a scaled step brings, and Muon's way at home."""
    document, older = "docs/research.md", "their signs only: the program"
    rows = []
    for name, way in results("scaled")["ways"].items():
        title = "`orthogonal`, a step of signs" if name == older else name
        gained = "" if name in (older, "dense Muon") else f"{way['beside']['percent']:+.1f} %"
        rows.append(_line((*_tried(title, way, "above_muon"), gained, f"{way['reduction']:,.0f}")))
    yield WholeTable(
        document,
        "| way | rate | of so many | nats a byte | above dense Muon | beside the program before "
        "| times fewer bytes |",
        tuple(rows),
    )
    yield Figure(
        document,
        "With 32 coefficients the default now is {:.1f} % above dense Muon",
        (results("scaled")["ways"]["now, 32 coefficients"]["above_muon"]["percent"],),
    )
    ways = results("scaled-seeds")["ways"]
    apart = tuple(
        ways[name]["above_muon"][key] for name in (NOW, older) for key in ("percent", "error")
    )
    yield Figure(
        document,
        "With three other seeds the default now has {:.3f} ± {:.3f}, {:+.1f} ± {:.1f} % above dense "
        "Muon, where the one before had {:+.1f} ± {:.1f} %",
        (
            ways[NOW]["loss"],
            ways[NOW]["error"],
            *apart,
        ),
    )
    larger = results("scaled-0.9M")
    six, muon = larger["ways"]["now, 6 coefficients"], larger["ways"]["dense Muon"]
    yield Figure(
        document,
        "With {:,d} parameters and 6 coefficients it has {:.3f} ± {:.3f} nats a byte and dense Muon "
        "{:.3f} ± {:.3f} (three seeds): {:+.1f} ± {:.1f} % at {:,.0f} times fewer bytes",
        (
            larger["parameters"],
            six["loss"],
            six["error"],
            muon["loss"],
            muon["error"],
            six["above_muon"]["percent"],
            six["above_muon"]["error"],
            six["reduction"],
        ),
    )
    measured = results("program-0.9M")["ways"]
    itself = measured["now, by the program's own code, 6 coefficients"]
    distance = itself["above_muon"]["percent"], itself["above_muon"]["error"]
    yield Figure(
        document,
        "that bound and the audit, 918,656 parameters have {:.3f} ± {:.3f} with 6 coefficients, "
        "{:+.1f} ± {:.1f} % above dense Muon",
        (itself["loss"], itself["error"], *distance),
    )
    yield Figure(
        "docs/optimizer.md",
        "{:+.1f} ± {:.1f} % by the program's own code with its bound and its audit",
        distance,
    )
    yield Figure(
        "docs/optimizer.md",
        "are {:+.1f} ± {:.1f} % above Muon at k = 8 instead of {:+.1f} ± {:.1f} %, and 0.92 million "
        "{:+.1f} ± {:.1f} % at k = 6 and {:,.0f} times fewer bytes (three seeds each",
        (
            *apart,
            six["above_muon"]["percent"],
            six["above_muon"]["error"],
            six["reduction"],
        ),
    )
    yield Figure(
        "README.md",
        "held-out loss was {:.2f} nats a byte at {:,.0f} times fewer bytes than full gradients, and "
        "{:.2f} with full gradients and Muon, the strongest dense optimizer that was tried: ours is "
        "**{:.1f} %** above that (three seeds)",
        (itself["loss"], itself["reduction"], measured["dense Muon"]["loss"], distance[0]),
    )


def limits() -> Iterator[Figure | WholeTable]:
    """What another basis, values, one who speaks for all, and sums that a few make come to; and what
    there is of a larger model."""
    small = _above_muon("limits", NOW), _above_muon("scaled", "now, 32 coefficients")
    large = (_above_muon("chain-0.9M", f"now, {k} coefficients") for k in (6, 32))
    yield Figure(
        "docs/research.md",
        "from 8 to 32 the distance to dense Muon falls from {:.1f} to {:.1f} % in this setting, and "
        "from 6 to 32 from {:.1f} to {:.1f} %",
        (*small, *large),
    )
    fewer = "now, one speaks for all of a block, 32 coefficients by 1 bit of"
    spoken = [results("limits")["ways"][way] for way in (f"{fewer} 8", NOW, f"{fewer} 16")]
    yield Figure(
        "docs/research.md",
        "32 coefficients by 1 bit of 8 leave {:.1f} % at {:,.0f} times fewer bytes where the default "
        "has {:.1f} % at {:,.0f} times, and by 1 bit of 16 {:.1f} % at {:,.0f} times",
        _distances_and_bytes(spoken),
    )
    larger = results("chain-0.9M")["ways"]
    speaks = "now, one speaks for all of a block,"
    told = (
        f"{speaks} by 1 bit of 8",
        f"{speaks} 32 coefficients by 1 bit of 8",
        "now, 6 coefficients",
        "now, 32 coefficients",
        f"{speaks} 19 coefficients by 1 bit of 10",
        f"{speaks} 28 coefficients by 1 bit of 12",
        f"{speaks} 32 coefficients by 1 bit of 16",
    )
    yield Figure(
        "docs/research.md",
        "1 bit of 8 with 64 coefficients leaves {:.1f} % at {:,.0f} times fewer bytes and with 32 "
        "{:.1f} % at {:,.0f} times, where the default has {:.1f} % at {:,.0f} times and, with 32 "
        "coefficients, {:.1f} % at {:,.0f} times. With fewer bits that ends: 1 bit of 10 with 19 "
        "coefficients leaves {:.1f} % at {:,.0f} times, 1 bit of 12 with 28 {:.1f} % at {:,.0f} times, "
        "and 1 bit of 16 with 32 {:.1f} % at {:,.0f} times",
        _distances_and_bytes(larger[way] for way in told),
    )
    itself = results("program-0.9M")["ways"]["now, by the program's own code, 6 coefficients"]
    others = [
        results("chain-0.9M")["ways"][f"now, {way}"]
        for way in (
            "2 coefficients",
            "32 coefficients",
            "one speaks for all of a block, by 1 bit of 4",
            "one speaks for all of a block, by 1 bit of 8",
        )
    ]
    yield Figure(
        "docs/research.md",
        "the default now is {:.1f} % above dense Muon at {:,.0f} times fewer bytes (0.92 million "
        "parameters, three seeds). With 2 coefficients a block instead of 6 it is {:.1f} % at {:,.0f} "
        "times, with 32 it is {:.1f} % at {:,.0f} times, and where one member speaks for all of a block "
        "{:.1f} % at {:,.0f} times, or {:.1f} % at {:,.0f} times by half as many bits",
        _distances_and_bytes([itself, *others]),
    )
    even = "the gradient made orthogonal, before the momentum"
    smallest = _above_muon("frontier", even)
    yield Figure(
        "docs/research.md",
        "costs more the larger the model is, {:.1f}, {:.1f} and {:.1f} % at the three sizes",
        (smallest, _above_muon("chain-0.9M", even), _above_muon("chain-3M", even)),
    )
    for name, heading in (
        ("limits", "| way | rate"),
        ("chain-0.9M", "| way, with 918,656 parameters | rate"),
        ("chain-3M", "| way, with 2,976,192 parameters | rate"),
    ):
        yield WholeTable(
            "docs/research.md",
            f"{heading} | nats a byte | above dense Muon | times fewer bytes received |",
            tuple(
                _line(
                    (
                        way,
                        f"{found['rate']:g}",
                        f"{found['loss']:.3f}",
                        f"{found['above_muon']['percent']:+.1f} %" if "above_muon" in found else "",
                        f"{found['reduction']:,.0f}",
                    )
                )
                for way, found in results(name)["ways"].items()
            ),
        )


def peak_rates() -> Iterator[WholeTable]:
    """What the default now comes to at rates that were tried, by the program's own code."""
    own = "now, by the program's own code"
    small, large = results("program-0.14M")["ways"][own], results("program-0.9M")["ways"]
    wide = results("growth")["ways"]["8 members, k = 8, the default now"]
    tried = {
        "139,584 parameters, 2 sequences a member, k = 8": small["tried"],
        "the same with 8 sequences a member": wide["tried"],
        "918,656 parameters, 2 sequences a member, k = 6": large[f"{own}, 6 coefficients"]["tried"],
        "139,584 parameters in a longer run, k = 8": results("ladder")["sizes"]["0.14M"]["ways"][
            "k = 8, the default now"
        ]["tried"],
    }
    rates = ("0.002", "0.004", "0.008", "0.016")
    rows = []
    for words, losses in tried.items():
        cells = (f"{losses[rate]:.3f}" if rate in losses else "" for rate in rates)
        rows.append(_line((words, *cells)))
    yield WholeTable("docs/research.md", _line(("peak rate", *rates)), tuple(rows))


def overlap_now() -> Iterator[Figure]:
    """What gradients on parameters one round old cost with the default now."""
    name, file = "the default now", "overlap-now"
    usual = with_error(cost(name, "overlap", rate=4e-3, file=file))
    (high,) = cost(name, "overlap", rate=8e-3, file=file)
    yield Figure(
        "docs/optimizer.md",
        "With the default now it costs {:.1f} ± {:.1f} % at a peak rate of 4e-3 (three seeds), and "
        "{:.1f} % at 8e-3 (one)",
        (*usual, high),
    )
    yield Figure("docs/operations.md", "cost about {:.0f} % of the loss", usual[:1])
    yield Figure("docs/optimizer.md", "the default now {:+.1f} ± {:.1f} % (three seeds)", usual)
    yield Figure(
        "docs/research.md",
        "The default now loses more by old gradients, {:.1f} ± {:.1f} % (three seeds",
        usual,
    )
    signs = results("local-steps")["ways"]["the program, 8 coefficients"]["loss"]
    yield Figure(
        "docs/optimizer.md",
        "it leaves {:.3f} nats a byte there where steps of signs leave {:.3f} without overlap",
        (losses(f"{name} [overlap]", SMALL, rate=4e-3, file=file)[0], signs),
    )
    longer = results("ladder")["sizes"]["0.14M"]
    rounds = longer["settings"]["steps"] / 400
    shorter = losses(name, SMALL, rate=4e-3, file=file)[0]
    fallen = shorter / longer["ways"]["k = 8, the default now"]["tried"]["0.004"]
    yield Figure(
        "docs/optimizer.md",
        "a doubling of the rounds lowers the default's loss by {:.1f} %",
        (100 * (1 - fallen ** (-1 / math.log2(rounds))),),
    )


def rule_of_rates() -> Iterator[WholeTable]:
    """What the rate that `create` takes costs, and the mean of other swarms' best."""
    rows = []
    for swarm in results("rates-default")["swarms"]:
        place = swarm["place"]
        words = (
            f"{place['parameters']:,.0f} parameters, {place['members']:.0f} members with "
            f"{place['sequences']:g} sequences, k = {place['k']:.0f}, {place['steps']:,.0f} rounds"
        )
        cells = []
        for rate, costs in (("foretold", "costs"), ("create", "create_costs")):
            cells += [f"{swarm[rate]:.4f}", f"{swarm[costs]:.1f} %"]
        rows.append(_line((words, f"{swarm['rate']:.4f}", *cells)))
    yield WholeTable(
        "docs/research.md",
        "| swarm | best rate | mean of the others | that costs | `create` takes | that costs |",
        tuple(rows),
    )


def in_common() -> Iterator[Figure | WholeTable]:
    """How much members' momentum has in common, and what a bit says of it."""
    document, measured = "docs/research.md", results("in-common")
    yield WholeTable(
        document,
        "| sequences a member | momentum in common | sent by another, too | by chance "
        "| sent of a momentum | a bit says |",
        tuple(
            f"| {run['sequences']} | {100 * run['common']:.0f} % | {100 * run['again']:.1f} % | "
            f"{100 * run['chance']:.1f} % | {100 * run['sent']:.1f} % | {run['a_bit']:.2f} |"
            for run in measured["runs"]
        ),
    )
    yield Figure(document, "at most {:.2f}, 2 ln 2", (measured["most"],))


def _above_muon(file: str, way: str) -> float:
    """By how many percent the loss of a way is above dense Muon's."""
    return results(file)["ways"][way]["above_muon"]["percent"]


def _distances_and_bytes(ways: Iterable[dict[str, Any]]) -> tuple[float, ...]:
    """Of each way how far it is above dense Muon, and at how many times fewer bytes."""
    return tuple(
        number for way in ways for number in (way["above_muon"]["percent"], way["reduction"])
    )


def _tried(name: str, way: dict[str, Any], beside: str) -> tuple[str, ...]:
    """What was tried of a variant, as the first cells of a line."""
    return (
        name,
        f"{way['rate']:g}",
        f"{len(way['tried'])}",
        f"{way['loss']:.3f}",
        f"{way[beside]['percent']:+.1f} %" if beside in way else "",
    )


def local_steps() -> Iterator[WholeTable]:
    """What members' own steps between rounds come to."""
    yield WholeTable(
        "docs/research.md",
        "| way | rate | of so many | nats a byte | beside the program | times fewer bytes |",
        tuple(
            _line((*_tried(name, way, "beside"), f"{way['reduction']:,.0f}"))
            for name, way in results("local-steps")["ways"].items()
        ),
    )


def growth() -> Iterator[Figure | WholeTable]:
    """More members at equal tokens."""
    rows, measured = [], results("growth")
    plane = measured["trend"]
    yield Figure(
        "docs/research.md",
        "a doubling of the members adds {:.1f} % to the distance, a doubling of the coefficients takes "
        "{:.1f} % away (the runs lie {:.1f} % from it), so each doubling of the members takes "
        "{:.1f} times",
        (
            plane["each"]["members"],
            -plane["each"]["k"],
            plane["residual"],
            measured["k_each"],
        ),
    )
    now = measured["now"]["trend"]
    yield Figure(
        "docs/research.md",
        "it is {:.1f} % for the members and {:.1f} % for the coefficients (six swarms, {:.1f} % from "
        "the plane), so a doubling of the members takes {:.1f} times",
        (now["each"]["members"], -now["each"]["k"], now["residual"], measured["now"]["k_each"]),
    )
    panels, eighth, quarter, one, everybody = (
        measured["ways"][f"32 members, {way}"]
        for way in (
            "panels by 1 bit of 8, terms of 40",
            "panels by 1 bit of 8, an eighth lie, terms of 40",
            "panels by 1 bit of 8, a quarter lie, terms of 40",
            "one speaks for all by 1 bit of 8",
            "k = 8, the default now",
        )
    )
    # What shows whose a part is, from each of the others: on the way up from ten sections.
    ways = 31 * sum(way_bytes(section, 10) for section in range(10)) / 10 / 1e3
    yield Figure(
        "docs/research.md",
        "{:.1f} % above dense Muon where that had {:.1f} %",
        (panels["above_muon"]["percent"], one["above_muon"]["percent"]),
    )
    yield Figure(
        "docs/research.md",
        "They download {:.1f} kB each a step, {:.1f} kB of which show",
        (panels["received"] / 1e3, ways),
    )
    yield Figure(
        "docs/research.md",
        "k = 8 of everybody is {:.1f} kB and leaves {:.1f} %",
        (everybody["received"] / 1e3, everybody["above_muon"]["percent"]),
    )
    yield Figure(
        "docs/research.md",
        "on the opposite of the tally) leave {:.1f} %, an eighth {:.1f} %",
        (quarter["above_muon"]["percent"], eighth["above_muon"]["percent"]),
    )
    yield Figure(
        "README.md",
        "32 members then learned to {:.1f} % above Muon with {:.1f} kB a step each, where updates of "
        "everybody left {:.1f} % with {:.1f} kB",
        (
            panels["above_muon"]["percent"],
            panels["received"] / 1e3,
            everybody["above_muon"]["percent"],
            everybody["received"] / 1e3,
        ),
    )
    few, all_of_them = (
        measured["ways"][f"16 members, {way}"]
        for way in ("panels by 1 bit of 4, terms of 40", "k = 8, the default now")
    )
    yield Figure(
        "docs/research.md",
        "they take {:.1f} times the bytes of k = 8 of everybody and leave {:.1f} % where that leaves "
        "{:.1f} %",
        (
            few["received"] / all_of_them["received"],
            few["above_muon"]["percent"],
            all_of_them["above_muon"]["percent"],
        ),
    )
    for name, way in measured["ways"].items():
        received = "" if way["received"] is None else f"{way['received'] / 1e3:,.1f} kB"
        rows.append(_line((*_tried(name, way, "above_muon"), received)))
    yield WholeTable(
        "docs/research.md",
        "| swarm | rate | of so many | nats a byte | above dense Muon | a member downloads a round |",
        tuple(rows),
    )


def ladder() -> Iterator[Figure | WholeTable]:
    """Models of several sizes, at equal tokens a parameter."""
    sizes = results("ladder")["sizes"]
    small = sizes["0.14M"]
    rounds, ways = small["settings"]["steps"], small["ways"]

    def above(way: str, dense: str) -> float:
        return 100 * (ways[way]["loss"] / ways[dense]["loss"] - 1)

    muon, adam = "dense Muon", "dense AdamW"
    now, larger = "k = 8, the default now", "k = 32, the default now"
    yield Figure(
        "README.md",
        "After {:,d} rounds of a model of 0.14 million parameters it was {:.1f} % above Muon and "
        "{:.1f} % above AdamW at {:,.0f} times fewer bytes",
        (rounds, above(now, muon), above(now, adam), ways[now]["reduction"]),
    )
    yield Figure(
        "docs/optimizer.md",
        "In a run of {:,d} rounds ours is {:.1f} % above Muon and {:.1f} % above AdamW",
        (rounds, above("k = 8", muon), above("k = 8", adam)),
    )
    yield Figure(
        "docs/optimizer.md",
        "After {:,d} rounds of 0.14 million parameters they are {:.1f} % above Muon and {:.1f} % above "
        "AdamW at k = 8, {:.1f} % above Muon and {:.1f} % below AdamW at k = 32",
        (
            rounds,
            above(now, muon),
            above(now, adam),
            above(larger, muon),
            -above(larger, adam),
        ),
    )
    yield Figure(
        "docs/research.md",
        "trains at 20 tokens a parameter, {:,d} rounds at {:,d} parameters",
        (rounds, small["parameters"]),
    )
    large = results("ladder-large-rounds")
    plane, guess = large["now"]["trend"], large["now"]["predicted"]
    yield Figure(
        "docs/research.md",
        "a doubling of the parameters adds {:.1f} % to the distance and a doubling of the coefficients "
        "takes {:.1f} % away (the swarms lie {:.1f} % from it)",
        (plane["each"]["parameters"], -plane["each"]["k"], plane["residual"]),
    )
    yield Figure(
        "docs/research.md",
        "trained on 20 tokens each, in {:,d} rounds",
        (large["sizes"]["0.9M"]["settings"]["steps"],),
    )
    six = "now, 6 coefficients"
    short = (("limits", NOW), ("chain-0.9M", six), ("chain-3M", six))
    yield Figure(
        "docs/research.md",
        "have {:.1f} % with 0.14, {:.1f} % with 0.92 and {:.1f} % with 3 million parameters",
        tuple(_above_muon(file, way) for file, way in short),
    )
    yield Figure(
        "docs/research.md",
        "a distance of {:.0f} % for {:.1f} billion parameters with k = {:.0f}",
        (guess["percent"], guess["parameters"] / 1e9, guess["k"]),
    )
    for heading, rungs in (("parameters", sizes), ("parameters, larger rounds", large["sizes"])):
        yield WholeTable(
            "docs/research.md",
            f"| {heading} | way | rate | of so many | nats a byte | above dense Muon "
            "| times fewer bytes |",
            tuple(
                _line((size, *_tried(name, way, "above_muon"), f"{way['reduction']:,.0f}"))
                for size, measured in rungs.items()
                for name, way in measured["ways"].items()
            ),
        )


def left() -> Iterator[WholeTable]:
    """What is left to run."""
    yield WholeTable(
        "benchmarks/README.md",
        "| script | parameters | sequences a round | rounds | ways | run | rate found | three seeds "
        "| hours run | hours left, at least |",
        tuple(
            _line(
                (
                    f"`{each.script}`",
                    f"{each.parameters:,}",
                    str(each.sequences),
                    f"{each.rounds:,}",
                    str(each.ways),
                    str(each.run),
                    str(each.found),
                    str(each.seeds),
                    f"{each.hours_run:.1f}",
                    f"{each.hours_left:.0f}",
                )
            )
            for each in everything()
        ),
    )


def diffusion() -> Iterator[Figure | WholeTable]:
    """What fewer bytes cost a model of images."""
    document, measured = "docs/tasks.md", results("diffusion")
    settings = measured["settings"]
    yield Figure(
        document,
        "A U-Net with {:,d} parameters and classes learns them in {:,d} rounds of {:d} members with "
        "{:d} images each",
        (
            measured["parameters"],
            settings["steps"],
            settings["workers"],
            settings["sequences"],
        ),
    )
    names = {name: "dense AdamW" if name == "dense" else "ours, signs" for name in measured["ways"]}
    yield _with_fewer_bytes(document, measured, "held-out squared error", names)
    # Of the seed with which rates were found: the default now was tried with no other.
    ways = measured["ways"] | results("diffusion-now")["ways"]
    lowest = {name: min(way["tried"].values()) for name, way in ways.items()}
    yield Figure(
        document,
        "With the seed that rates were found with, the default now has {:.4f}, dense AdamW {:.4f} and "
        "steps of signs {:.4f}",
        (lowest["now-500"], lowest["dense"], lowest["ours-500"]),
    )


JOB_WAYS = {
    "swarm": "four nodes",
    "adamw": "AdamW, one process",
    "muon": "Muon, one process",
}


def job() -> Iterator[Figure | WholeTable]:
    """What a whole job on one machine comes to."""
    document, measured = "docs/job.md", results("job")
    ways, settings = measured["ways"], measured["settings"]
    yield Figure(
        document,
        "Together they are {:,d} tokens in an epoch, and {:,d} are held out. The model is a Llama with "
        "{:,d} parameters, its byte-level BPE has {:,d} tokens. The swarm's {:d} rounds, of {:,d} "
        "tokens each, took {:.0f} minutes",
        (
            measured["training_tokens"],
            measured["heldout_tokens"],
            measured["parameters"],
            measured["vocabulary"],
            measured["rounds"],
            settings["sequences"] * settings["sequence"],
            measured["seconds"] / 60,
        ),
    )
    yield WholeTable(
        document,
        "| way | peak rate | tokens | tokens a second | held-out loss | perplexity |",
        tuple(
            f"| {words} | {ways[name]['rate']:g} | {ways[name]['tokens']:,} | "
            f"{ways[name]['tokens_per_second']:,.0f} | {ways[name]['loss']:.3f} | "
            f"{ways[name]['perplexity']:.1f} |"
            for name, words in JOB_WAYS.items()
        ),
    )
    above = [100 * (ways["swarm"]["loss"] / ways[name]["loss"] - 1) for name in ("adamw", "muon")]
    yield Figure(
        document,
        "The swarm's is {:.1f} % above that of AdamW and {:.1f} % above that of Muon",
        (above[0], above[1]),
    )
    received = measured["received_bytes_per_round"]
    yield Figure(
        document,
        "A node received {:,.0f} bytes of updates a round, {:,.0f} times fewer than an all-reduce",
        (received, measured["dense_bytes_per_round"] / received),
    )
    yield WholeTable(
        document,
        "| node | bytes sent | bytes received |",
        tuple(
            f"| {number} | {member['sent']:,} | {member['received']:,} |"
            for number, member in enumerate(measured["members"], 1)
        ),
    )
    export = measured["export"]
    yield Figure(
        document,
        "where its perplexity on the held-out text is {:.4f}; here it is {:.4f}.",
        (export["transformers_perplexity"], export["program_perplexity"]),
    )
    yield WholeTable(
        document,
        "| after round | text |",
        tuple(
            f"| {sample['round']} | {_as_code(next(iter(sample['texts'].values())))} |"
            for sample in measured["samples"]
        ),
    )


def _line(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def _as_code(text: str) -> str:
    """A text in a cell of a table, on one line, its marks without a meaning."""
    line = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{line}`"


def tariffs() -> Iterator[Figure]:
    """What pausing by price moves, and costs."""
    measured = results("tariffs")
    setting, means = measured["setting"], measured["means"]
    words = {
        "always": "always on",
        "threshold": "by price, one bound",
        "hysteresis": "by price, with hysteresis",
        "night": "22:00-07:00",
    }
    yield table(
        "docs/energy.md",
        "| returns of a member | nobody there, % |",
        8,
        [
            (
                f"| {words[name]} | {{:.0f}} | {{:.0f}} | {{:.1f}} | {{:.0f}} | {{:.0f}} | {{:.1f}} | "
                "{:.1f} |",
                (
                    mean["kwh"],
                    100 * mean["cheap_share"],
                    mean["price"],
                    100 * mean["updates_share"],
                    100 * mean["cost_per_update_share"],
                    mean["returns"],
                    100 * mean["still_share"],
                ),
            )
            for name, mean in means.items()
        ],
    )
    usual = means["hysteresis"]
    yield Figure(
        "docs/energy.md",
        "{:d} members with {:.0f} W each, a third in each of three time zones, over {:d} weeks",
        (setting["members"], setting["watts"], measured["seeds"]),
    )
    yield Figure(
        "docs/energy.md",
        "{:.0f} % of the energy falls into the cheaper half of the hours instead of {:.0f} %, a kWh "
        "costs {:.0f} % less, and the swarm gets {:.0f} % of the updates",
        (
            100 * usual["cheap_share"],
            100 * means["always"]["cheap_share"],
            100 * (1 - usual["price"] / means["always"]["price"]),
            100 * usual["updates_share"],
        ),
    )


CHECKED = ("0.14M", "0.9M", "3M")


CHECKED_NOW = {
    "preconditioner muon, smoothing 0.7, momentum 0.97, step scaled": "the default now",
    "preconditioner muon, momentum 0.97, step scaled": "the same without smoothing",
}


def checks() -> Iterator[Figure | WholeTable]:
    """How well honest work is told from other work."""
    measured = results("checks")
    usual = {case["size"]: case for case in measured["cases"] if case["label"] == "usual"}

    def heading(first: str, *columns: str) -> str:
        named = ((f"{size}: {columns[0]}", *columns[1:]) for size in CHECKED)
        return _line((first, *(cell for cells in named for cell in cells)))

    def row(name: str, cells: Callable[[dict[str, Any]], Iterable[str]], columns: int) -> str:
        all_cells: list[str] = []
        for size in CHECKED:
            all_cells += cells(usual[size]) if size in usual else ["–"] * columns
        return _line((name, *all_cells))

    def statistic(name: str) -> str:
        def cells(case: dict[str, Any]) -> list[str]:
            if name not in case["statistics"]:
                return ["–"] * 3
            found = case["statistics"][name]
            return [
                f"{found['least_auc']:.3f}",
                f"{100 * found['honest_low']:.1f} %",
                f"{100 * found['strangers_pass']:.0f} %",
            ]

        bold = f"**{name}**" if name == measured["statistic"] else name
        return row(bold, cells, 3)

    names = [
        name
        for name in dict.fromkeys(name for case in usual.values() for name in case["statistics"])
        if not name.startswith(("control: ", "least tensor"))
    ]
    yield WholeTable(
        "docs/checks.md",
        heading("statistic", "AUC", "honest low", "others pass"),
        tuple(statistic(name) for name in names),
    )

    yield Figure(
        "docs/checks.md",
        "had a least AUC of {:.3f} in the smallest model and {:.3f} in the middle one",
        tuple(usual[size]["mixture"]["least_auc"] for size in CHECKED[:2]),
    )

    small, middle = (usual[size]["statistics"] for size in CHECKED[:2])
    yield Figure(
        "docs/checks.md",
        "honest scores of {:.1f} fall to {:.1f} at 0.14M",
        (
            small["less others' signs"]["honest_mean"],
            small["less others' signs, one a copy"]["honest_mean"],
        ),
    )
    alike = [case["honest"]["correlation_of_checkers"] for case in usual.values()]
    yield Figure("docs/checks.md", "correlate with {:.2f} to {:.2f}", (min(alike), max(alike)))
    updates = [usual[size]["opponents"]["other data"]["updates"] for size in CHECKED]
    yield Figure(
        "docs/checks.md", "so {:d} updates at 0.14M, {:d} at 0.9M and {:d} at 3M", tuple(updates)
    )
    honest = [usual[size]["honest"]["first_half"] for size in CHECKED]
    yield Figure(
        "docs/checks.md",
        "in honest updates first halves are at {:.2f} ± {:.2f}, {:.2f} ± {:.2f} and {:.2f} ± {:.2f}",
        tuple(part[name] for part in honest for name in ("mean", "deviation")),
    )
    for who, place in (
        ("the first half of each sequence", "who computes first halves has them at"),
        ("the second half of each sequence", "who computes second ones at"),
        ("three quarters of each sequence", "Who leaves out the last quarter is at"),
    ):
        others = [usual[size]["opponents"][who] for size in CHECKED]
        yield Figure(
            "docs/checks.md",
            place + " {:.2f}, {:.2f} and {:.2f}",
            tuple(found["first_half"]["mean"] for found in others),
        )
        if who.endswith("half of each sequence"):
            yield Figure(
                "docs/checks.md",
                f"{who} is told after {{:.0f}}, {{:.0f}} and {{:.0f}} checks",
                tuple(found["checks_until_found"] for found in others),
            )
    near = (
        "the first half of each sequence",
        "the second half of each sequence",
        "only the upper half's gradients",
        "half of the signs at random",
    )
    rows = []
    for fresh in results("checks-fresh")["cases"]:
        after = [f"{fresh['opponents'][who]['checks_until_found']:.0f}" for who in near]
        rows.append(_line((fresh["size"], f"{fresh['usual']:.1f}", *after)))
    yield WholeTable(
        "docs/checks.md",
        "| a third seed | usual score | first half found after | second half "
        "| upper half's gradients | half of the signs at random |",
        tuple(rows),
    )
    least = middle["least tensor, plain"]
    yield Figure(
        "docs/checks.md",
        "it is {:.1f} ± {:.1f} for the honest at 0.9M and, with a d′ of {:.1f}, far below",
        (
            least["honest_mean"],
            least["honest_deviation"],
            least["apart"]["poisons the head"][0],
        ),
    )

    def somebody(kind: str, name: str) -> str:
        def cells(case: dict[str, Any]) -> list[str]:
            if name not in case[kind]:
                return ["–"] * 3
            found = case[kind][name]
            until = found["checks_until_found"]
            return [
                f"{found['mean']:.1f} ± {found['deviation']:.1f}",
                "not found" if until is None else f"{until:.0f}",
                f"{100 * found['found_share']:.0f} %",
            ]

        return row(name, cells, 3)

    largest = usual[max(usual, key=lambda size: usual[size]["parameters"])]
    yield WholeTable(
        "docs/checks.md",
        heading("who", "score", "found after", "within 20"),
        tuple(
            somebody(kind, name)
            for kind in ("honest_elsewhere", "opponents")
            for name in largest[kind]
        ),
    )
    now = results("checks-now")["cases"]
    rows = []
    for case in (*measured["cases"], *now):
        honest, cost = case["honest"], case["cost"]
        once = max(fit["fails_first"] for fit in honest["fitted"].values())
        both = max(fit["fails"] for fit in honest["fitted"].values())
        cells = (
            f"{case['size']}, {CHECKED_NOW.get(case['label'], case['label'])}",
            f"{case['coefficients']:,}",
            f"{honest['checks']:,}",
            f"{honest['mean']:.1f} ± {honest['deviation']:.1f}",
            f"{honest['lowest']:.1f}",
            f"{case['passing']:.1f}",
            f"{100 * honest['failed_first_look']:.1f} % / {100 * once:.2f} %",
            f"{100 * honest['failed_both']:.1f} % / {both:.0e}",
            f"{case['false_accusation_rate']:.0e}",
            f"{cost['sequences_a_look']:.1f}",
            f"{cost['rounds_a_check']:d} ({100 * cost['share']:.1f} %)",
        )
        rows.append(_line(cells))
    yield WholeTable(
        "docs/checks.md",
        "| case | N | honest checks | honest score | lowest | passes from | one look fails: counted / "
        "fitted | both fail: counted / fitted | false accusations a check | a look, in sequences | one "
        "check in so many rounds |",
        tuple(rows),
    )
    rows = []
    for who in ("other data", "half of its share", *near, "a cheaper model, half of the layers"):
        cells = [who]
        for case in now:
            if case["size"] in CHECKED[1:]:
                found = case["opponents"][who]
                share = f"{100 * found['found_share']:.0f} %"
                cells += [
                    f"{found['mean']:.1f} ± {found['deviation']:.1f}",
                    f"{found['checks_until_found']:.0f}",
                    share,
                ]
        rows.append(_line(cells))
    columns = ("score", "found after", "within 20")
    yield WholeTable(
        "docs/checks.md",
        _line(
            (
                "the default now",
                *(f"{size}: {column}" for size in CHECKED[1:] for column in columns),
            )
        ),
        tuple(rows),
    )


def look_cost() -> Iterator[Figure]:
    """What looks cost where the line leaves pauses."""
    measured = results("look-cost")
    hours, (watched,) = measured["rounds_per_hour"], measured["swarms"]["with"]
    yield Figure(
        "docs/checks.md",
        "kbit/s make {:.1f} rounds an hour without looks and {:.1f} with {:d} of them in {:d} rounds",
        (hours["without"], hours["with"], watched["looks"], measured["settings"]["rounds"]),
    )


def usual() -> Iterator[WholeTable]:
    """What too few looks say of what is usual."""
    measured = results("usual")
    rows = []
    for case in measured["cases"]:
        cells = (
            case["votes"],
            f"{case['deviation']:.2f}",
            f"{case['looks']:d}",
            f"{case['usual_mean']:.2f}",
            f"{case['usual_once_in_a_thousand']:.2f}",
            f"{case['failures_a_look']:.0e}",
        )
        rows.append(_line(cells))
    yield WholeTable(
        "docs/checks.md",
        "| votes | a score's deviation | looks | the usual score, in parts of the mean "
        "| once in 1,000 swarms | failures a look |",
        tuple(rows),
    )


def slow_looks() -> Iterator[WholeTable]:
    """How soon a cheat is found where second looks are slow."""
    measured = results("slow-looks")

    def told(case: dict[str, Any]) -> str:
        if case["median"] is None:
            return f"{case['never']:d} of {measured['swarms']:d} never"
        return f"{case['median']:.0f}" + (f", {case['never']:d} never" if case["never"] else "")

    sizes = sorted({case["members"] for case in measured["cases"]})
    found = {(case["takes"], case["members"]): case for case in measured["cases"]}
    rows = []
    for takes in sorted({case["takes"] for case in measured["cases"]}):
        cases = [found[takes, size] for size in sizes]
        told_of = [told(case[order]) for case in cases for order in ("the same", "the newest")]
        rows.append(_line((str(takes), *told_of)))
    heads = [head for size in sizes for head in (f"{size} members: the same", "the newest")]
    yield WholeTable("docs/checks.md", _line(("rounds a look takes", *heads)), tuple(rows))


def votes() -> Iterator[Figure | WholeTable]:
    """What crowds come to against votes that cost work."""
    measured = results("votes")
    rows = []
    for name, found in measured["attacks"].items():
        waited = found["half_of_the_honest_vote_after"]
        cells = (
            name,
            f"{100 * found['votes_most']:.1f} %",
            f"{100 * found['votes_last']:.1f} %",
            f"{100 * found['heads_most']:.0f} %",
            f"{100 * found['updates_mean']:.0f} %",
            f"{found['found']:,.0f}",
            f"{found['honest_accused']:d}",
            "never" if waited is None else f"{waited:d} rounds",
        )
        rows.append(_line(cells))
    yield WholeTable(
        "docs/checks.md",
        "| the tenth of the work is done | votes: most | at last | by heads | of all updates | shown "
        "the door | honest ones shown the door | half of the honest vote after |",
        tuple(rows),
    )
    alone = measured["honest_alone"]
    yield Figure(
        "docs/checks.md",
        "In {:,d} checks of honest members alone, {:d} were accused",
        (alone["checks"], alone["accused"]),
    )


def poison() -> Iterator[Figure | WholeTable]:
    """What a hostile quarter does to learning."""
    measured = results("poison")
    audit, checked = measured["guards"]["audit"], measured["guards"]["checks"]
    rows = []
    for way, found in checked.items():
        if way == "absent":
            continue
        # What they do once they vote, or when they look, nobody does where there are no looks.
        alone = (
            audit[way]
            if way not in ("the same, once it votes", "the same, and false looks")
            else None
        )
        out = [number for run in found["found"] for number in run]
        hostile = len(found["found"]) * measured["members"] // 4
        when = f"{statistics.median(out):.0f}, {len(out)} of {hostile}" if out else "never"
        cells = (
            way,
            "–" if alone is None else f"{100 * alone['above_absent']:+.1f} %",
            "–" if alone is None else f"{100 * alone['lies_in_the_step']:.0f} %",
            f"{100 * found['above_absent']:+.1f} %",
            f"{100 * found['lies_in_the_step']:.0f} %",
            when,
            f"{found['honest_out']}",
        )
        rows.append(_line(cells))
    yield WholeTable(
        "docs/checks.md",
        "| a quarter sends | audit alone: loss | lies in the step | with checks: loss | lies in the "
        "step | found out after round | honest ones left out |",
        tuple(rows),
    )
    one, scaled_steps = "all for one parameter", results("poison-scaled")["guards"]["audit"]
    signs = {guard: ways[one] for guard, ways in results("poison-one")["guards"].items()}
    yield Figure(
        "docs/checks.md",
        "costs {:+.1f} % with the audit alone and {:+.1f} % with checks. Swarms without checks",
        (100 * signs["audit"]["above_absent"], 100 * signs["checks"]["above_absent"]),
    )
    yield Figure(
        "docs/checks.md",
        "the opposite costs {:+.1f} % then, lies where others are silent {:+.1f} %, and all for one "
        "parameter {:+.1f} %",
        tuple(
            100 * scaled_steps[way]["above_absent"]
            for way in ("opposite", "lies where others are silent", one)
        ),
    )
    larger = {
        kind: results(f"poison-checked-{kind}")["guards"]["checks"] for kind in ("signs", "now")
    }
    rows = []
    for way, found in larger["now"].items():
        cells = [way]
        for kind in larger:
            here = larger[kind].get(way)
            above = (
                "–" if here is None or way == "absent" else f"{100 * here['above_absent']:+.1f} %"
            )
            cells += ["–" if here is None else f"{here['loss']:.3f}", above]
        rows.append(_line((*cells, f"{found['honest_out']}")))
    yield WholeTable(
        "docs/checks.md",
        "| a quarter sends, with 918,656 parameters | signs: loss | beside absent | the default now: "
        "loss | beside absent | honest ones accused |",
        tuple(rows),
    )
    when = [
        round_
        for ways in larger.values()
        for found in ways.values()
        for run in found["found"]
        for round_ in run
    ]
    yield Figure("docs/checks.md", "found, between rounds {:d} and {:d},", (min(when), max(when)))
    worst = max(
        found["above_absent"]
        for found in (*checked.values(), signs["checks"], *larger["signs"].values())
    )
    without = max(
        found["above_absent"] for found in (*audit.values(), signs["audit"], *scaled_steps.values())
    )
    yield Figure(
        "docs/threats.md",
        "a hostile quarter costs {:.1f} % of the loss at most with them, {:.1f} % where the founder has "
        "asked for `muon` as well, and {:.1f} % with the audit alone",
        tuple(
            100 * each
            for each in (
                worst,
                max(found["above_absent"] for found in larger["now"].values()),
                without,
            )
        ),
    )


def shares() -> Iterator[Figure]:
    """What shares by speed are worth to members of different speeds."""
    measured = results("shares")
    rounds = measured["rounds_per_hour"]
    yield Figure(
        "docs/protocol.md",
        "{:.0f} rounds an hour with equal shares, {:.0f} with shares by speed, and {:.0f} if nothing",
        (rounds["equal"], rounds["by_speed"], rounds["ideal"]),
    )
    yield Figure(
        "docs/protocol.md",
        "of which shares by speed reach {:.0f} %",
        (100 * measured["of_ideal"]["by_speed"],),
    )
    unequal = results("unequal")
    apart = {way: 100 * above for way, above in unequal["above_equal"].items()}
    yield Figure(
        "docs/protocol.md",
        "{:.2f} % above that of equal shares, mean of {:d} seeds",
        (apart["by speed"], len(unequal["seeds"])),
    )
    seeds = [100 * above for above in unequal["above_equal_by_seed"]["twice"]]
    yield Figure(
        "docs/protocol.md",
        "By this rule it is {:.2f} % above it, though seeds lie far apart (from {:+.1f} to {:+.1f} %)",
        (apart["twice"], min(seeds), max(seeds)),
    )
    yield Figure(
        "docs/protocol.md",
        "the same updates come to it within {:.2f} %, and choosing k by the share",
        (abs(apart["weighed"]),),
    )
    yield Figure("docs/protocol.md", "all together, brings {:+.2f} %.", (apart["k by share"],))


def private() -> Iterator[Figure | WholeTable]:
    """What is learned from data that is not shared, and what updates tell of it."""
    document = "docs/private-data.md"
    measured, attack = results("private"), results("membership")
    plain, noisy = [], []
    for name, run in measured["runs"].items():
        losses = list(run["heldout"].values())
        cells = [f"{loss:.2f}" for loss in (*losses, sum(losses) / len(losses))]
        large = run["way"]["rounds"] != measured["runs"]["federated"]["way"]["rounds"]
        words = name.replace("epsilon", "ε =")
        if large:
            noise = f"{sum(run['noise']) / len(run['noise']):.2f}" if run["noise"] else "–"
            noisy.append(f"| {words} | {noise} | {' | '.join(cells)} |")
        else:
            plain.append(f"| {words} | {' | '.join(cells)} |")
    texts = " | ".join(measured["texts"])
    yield WholeTable(document, f"| | {texts} | mean |", tuple(plain))
    yield WholeTable(document, f"| | noise | {texts} | mean |", tuple(noisy))
    rows = []
    for name, run in attack["runs"].items():
        (area, error), (earlier, _) = run["auc"], run["earlier_auc"]
        noise = f"{run['noise'][0]:.2f}" if run["noise"] else "–"
        words, count = name.replace("epsilon", "ε ="), len(run["scores"]["in"])
        rows.append(f"| {words} | {noise} | {area:.2f} ± {error:.2f} | {count} | {earlier:.2f} |")
    heading = "| what the victim does | noise | AUC | of | earlier |"
    yield WholeTable(document, heading, tuple(rows))
    yield Figure(
        document,
        "The model was small ({:,d} parameters)",
        (attack["parameters"],),
    )
    yield Figure(
        document,
        "A Llama of {:,d} parameters over bytes, one run each",
        (measured["parameters"],),
    )


SOURCES: tuple[Callable[[], Iterator[Figure | WholeTable]], ...] = (
    audit,
    codec,
    speaking,
    simulator,
    optimizer,
    overlap,
    precision,
    memory,
    learning,
    convergence,
    strangers,
    fuzzing,
    decoding,
    creating,
    finetuning,
    diffusion,
    frontier,
    smoothing,
    scaled,
    limits,
    in_common,
    overlap_now,
    peak_rates,
    rule_of_rates,
    local_steps,
    growth,
    ladder,
    left,
    job,
    page,
    tariffs,
    checks,
    look_cost,
    usual,
    slow_looks,
    votes,
    poison,
    shares,
    private,
)


def three_digits(value: float) -> str:
    """How to write a time with three digits, but no more than two behind the point."""
    return ".2f" if value < 10 else ".1f" if value < 100 else ".0f"


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write the benchmarks' figures into the documents."
    )
    parser.add_argument(
        "--check", action="store_true", help="name those that differ, write nothing"
    )
    check = parser.parse_args().check
    texts, problems = rewritten(figure for source in SOURCES for figure in source())
    for document, (before, after) in texts.items():
        if check:
            pairs = zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
            problems += [f"{document}: {new.strip()}" for old, new in pairs if old != new]
        elif before != after:
            (CHECKOUT / document).write_text(after, encoding="utf-8")
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
