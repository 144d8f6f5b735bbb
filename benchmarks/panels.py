"""Committees aggregate the sections of a model, by the program's own integer code, for recipes.py.

As in speakers.py, members send the signs of a few coefficients of their gradients to the aggregators
of a block. Here a committee of three members or more aggregates each section, receives the same sign
votes and computes the same aggregate; committees are drawn every few steps, without the momentum of
the previous ones. Sections, steps, sums, aggregates and committees are those of `protocol/`. Some of
the members may be liars: they send the opposite of the signs that they found, and as committee
members they all declare the opposite of the aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.committee_draw import (
    AggregatorStanding,
    Committee,
    agreed_aggregate,
    dissenters,
    draw_committees,
    may_aggregate,
)
from distro_node.protocol.codec.aggregate import Momentum
from distro_node.protocol.codec.exchange_size import received
from distro_node.protocol.codec.layout import UpdateLayout, update_layout
from distro_node.protocol.codec.sections import Section, most_sections, sections
from distro_node.protocol.codec.sign_vote import selected_positions, zero_sign
from distro_node.protocol.codec.update import DecodedUpdate
from distro_node.protocol.wire.work_specs import CommitteesSpec
from training import Trial

_TRUE, _FALSE = content_id(b"what was told"), content_id(b"the opposite")


@dataclass(frozen=True, kw_only=True)
class Panels:
    """How sections are aggregated."""

    rotation_steps: int
    """A member sends the sign of one in this number of coefficients in a step."""
    top_k: int = 64
    """Coefficients of a block in an aggregate."""
    size: int = 3
    """Members of a committee, at least."""
    term: int = 10
    """Steps in an epoch, after which committees are drawn again."""
    liars: int = 0
    """Number of liars among the members."""

    def received(self, trial: Trial) -> float:
        """Return the bytes that a member receives in a step for each of the others: of each sign
        vote the part for the member's own section, with its signature, and one aggregate of each
        section."""
        members = trial.setting.workers
        spec = CommitteesSpec(
            rotation_steps=self.rotation_steps, min_members=self.size, epoch_steps=self.term
        )
        return received(_layout(self, trial), spec, members) / (members - 1)

    def listener(self, trial: Trial) -> Spoken:
        """Return the aggregators of a run."""
        return Spoken(self, trial)


class Spoken:
    """The committees of a run, their momenta, and each member's record as an aggregator."""

    def __init__(self, spec: Panels, trial: Trial) -> None:
        self._spec = spec
        self._layout = _layout(spec, trial)
        self._members = [PeerId(content_id(bytes([n]))) for n in range(trial.setting.workers)]
        self._liars = frozenset(self._members[: spec.liars])
        self._standings: dict[PeerId, AggregatorStanding] = {}
        self._struck: set[PeerId] = set()
        self._panels: tuple[Committee, ...] = ()
        self._sections: tuple[Section, ...] = ()
        self._momenta: list[Momentum] = []

    def told(self, member: int, signs: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        """Return a member's sign votes of each tensor (blocks, a, b) in round `number`, given the
        signs that it found. For a sign of zero it votes +1 and -1 in turn, cycle by cycle."""
        at_zero = float(zero_sign(self._spec.rotation_steps, number - 1))
        told = [torch.where(each == 0, at_zero, each) for each in signs]
        return [-each for each in told] if self._members[member] in self._liars else told

    def speak(self, sums: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        """Return the aggregate of each tensor (blocks, a, b), from the sums of all sign votes of
        round `number`, of which only the coefficients that are due in this step are used."""
        turn = number - 1
        if turn % self._spec.term == 0:
            self._begin(turn // self._spec.term)
        sent = [torch.zeros_like(total).flatten(1) for total in sums]
        for number, (panel, section) in enumerate(zip(self._panels, self._sections, strict=True)):
            momentum = self._momenta[number]
            momentum.add(self._heard(section, sums, turn), self._spec.rotation_steps, turn)
            tally = momentum.take_strongest(turn)
            said = {peer: _FALSE if peer in self._liars else _TRUE for peer in panel}
            self._struck |= dissenters(panel, said)
            counted = agreed_aggregate(panel, said, self._members)
            if counted is None:
                self._momenta[number] = Momentum(section)
            else:
                _add(sent, section, tally, 1 if counted == _TRUE else -1)
        return [each.view_as(total) for each, total in zip(sent, sums, strict=True)]

    def _begin(self, term: int) -> None:
        for peer in {peer for panel in self._panels for peer in panel}:
            known = self._standings.get(peer, AggregatorStanding())
            struck = peer in self._struck
            self._standings[peer] = known.penalised(term - 1) if struck else known.served()
        able = may_aggregate(self._members, self._standings, term)
        size, most = self._spec.size, most_sections(self._layout)
        seed = content_id(term.to_bytes(8, "big"))
        self._panels = draw_committees(able, size=size, most=most, seed=seed)
        self._sections = sections(self._layout, len(self._panels))
        self._momenta = [Momentum(section) for section in self._sections]
        self._struck = set()

    def _heard(self, section: Section, sums: Sequence[torch.Tensor], turn: int) -> list[np.ndarray]:
        found = []
        for run in section.runs:
            whole = sums[run.tensor].flatten(1)[run.first : run.first + run.blocks]
            heard = selected_positions(whole.shape[1], self._spec.rotation_steps, turn)
            found.append(whole.numpy()[:, heard].astype(np.int32))
        return found


def _layout(spec: Panels, trial: Trial) -> UpdateLayout:
    return update_layout(trial.table, 64, spec.top_k)


def _add(sent: list[torch.Tensor], section: Section, tally: DecodedUpdate, sign: int) -> None:
    for run, positions, signs in zip(section.runs, tally.positions, tally.signs, strict=True):
        own = sent[run.tensor][run.first : run.first + run.blocks]
        places = torch.from_numpy(positions.astype(np.int64))
        own.scatter_(1, places, sign * torch.from_numpy(signs).to(own.dtype))
