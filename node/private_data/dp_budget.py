"""Budget of differential privacy: how much of it a member has spent in a swarm, and how much is left.

A round is charged before it is computed, so that whatever happens then, no more is spent than the
account states. The account is kept as long as the swarm's files, even if the member changes its limits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ...protocol.wire.structure import Length, Range
from ..errors import ExitCode, UserError
from ..telemetry.privacy import PrivacyStatus
from .store import read_state, write_state

Epsilon = Callable[[Sequence[tuple[float, float, int]], float], Awaitable[float]]
"""Returns the ε of some rounds, each a tuple (sampling probability, noise, number of rounds), at a δ. A
trainer computes it."""


@dataclass(frozen=True, kw_only=True)
class SpentRounds:
    """Charged rounds with the same sampling probability and noise."""

    rate: Annotated[float, Range(0.0, 1.0)]
    """Sampling probability of each sequence."""
    noise: Annotated[float, Range(0.0, 1e9)]
    """Standard deviation of the noise, divided by the norm to which gradients are clipped."""
    rounds: Annotated[int, Range(1, 2**40)]
    """Number of these rounds."""


@dataclass(frozen=True, kw_only=True)
class PrivacyAccount:
    """The limits of a budget and what was spent of it, as stored on disk."""

    epsilon: Annotated[float, Range(0.0, 1e6)]
    """Total ε that may be spent."""
    delta: Annotated[float, Range(0.0, 1.0)]
    clip: Annotated[float, Range(0.0, 1e9)]
    """The norm to which a sequence's gradient is clipped."""
    noise: Annotated[float, Range(0.0, 1e9)]
    """Noise of the rounds to come, as in `SpentRounds`."""
    sequences: Annotated[int, Range(1, 65_536)]
    """Greatest expected number of sequences in a round; the noise was chosen for it."""
    samples: Annotated[int, Range(1, 2**62)]
    """Number of sequences that the member's data had when the noise was chosen."""
    rounds: Annotated[int, Range(1, 2**40)]
    """Number of rounds for which the budget should last from then on."""
    spent: Annotated[tuple[SpentRounds, ...], Length(0, 100_000)] = ()

    @property
    def table(self) -> list[tuple[float, float, int]]:
        """The spent rounds as tuples for `Epsilon`."""
        return [(each.rate, each.noise, each.rounds) for each in self.spent]

    def fits(self, epsilon: float, delta: float, clip: float, samples: int) -> bool:
        """Whether the account is for these limits, and data of this size."""
        wanted = (epsilon, delta, clip, samples)
        return wanted == (self.epsilon, self.delta, self.clip, self.samples)

    def with_round(self, rate: float) -> PrivacyAccount:
        """Return the account with one more spent round at this sampling probability."""
        kinds = {(each.rate, each.noise): each.rounds for each in self.spent}
        kinds[rate, self.noise] = kinds.get((rate, self.noise), 0) + 1
        spent = tuple(
            SpentRounds(rate=r, noise=n, rounds=rounds) for (r, n), rounds in kinds.items()
        )
        return replace(self, spent=spent)


class Budget:
    """An account in use, with the file in which it is kept."""

    def __init__(self, path: Path, account: PrivacyAccount, epsilon: float) -> None:
        """`epsilon`: the ε spent so far."""
        self.account = account
        self.epsilon = epsilon
        self.is_spent = False
        """Whether a round was refused for lack of budget."""
        self._path = path

    def status(self) -> PrivacyStatus:
        """Return the privacy status."""
        account = self.account
        return PrivacyStatus(
            epsilon=self.epsilon,
            delta=account.delta,
            limit=account.epsilon,
            noise=account.noise,
            clip=account.clip,
            rounds=sum(each.rounds for each in account.spent),
            spent=self.is_spent,
        )

    async def charge(self, rate: float, epsilon: Epsilon) -> bool:
        """Charge a round with the sampling probability `rate`; return False, and charge nothing, if
        that would exceed the budget.

        Raises `OSError` if the account cannot be written; the round must then not be computed.
        """
        account = self.account.with_round(rate)
        total = await epsilon(account.table, account.delta)
        if not total <= account.epsilon:
            self.is_spent = True
            return False
        write_state(self._path, account)
        self.account, self.epsilon = account, total
        return True


def read_account(path: Path) -> PrivacyAccount | None:
    """Return the account on disk; None if there is none.

    Raises `UserError` (`PRIVACY`) for a damaged file, because the spent budget would be forgotten.
    """
    account = read_state(PrivacyAccount, path)
    if account is None and path.exists():
        raise UserError(
            ExitCode.PRIVACY,
            f"the record of the spent privacy budget, {path}, is damaged",
            "how much was revealed about your data can no longer be determined; remove the file "
            "to start a new budget in addition to what was spent",
        )
    return account


def spent_error(budget: Budget) -> UserError:
    """Return the error of a spent budget."""
    account = budget.account
    return UserError(
        ExitCode.PRIVACY,
        f"the privacy budget is spent: ε = {budget.epsilon:.3f} of {account.epsilon:g} at "
        f"δ = {account.delta:.2g}, and another round would exceed it",
        "what was sent cannot be withdrawn; to continue, allow more with --epsilon, or stop here",
    )
