"""Training on a member's own data in a swarm with private data: checks of the member's settings, reading
its files, drawing sequences for a round, and the end of the privacy budget."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import trio

from ...protocol.wire.manifest import Manifest
from ..errors import ExitCode, UserError
from ..settings.components import PrivacySettings, TrainerSettings
from ..settings.values import is_device_list
from ..storage.data_dir import SwarmDir
from ..telemetry.privacy import PrivacyStatus
from ..training.client import TrainerClient, TrainerDied, TrainerFailed, trainer_process
from ..training.error_messages import explain_trainer
from ..training.local_policy import Clipping, LocalPolicy
from ..training.training_data import TrainingData
from ..util.progress import ReportProgress
from .dp_budget import Budget, PrivacyAccount, read_account, spent_error, write_state
from .ingest_client import read_files
from .order import SampleOrder, draw_samples
from .store import PrivateFolder, PrivateIndex

_log = logging.getLogger(__name__)
# Without --delta, δ is at most this, and at most 0.1 divided by the number of sequences.
_MAX_DELTA = 1e-5
_PRIVACY_REMEDY = "docs/private-data.md explains --epsilon and --delta"


def check_choices(privacy: PrivacySettings, trainer: TrainerSettings, manifest: Manifest) -> None:
    """Check that the member's data and privacy settings fit the swarm, before anything is fetched.

    Raises `UserError` with `USAGE` for options that do not fit the swarm or each other, `DATA_MISSING`
    if no data is given, `PRIVACY` if the swarm requires a lower ε or δ, `TRAINER` if a package is
    missing.
    """
    spec = manifest.data.private
    if spec is None:
        if privacy.data or privacy.epsilon is not None:
            option = "--data" if privacy.data else "--epsilon"
            raise UserError(
                ExitCode.USAGE,
                f"the data of the swarm {manifest.name!r} is shared, but {option} is for private data",
                f"leave {option} out: the training data comes with the swarm",
            )
        return
    if not privacy.data:
        raise UserError(
            ExitCode.DATA_MISSING,
            f"in the swarm {manifest.name!r} each member trains on data of its own, and none is given",
            "name your files or folders with --data; they never leave this computer",
        )
    for limit, given, option in (
        (spec.max_epsilon, privacy.epsilon, "--epsilon"),
        (spec.max_delta, privacy.delta, "--delta"),
    ):
        if limit is None or (given is None and option == "--delta" and privacy.epsilon is not None):
            continue
        if given is None or given > limit:
            raise UserError(
                ExitCode.PRIVACY,
                f"the swarm {manifest.name!r} requires {option} {limit:g} or less of every member",
                _PRIVACY_REMEDY,
            )
    if privacy.epsilon is None:
        return
    if is_device_list(trainer.device) or trainer.under_torchrun:
        raise UserError(
            ExitCode.USAGE,
            "--epsilon does not support several devices yet: gradients are clipped one by one",
            "name one device with --device",
        )
    if manifest.rounds.local_steps > 1:
        raise UserError(
            ExitCode.USAGE,
            f"--epsilon does not work in the swarm {manifest.name!r}, whose members take several steps "
            "of their own a round: noise is added to one gradient a round",
            "leave --epsilon out, or join a swarm with local_steps = 1",
        )
    if find_spec("opacus") is None:
        raise UserError(
            ExitCode.TRAINER,
            "the package opacus, which computes the budget of --epsilon, is not installed",
            "install it with: pip install 'distro-node[private]'",
        )


@dataclass
class PrivateTraining(TrainingData):
    """A member's own data, in which others' samples have no place."""

    policy: LocalPolicy
    """The trainer's settings: the member's shards, and how gradients are clipped."""
    samples: int
    """Number of sequences that the member's data has."""
    order: SampleOrder
    """The order of the sequences, used without a budget."""
    budget: Budget | None
    """The privacy budget; None without --epsilon."""
    report_status: Callable[[PrivacyStatus], None]
    """Called with the budget's status whenever a round was charged or refused."""

    async def choose(
        self, trainer: TrainerClient, samples: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """Return as many sequences of the own data as samples are assigned, drawn at random if there is
        a budget; None if it does not allow another round.

        Raises `OSError` if the position or the account cannot be written.
        """
        count = len(samples)
        if self.budget is None:
            return await trio.to_thread.run_sync(self.order.next, count)
        expected = min(count, self.budget.account.sequences)
        rate = min(1.0, expected / self.samples)
        charged = await self.budget.charge(rate, functools.partial(_epsilon, trainer))
        self.report_status(self.budget.status())
        return draw_samples(self.samples, rate) if charged else None

    def note_loss(self) -> None:
        """Raise `UserError` (`DATA_MISSING`): only this node has the data."""
        raise UserError(
            ExitCode.DATA_MISSING,
            "some of your data, as prepared for training, is missing on the disk",
            "start the same command again: it reads the missing data again",
        )

    def check(self) -> None:
        """Raise `UserError` (`PRIVACY`) once the budget is spent."""
        if self.budget is not None and self.budget.is_spent:
            raise spent_error(self.budget)


async def prepare(
    privacy: PrivacySettings,
    settings: TrainerSettings,
    manifest: Manifest,
    directory: SwarmDir,
    blobs: Path,
    members: int,
    round_: int,
    report: ReportProgress,
    report_status: Callable[[PrivacyStatus], None],
    report_line: Callable[[str], None],
) -> TrainingData:
    """Return what the member trains on. In a swarm of private data, read the member's files, unless that
    is done, and open its privacy account if --epsilon is given.

    `members`: the number of members including this one; `round_`: the round in which it starts;
    `report_status` is called with the budget's status, and `report_line` with one line on what is
    trained on and what is left out. Raises `UserError`.
    """
    if manifest.data.private is None:
        return TrainingData()
    folder = PrivateFolder(directory.private)
    index = await read_files(
        directory.manifest, blobs, privacy.data, folder, report, confined=settings.sandbox
    )
    report_line(index.summary(names=False))
    if index.skipped or index.left_out:
        # Files are named only in the log, because other people may see the status and its web page.
        _log.info("%s", index.summary(names=True))
    samples = index.samples(manifest.data)
    if samples == 0:
        raise UserError(
            ExitCode.DATA_MISSING,
            f"your data is shorter than one sequence ({manifest.data.sequence_length + 1} tokens)",
            "give more with --data",
        )
    store = folder.blobs(index.name)
    policy = LocalPolicy(blobs=str(store.root), shards=index.shards)
    budget = await _open_budget(privacy, settings, manifest, folder, index, members, round_)
    if budget is not None:
        account = budget.account
        clipping = Clipping(norm=account.clip, noise=account.noise, sequences=account.sequences)
        policy = replace(policy, clipping=clipping)
        report_status(budget.status())
    return PrivateTraining(
        policy, samples, SampleOrder(folder.order, index, samples), budget, report_status
    )


async def _open_budget(
    privacy: PrivacySettings,
    settings: TrainerSettings,
    manifest: Manifest,
    folder: PrivateFolder,
    index: PrivateIndex,
    members: int,
    round_: int,
) -> Budget | None:
    account, epsilon = read_account(folder.budget), privacy.epsilon
    if epsilon is None:
        if account is not None and account.spent:
            raise UserError(
                ExitCode.PRIVACY,
                f"this node has kept to ε = {account.epsilon:g} in this swarm so far: training "
                "without --epsilon would void that guarantee",
                f"give --epsilon again or, to give up the guarantee, remove {folder.budget}",
            )
        return None
    samples = index.samples(manifest.data)
    spec = manifest.data.private
    delta = privacy.delta
    if delta is None:
        delta = min(_MAX_DELTA, 0.1 / samples)
        if spec is not None and spec.max_delta is not None:
            delta = min(delta, spec.max_delta)
    try:
        # A trainer that loads no model computes the account within seconds.
        async with trainer_process(settings.threads, (), confined=settings.sandbox) as trainer:
            if account is None or not account.fits(epsilon, delta, privacy.clip, samples):
                account = await _plan_account(
                    trainer,
                    manifest,
                    (epsilon, delta, privacy.clip),
                    samples,
                    members,
                    round_,
                    account,
                )
                write_state(folder.budget, account)
            spent = await _epsilon(trainer, account.table, account.delta)
    except TrainerFailed as error:
        if error.kind != "bad_data":
            raise explain_trainer(error) from error
        raise UserError(
            ExitCode.PRIVACY,
            f"ε = {epsilon:g} at δ = {delta:.2g} leaves no room for {samples} sequences "
            "in this run after what was spent before",
            "allow more with --epsilon, or give more data",
        ) from None
    except TrainerDied as error:
        raise explain_trainer(error) from error
    return Budget(folder.budget, account, spent)


async def _plan_account(
    trainer: TrainerClient,
    manifest: Manifest,
    bounds: tuple[float, float, float],
    samples: int,
    members: int,
    round_: int,
    previous: PrivacyAccount | None,
) -> PrivacyAccount:
    """Return an account whose noise makes the budget last to the end of the run, if the member's share
    of a round is as large as every other member's.

    `bounds`: ε, δ and the norm to which a gradient is clipped. `previous`: the previous account, whose
    spent rounds count.
    """
    epsilon, delta, clip = bounds
    rounds = max(1, manifest.schedule.total_rounds + 1 - max(1, round_))
    sequences = -(-manifest.rounds.sequences // max(manifest.rounds.start_members, members))
    table = [] if previous is None else previous.table
    noise = await trainer.privacy(
        "noise",
        spent=table,
        epsilon=epsilon,
        delta=delta,
        rate=min(1.0, sequences / samples),
        rounds=rounds,
    )
    return PrivacyAccount(
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        noise=noise,
        sequences=sequences,
        samples=samples,
        rounds=rounds,
        spent=() if previous is None else previous.spent,
    )


async def _epsilon(trainer: TrainerClient, spent: object, delta: float) -> float:
    """Return the ε of the spent rounds."""
    return await trainer.privacy("spent", spent=spent, delta=delta)
