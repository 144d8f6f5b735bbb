"""Number of bytes that members exchange in a step with committees."""

from __future__ import annotations

from ..codec.exchange_size import ExchangeSize
from ..codec.layout import UpdateLayout
from ..wire.work_specs import CommitteesSpec
from .aggregate import aggregate_bytes, max_aggregate_bytes
from .sections import Section, committee_count, most_sections, sections
from .sign_vote import part_bytes
from .sign_vote_tree import proof_bytes


class CommitteeExchangeSize(ExchangeSize):
    """Bytes exchanged in a swarm whose members send sign votes, and whose committees send aggregates."""

    blob = "an aggregate"

    def __init__(self, spec: CommitteesSpec) -> None:
        self._spec = spec

    def sent(self, layout: UpdateLayout) -> int:
        """Return the length in bytes of a sign vote. It is taken as one part; a part for each section
        adds a few bytes."""
        (whole,) = sections(layout, 1)
        # Step 0 stands for every step: they differ by at most one coefficient per block.
        return part_bytes(whole, self._spec.rotation_steps, 0)

    def received(self, layout: UpdateLayout, members: int) -> int:
        """Return the approximate bytes that each of `members` receives in a step: the parts of the
        others' sign votes for its own section, and an aggregate for each section."""
        if members < 2:
            return 0
        count = committee_count(members, self._spec.min_members, most_sections(layout))
        cut = sections(layout, count)
        aggregates = sum(aggregate_bytes(section, members) for section in cut)
        parts = sum(self._part_length(cut, number) for number in range(count))
        return (members - 1) * (parts // count) + aggregates

    def longest(self, layout: UpdateLayout) -> int:
        """Return the largest length of an aggregate. While there are few members, one committee
        aggregates the whole model."""
        return max_aggregate_bytes(layout)

    def _part_length(self, cut: tuple[Section, ...], number: int) -> int:
        """Return the length in bytes of one section's part of a sign vote, in step 0, with its proof."""
        return part_bytes(cut[number], self._spec.rotation_steps, 0) + proof_bytes(number, len(cut))
