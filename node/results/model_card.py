"""The model card: what a model is, its origin, and how to verify it.

Everything in it follows from the manifest and the chain of records. Names come from strangers and
are escaped so that they stay text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ...crypto.identity import peer_text
from ...protocol.chain.ledger import Ledger
from ...protocol.wire.manifest import Manifest
from ...protocol.wire.structure import to_plain
from ...protocol.wire.swarm_id import swarm_text
from ..telemetry.task_scores import TaskScores
from ..training.gguf_formats import GgufType, gguf_name
from ..training.task_names import (
    CAUSAL_LM,
    CLASSIFICATION,
    DIFFUSION,
    IMAGE_CLASSIFICATION,
    LOSS_UNITS,
    MASKED_LM,
    ON_IMAGES,
    TEXT_CLASSIFICATION,
    ImageClassSettings,
)
from .contribution_table import announced_work
from .loss_curve import CURVE_NAME, Curve, curve_image, thinned, training_losses
from .saved_state import State, class_settings, image_settings

PROVENANCE_NAME = "distro-node.json"
# Most rows of a list: some hundred members fill a page, and the ledger has them all.
_MEMBERS_SHOWN = 100
_CLASSES_SHOWN = 100
_SOURCES_SHOWN = 100
_SCORES_SHOWN = 100
# By task: the kind of model on Hugging Face's pages, and the class that opens it.
_TEXT_MODEL = ("text-generation", "AutoModelForCausalLM")
_MODEL_KINDS = {
    MASKED_LM: ("fill-mask", "AutoModelForMaskedLM"),
    DIFFUSION: ("unconditional-image-generation", "UNet2DModel"),
    TEXT_CLASSIFICATION: ("text-classification", "AutoModelForSequenceClassification"),
    IMAGE_CLASSIFICATION: ("image-classification", "AutoModelForImageClassification"),
}


def provenance(
    state: State, *, heldout: Curve, scores: Sequence[TaskScores] = ()
) -> dict[str, Any]:
    """Return the card's facts, for programs; `heldout`: the held-out losses that this node measured up
    to this state; `scores`: those of this state at tasks."""
    manifest, ledger = state.stored.manifest, state.stored.ledger
    data, images, classes = manifest.data, image_settings(manifest), class_settings(manifest)
    if images is None and isinstance(classes, ImageClassSettings):
        images = classes
    return {
        "swarm": swarm_text(manifest.swarm),
        "name": manifest.name,
        "round": state.round,
        "last_round": manifest.last_round,
        "record": state.record.hex(),
        "agreed": state.agreed,
        "fingerprint": f"{state.fingerprint:016x}",
        "snapshot": _snapshot(ledger, state.round),
        "parameters": manifest.elements,
        "adapter": _adapter(manifest),
        "task": manifest.task,
        **({} if images is None else {"images": to_plain(images, named=True)}),
        **({} if classes is None else {"classes": list(classes.classes)}),
        "heldout_loss": dict(heldout).get(state.round),
        "losses": {
            "training": thinned(training_losses(ledger, state.round)),
            "heldout": thinned(heldout),
        },
        "evaluations": [to_plain(each, named=True) for each in scores],
        "data": {
            **({} if data.private is None else {"private": True}),
            "sequence_length": data.sequence_length,
            "vocabulary": data.vocabulary,
            "tokens": sum(shard.tokens for shard in data.shards),
            "heldout_tokens": data.heldout.tokens,
            "shards": len(data.shards),
            "mirrors": list(data.mirrors),
            "sources": [to_plain(source, named=True) for source in data.sources or ()],
        },
        "trained": {"rounds": state.round, **contributions(ledger, state.round)},
        "founder": peer_text(manifest.founder),
    }


def contributions(ledger: Ledger, last: int) -> dict[str, Any]:
    """Return, from the records up to round `last`, the tokens and rounds of every member, the member
    with the most tokens first."""
    done = announced_work(ledger, last)
    order = sorted(done, key=lambda peer: (-done[peer][1], peer))
    return {
        "tokens": sum(tokens for _, tokens in done.values()),
        "members": [
            {"peer": peer_text(peer), "rounds": done[peer][0], "tokens": done[peer][1]}
            for peer in order
        ],
    }


def card(
    facts: dict[str, Any],
    model: dict[str, Any],
    *,
    merged: bool = False,
    gguf: GgufType | None = None,
) -> str:
    """Return the card as Markdown, with the metadata header for Hugging Face's pages; `merged`: the
    adapters are merged into the weights; `gguf`: the weights are a GGUF file of this type."""
    full_weights = merged or gguf is not None or facts["adapter"] is None
    data, last = facts["data"], facts["last_round"]
    of = "" if last is None else f" of {last:,}"
    pipeline, opener = _MODEL_KINDS.get(facts["task"], _TEXT_MODEL)
    unit = _loss_unit(facts)
    images = facts["task"] in ON_IMAGES
    library = (
        "diffusers" if facts["task"] == DIFFUSION else "transformers" if full_weights else "peft"
    )
    if gguf is not None:
        library = "gguf"
        usage = _gguf_usage_code(gguf)
    elif facts["task"] == DIFFUSION:
        usage = _image_usage_code(facts["images"])
    elif facts["task"] in CLASSIFICATION:
        usage = _classifier_usage_code(facts["task"], opener, facts["classes"])
    else:
        usage = _usage_code(opener, full_weights)
    lines = (
        "---",
        f"library_name: {library}",
        f"pipeline_tag: {pipeline}",
        "tags: [distro-node]",
        "---",
        f"# {_plain(facts['name'])}",
        "",
        *_introduction(facts, model["model_type"], of),
        *usage,
        "",
        "## Provenance",
        "",
        *_provenance_table(facts, unit),
        "",
        "Check it, on a machine that has joined the swarm at any time:",
        "",
        *_verification(facts["swarm"], facts["round"], gguf),
        "",
        *_learning(facts, unit),
        *_evaluations(facts["evaluations"]),
        "## Data",
        "",
        _data_text(facts) + _data_location(data["mirrors"], images),
        "",
        *_sources(data["sources"], images),
        "## Who trained it",
        "",
        *_members(facts["trained"]["members"], _work_unit(facts["task"])),
        "",
    )
    return "\n".join(lines)


def _provenance_table(facts: dict[str, Any], unit: str) -> Iterator[str]:
    """Yield a table with the state's place in the swarm; `unit` is that of the loss."""
    yield "| | |"
    yield "|---|---|"
    yield f"| swarm | `{facts['swarm']}` |"
    yield f"| round | {facts['round']:,} |"
    yield f"| record | `{facts['record']}` |"
    yield f"| fingerprint of the parameters | `{facts['fingerprint']}` |"
    if facts["snapshot"]:
        yield f"| certified content id of the parameters | `{facts['snapshot']}` |"
    if facts["heldout_loss"] is not None:
        yield f"| held-out loss | {facts['heldout_loss']:.4f} {unit} |"
    if not facts["agreed"]:
        yield "| agreed on | not yet: the next record decides whether these are the parameters |"


def _members(members: list[dict[str, Any]], unit: str) -> Iterator[str]:
    """Yield a table with a row per member, and one for those that are not shown; `unit` is that of their
    work."""
    yield f"| member | rounds | {unit} |"
    yield "|---|---:|---:|"
    for each in members[:_MEMBERS_SHOWN]:
        yield f"| `{each['peer']}` | {each['rounds']:,} | {each['tokens']:,} |"
    if len(members) > _MEMBERS_SHOWN:
        rest = members[_MEMBERS_SHOWN:]
        rounds, tokens = (sum(each[key] for each in rest) for key in ("rounds", "tokens"))
        yield f"| {len(rest):,} more | {rounds:,} | {tokens:,} |"


def loss_image(facts: dict[str, Any]) -> str | None:
    """Return the loss by round as SVG; None if there are too few measurements for a line."""
    return curve_image(facts["losses"]["training"], facts["losses"]["heldout"], _loss_unit(facts))


def _loss_unit(facts: dict[str, Any]) -> str:
    return LOSS_UNITS.get(facts["task"], LOSS_UNITS[CAUSAL_LM])


def _learning(facts: dict[str, Any], unit: str) -> list[str]:
    """Return the section on the loss by round, if there is a curve of it."""
    if loss_image(facts) is None:
        return []
    lines = ["## Loss", "", f"![Loss by round]({CURVE_NAME})", ""]
    kinds = (
        ("training", "on the samples of each round, as members announced it"),
        ("heldout", "on held-out samples, as measured by the node that exported this"),
    )
    for key, what in kinds:
        curve = facts["losses"][key]
        if curve:
            (first, start), (last, end) = curve[0], curve[-1]
            lines.append(
                f"- {what}: {start:.4f} {unit} at round {first:,}, {end:.4f} at round {last:,}"
            )
    return [*lines, ""]


def _evaluations(measured: list[dict[str, Any]]) -> list[str]:
    """Return the section on scores at tasks; of several of the same kind, the one over the most
    questions, and of these the last one."""
    found: dict[tuple[str, str, str], tuple[dict[str, Any], dict[str, Any]]] = {}
    for scores in measured:
        shots = "default" if scores["fewshot"] is None else f"{scores['fewshot']:,}"
        way = f"{shots}{', as chat' if scores.get('chat') else ''}"
        for each in scores["tasks"]:
            known = found.get((each["task"], each["metric"], way))
            if known is None or _questions(each, scores) >= _questions(*known):
                found[each["task"], each["metric"], way] = (each, scores)
    if not found:
        return []
    rows = []
    for (task, metric, way), (each, scores) in sorted(found.items())[:_SCORES_SHOWN]:
        error = "" if each["error"] is None else f" ± {each['error']:.4f}"
        questions = _questions(each, scores)
        asked = "" if questions == math.inf else f"{questions:,}"
        # A group of tasks has no number of its own: the limit holds for each of its tasks.
        of = " a task" if each["samples"] is None and asked else ""
        rows.append(
            f"| {_plain(task)} | {_plain(metric)} | {each['value']:.4f}{error} | {asked}{of} | {way} | "
            f"{_plain(scores['lm_eval'] or '')} |"
        )
    return [
        "## Evaluations",
        "",
        "Of exactly these parameters, by `distro-node evaluate` or by a member:",
        "",
        "| task | metric | value | questions | examples before each | lm-eval |",
        "|---|---|---:|---:|---|---|",
        *rows,
        "",
    ]


def _questions(score: dict[str, Any], scores: dict[str, Any]) -> float:
    """Return over how many questions one of `scores` is; if that is unknown, the most that it can be."""
    if score["samples"] is not None:
        return score["samples"]
    return math.inf if scores["limit"] is None else scores["limit"]


def _verification(swarm: str, round_: int, gguf: GgufType | None) -> list[str]:
    """Return how to check that the weights are the swarm's."""
    if gguf is None:
        return [
            "```sh",
            f"distro-node verify . {swarm}",
            "```",
            "",
            "It recomputes the fingerprint from the weights in this directory and compares it with "
            "the record that the swarm's members have signed.",
        ]
    return [
        "```sh",
        f"distro-node export {swarm} --round {round_} --gguf --quantise {gguf} --to again",
        f"cmp {gguf_name(gguf)} again/{gguf_name(gguf)}",
        "```",
        "",
        "The same release of distro-node writes the same bytes from the weights that the swarm's "
        "members agreed on.",
    ]


def _gguf_usage_code(gguf: GgufType) -> list[str]:
    """Return the commands that open a GGUF file."""
    name = gguf_name(gguf)
    return [
        "```sh",
        f"llama-cli -m {name}  # llama.cpp",
        f'echo "FROM ./{name}" > Modelfile && ollama create my-model',
        "```",
        "",
        "LM Studio imports the file, too (`lms import`).",
    ]


def _data_text(facts: dict[str, Any]) -> str:
    data = facts["data"]
    shards = f"{data['shards']:,} {'shard' if data['shards'] == 1 else 'shards'}"
    if facts["task"] in (*ON_IMAGES, TEXT_CLASSIFICATION):
        # After the last image of a shard comes one more byte.
        trained, held = (
            (data[key] - count) // data["sequence_length"]
            for key, count in (("tokens", data["shards"]), ("heldout_tokens", 1))
        )
        if facts["task"] == TEXT_CLASSIFICATION:
            return (
                f"{trained:,} texts of {len(facts['classes']):,} classes in {shards} and {held:,} held "
                f"out, of at most {data['sequence_length'] - 1:,} tokens each, with a vocabulary of "
                f"{data['vocabulary']:,}. "
            )
        images = facts["images"]
        of = f" of {len(images['classes']):,} classes" if images["classes"] else ""
        shades = "in colour" if images["channels"] == 3 else "in shades of grey"
        return (
            f"{trained:,} images{of} in {shards} and {held:,} held out, of {images['size']:,} × "
            f"{images['size']:,} pixels {shades}. "
        )
    if data.get("private"):
        return (
            "Each member trained on files of its own, which no other member has seen; "
            f"{data['heldout_tokens']:,} public tokens were held out, with a vocabulary of "
            f"{data['vocabulary']:,}, in sequences of {data['sequence_length']:,}. "
        )
    return (
        f"{data['tokens']:,} tokens of training text in {shards} and "
        f"{data['heldout_tokens']:,} tokens held out, with a vocabulary of {data['vocabulary']:,}, in "
        f"sequences of {data['sequence_length']:,}. "
    )


def _sources(sources: list[dict[str, Any]], images: bool) -> list[str]:
    """Return a table with a row per source, followed by an empty line."""
    if not sources:
        return []
    what, unit = ("images", "values") if images else ("documents", "tokens")
    rows = [
        f"| {_plain(each['name'])} | {each['documents']:,} | {each['tokens']:,} | "
        f"{100 * each['share']:.1f} % |"
        for each in sources[:_SOURCES_SHOWN]
    ]
    if len(sources) > _SOURCES_SHOWN:
        rest = sources[_SOURCES_SHOWN:]
        documents, tokens, share = (
            sum(s[k] for s in rest) for k in ("documents", "tokens", "share")
        )
        rows.append(f"| {len(rest):,} more | {documents:,} | {tokens:,} | {100 * share:.1f} % |")
    return [
        f"| source, as its founder calls it | {what} | {unit} | of an epoch |",
        "|---|---:|---:|---:|",
        *rows,
        "",
    ]


def _data_location(mirrors: list[str], images: bool) -> str:
    content = "The images as bytes" if images else "The text as tokens"
    if mirrors:
        return f"{content}, by content id: " + ", ".join(map(_plain, mirrors)) + "."
    return f"The members have {content[0].lower()}{content[1:]}, by content id."


def _image_usage_code(images: dict[str, Any]) -> list[str]:
    """Return the code that opens a model of images: as a pipeline or, if the model takes a class, in
    parts."""
    if not images["classes"]:
        return [
            "```python",
            "from diffusers import DDPMPipeline",
            "",
            'pipeline = DDPMPipeline.from_pretrained(".")',
            "image = pipeline().images[0]",
            "```",
        ]
    shown = ", ".join(
        f"{number}: {_plain(name)}"
        for number, name in enumerate(images["classes"][:_CLASSES_SHOWN])
    )
    more = len(images["classes"]) > _CLASSES_SHOWN
    return [
        "```python",
        "from diffusers import DDPMScheduler, UNet2DModel",
        "",
        'model = UNet2DModel.from_pretrained(".", subfolder="unet")',
        'schedule = DDPMScheduler.from_pretrained(".", subfolder="scheduler")',
        "noise = model(noisy_images, steps, class_labels=classes).sample",
        "```",
        "",
        f"Its classes by number: {shown}{', …' if more else ''}.",
    ]


def _classifier_usage_code(task: str, opener: str, classes: list[str]) -> list[str]:
    """Return the code that opens a model that names classes, and the list of these."""
    text = task == TEXT_CLASSIFICATION
    reader = "PreTrainedTokenizerFast" if text else "AutoImageProcessor"
    name, given = ("tokenizer", "texts, padding=True") if text else ("processor", "images")
    shown = ", ".join(map(_plain, classes[:_CLASSES_SHOWN]))
    return [
        "```python",
        f"from transformers import {opener}, {reader}",
        "",
        f'{name} = {reader}.from_pretrained(".")',
        f'model = {opener}.from_pretrained(".")',
        f'scores = model(**{name}({given}, return_tensors="pt")).logits',
        "names = [model.config.id2label[int(row.argmax())] for row in scores]",
        "```",
        "",
        f"Its classes: {shown}{', …' if len(classes) > _CLASSES_SHOWN else ''}.",
    ]


def _usage_code(opener: str, full_weights: bool) -> list[str]:
    """Return the code that opens a model; for adapters that are not merged, with their base."""
    place = "." if full_weights else "path of the base"
    named = "model" if full_weights else "base"
    return [
        "```python",
        *(() if full_weights else ("from peft import PeftModel",)),
        f"from transformers import {opener}, PreTrainedTokenizerFast",
        "",
        # For some model families AutoTokenizer splits text in its own way, whatever the file says.
        'tokenizer = PreTrainedTokenizerFast.from_pretrained(".")',
        f'{named} = {opener}.from_pretrained("{place}")',
        *(() if full_weights else ('model = PeftModel.from_pretrained(base, ".")',)),
        "```",
    ]


def _work_unit(task: str) -> str:
    """Return the word for what members count of their work."""
    if task in CLASSIFICATION:
        return "samples"
    return "values of pixels" if task == DIFFUSION else "tokens"


def _introduction(facts: dict[str, Any], model_type: str, of: str) -> list[str]:
    unit = _work_unit(facts["task"])
    trained = (
        f"trained by the members of a swarm with distro-node: {facts['trained']['tokens']:,} {unit} in "
        f"{facts['round']:,}{of} rounds."
    )
    adapter = facts["adapter"]
    if adapter is None:
        return [f"A `{model_type}` with {facts['parameters']:,} parameters, {trained}", ""]
    return [
        f"Low-rank adapters of rank {adapter['rank']} and alpha {adapter['alpha']:g} with "
        f"{facts['parameters']:,} parameters, for a `{model_type}` with {adapter['base_parameters']:,} "
        f"frozen ones, {trained}",
        "",
        f"The base has the content id `{adapter['base']}`; `distro-node export --merged` writes "
        "it merged with the adapters, and with `--round 0` the base itself.",
        "",
    ]


def _adapter(manifest: Manifest) -> dict[str, Any] | None:
    spec = manifest.adapter
    return spec and {
        "rank": spec.rank,
        "alpha": spec.alpha,
        "targets": list(spec.targets),
        "base": spec.base.hex(),
        "base_parameters": spec.base_elements,
    }


def provenance_bytes(facts: dict[str, Any]) -> bytes:
    """Return the facts as JSON. It is pure ASCII, because it contains strangers' text, and people
    display it in a terminal."""
    return (json.dumps(facts, indent=2) + "\n").encode("ascii")


def _snapshot(ledger: Ledger, round_: int) -> str | None:
    """Return the content id of the state's snapshot if the next record certifies one, else None."""
    if round_ + 1 >= len(ledger):
        return None
    entry = ledger[round_ + 1].record.snapshot
    return entry.blob.hex() if entry is not None and entry.round == round_ else None


def _plain(text: str) -> str:
    """Remove or escape what Markdown or a terminal would interpret instead of showing it."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    # Escape web and mail addresses, too: many pages turn them into links.
    return re.sub(r"([\\`*_{}\[\]<>()#|!&~:@]|(?<=www)\.)", r"\\\1", " ".join(shown.split()))
