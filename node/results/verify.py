"""Verification that an exported model is what the swarm agreed on.

The weights in the directory are read into the manifest's own model, and their fingerprint and
content id are looked up in the chain of records on this disk, each certified by a quorum.
Configuration, tokenizer, chat template and generation settings follow from the manifest, and are
compared with it. Of what the directory says of itself, only the claimed swarm and round are used.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...crypto.hashing import content_id
from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import swarm_text
from ..errors import ExitCode, UserError
from ..settings.components import TrainerSettings
from ..storage.data_dir import DataDir
from ..training.answers import ExportedParameters
from ..training.client import TrainerDied, TrainerFailed, TrainerSpec, open_trainer
from ..training.error_messages import explain_trainer
from ..util.progress import ShowProgress, show_nothing
from ..util.regular_files import open_regular
from ..util.sanitize import harmless
from .loss_curve import CURVE_NAME
from .model_card import PROVENANCE_NAME
from .saved_state import StoredSwarm, read_swarm, showing_start

_MAX_PROVENANCE_BYTES = 16 << 20
# Files in which an export describes itself. What they claim is compared with the records, and no program
# takes a part of the model from them.
_DESCRIPTIONS = frozenset({"README.md", PROVENANCE_NAME, CURVE_NAME})


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """The arguments of `verify_model`."""

    directory: Path
    swarm: SwarmId
    data_dir: Path


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of a verification."""

    round: int
    record: str
    fingerprint: str
    proof: Literal["content", "fingerprint"]
    """`content`: a certified content id, which cannot be forged. `fingerprint`: the 64 bits in the
    record, which detect every accident, but an attacker with time could construct other parameters
    with the same ones."""
    unchecked: tuple[str, ...]
    """Other files in the directory that a program might read, and that were not verified."""


async def verify_model(settings: VerifySettings, progress: ShowProgress = show_nothing) -> Verified:
    """Find the round of the swarm that a directory's model comes from.

    Raises `UserError`: `NOT_THE_SWARMS` for a model that comes from none, or not from the claimed
    one, `USAGE` if the directory does not exist, and what `read_swarm` raises.
    """
    directory = settings.directory
    if not directory.is_dir():
        raise UserError(
            ExitCode.USAGE,
            f"{directory} is not a directory",
            "name a directory that `distro-node export` wrote",
        )
    converted = sorted(path.name for path in directory.glob("*.gguf"))
    if converted and not any(directory.glob("*.safetensors")):
        raise UserError(
            ExitCode.NO_GGUF,
            f"{directory} holds the model as {harmless(converted[0])}, and records certify the weights "
            "before their conversion",
            "verify an export without --gguf, or export the same round again with it: the file is the "
            "same byte for byte",
        )
    stored = await read_swarm(DataDir(settings.data_dir), settings.swarm)
    # Checked first, because this needs no trainer.
    claimed = _claims(directory, stored)
    found = await _compare(directory, stored, progress)
    rounds = _rounds(stored, found.fingerprint)
    if claimed is not None and claimed not in rounds:
        late = claimed + 1 >= len(stored.ledger)
        raise _not_the_swarms(
            directory,
            f"no record on this disk has a fingerprint of the parameters after round {claimed:,} yet"
            if late
            else f"it claims to be of round {claimed:,}, but the swarm agreed on other parameters "
            f"there",
        )
    if not rounds:
        raise _not_the_swarms(
            directory,
            f"no record on this disk has the fingerprint of its parameters, {found.fingerprint:016x}",
        )
    # A round's step may change nothing, so several rounds may match: the last one is reported.
    round_ = rounds[-1] if claimed is None else claimed
    # The next record may certify a snapshot of this state.
    entry = stored.ledger[round_ + 1].record.snapshot
    if entry is not None and entry.blob != content_id(found.blob_list):
        raise _not_the_swarms(
            directory, f"its parameters are not those that round {round_:,} certified"
        )
    return Verified(
        round=round_,
        record=stored.ledger.parent(round_ + 1).hex(),
        fingerprint=f"{found.fingerprint:016x}",
        proof="fingerprint" if entry is None else "content",
        unchecked=tuple(name for name in found.unchecked if name not in _DESCRIPTIONS),
    )


async def _compare(
    directory: Path, stored: StoredSwarm, progress: ShowProgress
) -> ExportedParameters:
    """Return the parameters of a directory's model. Raises `UserError` (`NOT_THE_SWARMS`) if it is built
    in another way than the swarm's."""
    spec = TrainerSpec(
        manifest=stored.manifest.encode(),
        blobs=stored.store.root,
        settings=TrainerSettings(device="cpu"),
        readable=(directory,),
    )
    try:
        async with showing_start(open_trainer(spec), progress) as trainer:
            progress("comparing the weights", 0, 1)
            found = await trainer.compare_export(directory)
    except TrainerFailed as failure:
        if failure.kind == "bad_model":
            raise _not_the_swarms(directory, str(failure)) from None
        raise explain_trainer(failure) from None
    except TrainerDied as failure:
        raise explain_trainer(failure) from None
    if found.differing:
        raise _not_the_swarms(
            directory, f"not as the swarm has it: {', '.join(found.differing[:5])}"
        )
    return found


def _rounds(stored: StoredSwarm, fingerprint: int) -> list[int]:
    """Return the rounds after which the swarm's parameters had this fingerprint."""
    ledger, closing = stored.ledger, stored.manifest.schedule.closing_round
    return [
        round_ - 1
        for round_ in range(1, min(len(ledger), (closing or len(ledger)) + 1))
        if ledger[round_].record.fingerprint == fingerprint
    ]


def _claims(directory: Path, stored: StoredSwarm) -> int | None:
    """Return the round that the directory claims; None if it claims none. Raises `UserError`
    (`NOT_THE_SWARMS`) if it claims another swarm."""
    facts: Any = None
    with (
        suppress(OSError, ValueError, RecursionError),
        open_regular(directory / PROVENANCE_NAME) as file,
    ):
        facts = json.loads(file.read(_MAX_PROVENANCE_BYTES))
    if not isinstance(facts, dict):
        return None
    swarm, round_ = facts.get("swarm"), facts.get("round")
    if isinstance(swarm, str) and swarm != swarm_text(stored.manifest.swarm):
        raise _not_the_swarms(directory, "it claims to be of another swarm")
    return round_ if type(round_) is int and 0 <= round_ < 1 << 62 else None


def _not_the_swarms(directory: Path, problem: str) -> UserError:
    return UserError(
        ExitCode.NOT_THE_SWARMS,
        f"{directory} is not the swarm's model: {problem}",
        "export the model again, or let this node catch up with the swarm if the model is of a "
        "later round",
    )
