"""What a member has told of its own data, by the account of differential privacy, and what it still may.

A round is put on the account before it is computed: whatever happens then, no more is spent than stands
there. The account stays with the swarm's files for as long as they do, whichever limits it had.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ...protocol.wire.structure import Length, Range
from ..errors import ExitCode, UserError
from ..telemetry.privacy import PrivacyStatus
from .kept import read_state, write_state

Epsilon = Callable[[Sequence[tuple[float, float, int]], float], Awaitable[float]]
"""The ε of some rounds with a δ; a trainer can say it."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Rounds of one kind."""

    rate: Annotated[float, Range(0.0, 1.0)]
    """The probability with which each sequence was drawn."""
    noise: Annotated[float, Range(0.0, 1e9)]
    rounds: Annotated[int, Range(1, 2**40)]


@dataclass(frozen=True, kw_only=True)
class Account:
    """What is kept on the disk."""

    epsilon: Annotated[float, Range(0.0, 1e6)]
    """What may be spent in all."""
    delta: Annotated[float, Range(0.0, 1.0)]
    clip: Annotated[float, Range(0.0, 1e9)]
    noise: Annotated[float, Range(0.0, 1e9)]
    """Of the rounds to come."""
    sequences: Annotated[int, Range(1, 65_536)]
    """The most that are expected in a round: it is by these that the noise was chosen."""
    samples: Annotated[int, Range(1, 2**62)]
    """How many sequences there were when it was."""
    rounds: Annotated[int, Range(1, 2**40)]
    """How many rounds it was to last for, from then on."""
    spent: Annotated[tuple[Spent, ...], Length(0, 100_000)] = ()

    @property
    def table(self) -> list[tuple[float, float, int]]:
        """What was spent, as an accountant reads it."""
        return [(each.rate, each.noise, each.rounds) for each in self.spent]

    def fits(self, epsilon: float, delta: float, clip: float, samples: int) -> bool:
        """Whether it is for these limits, and data of this size."""
        wanted = (epsilon, delta, clip, samples)
        return wanted == (self.epsilon, self.delta, self.clip, self.samples)

    def with_round(self, rate: float) -> Account:
        """With one more round, at this rate."""
        kinds = {(each.rate, each.noise): each.rounds for each in self.spent}
        kinds[rate, self.noise] = kinds.get((rate, self.noise), 0) + 1
        spent = tuple(Spent(rate=r, noise=n, rounds=rounds) for (r, n), rounds in kinds.items())
        return replace(self, spent=spent)


class Budget:
    """An account in use."""

    def __init__(self, path: Path, account: Account, epsilon: float) -> None:
        """`epsilon`: what the account comes to by now."""
        self.account = account
        self.epsilon = epsilon
        self.is_spent = False
        """Whether there was no room for a round."""
        self._path = path

    def status(self) -> PrivacyStatus:
        """What people are told of it."""
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
        """Put a round at this rate on the account; False, and nothing is, where it would be too much.

        Raises `OSError` where the account cannot be written: then the round must not be computed.
        """
        account = self.account.with_round(rate)
        total = await epsilon(account.table, account.delta)
        if not total <= account.epsilon:
            self.is_spent = True
            return False
        write_state(self._path, account)
        self.account, self.epsilon = account, total
        return True


def read_account(path: Path) -> Account | None:
    """The account on the disk; None if there never was one.

    Raises `UserError` (`PRIVACY`) for a file that is damaged: what was spent would be forgotten.
    """
    account = read_state(Account, path)
    if account is None and path.exists():
        raise UserError(
            ExitCode.PRIVACY,
            f"the account of this node's privacy, {path}, is damaged",
            "nobody can say any more what was told of your data here; remove the file to begin a new "
            "account beside what was spent",
        )
    return account


def spent_error(budget: Budget) -> UserError:
    """That the account is full."""
    account = budget.account
    return UserError(
        ExitCode.PRIVACY,
        f"the privacy budget is spent: ε = {budget.epsilon:.3f} of {account.epsilon:g} at "
        f"δ = {account.delta:.2g}, and another round would be too much",
        "what was sent stays sent; to go on, allow more with --epsilon, or leave it at that",
    )
